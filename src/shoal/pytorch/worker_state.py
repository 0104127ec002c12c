"""Worker state in checkpoints: random generators, the module's buffers, and the strategy's state.

Each worker writes a file next to a checkpoint's rows when it reaches its clock. With this file a
resumed run draws the random numbers that the first run would have drawn, such as dropout's, and
an optimizer that runs on the worker goes on as it would have. Without servers these files are the
checkpoint, and have the module's parameters as well.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from shoal.errors import DataCorrupt
from shoal.protocol.checkpoint_clocks import CheckpointClocks
from shoal.protocol.views import View
from shoal.storage.checkpoints import WORKERS, Checkpoints
from shoal.storage.run_folder import folder_of
from shoal.storage.shard_files import ENDED, Origin
from shoal.storage.verified import read_verified, write_verified

_BUFFER, _PARAMETER, _STRATEGY = "buffer.", "parameter.", "strategy/"
_STEP = "step"
_NONE = torch.empty(0)
State = Mapping[str, Any]  # of a strategy: names to tensors, whole numbers or further states
MISFITS = (LookupError, ValueError, TypeError, RuntimeError, OverflowError, AttributeError)

log = logging.getLogger("shoal.worker")


class WorkerStates:
    """The state files of one worker, in a run's folder of checkpoints.

    Args:
        folder: the folder of checkpoints.
        rank: the rank of the worker.
        markers: the clocks that have a checkpoint.
        offset: the clock of the checkpoint from which the run was resumed.
        alone: whether the workers make a checkpoint by themselves, without servers.
        keep: the number of such checkpoints to keep, the latest ones; 0 for all.
        run: the run's name.

    Attributes:
        step: the worker's number of steps at the restored checkpoint; -1 if unknown.
    """

    def __init__(
        self,
        folder: Path,
        rank: int,
        markers: CheckpointClocks,
        offset: int = 0,
        alone: bool = False,
        keep: int = 0,
        run: str = "",
    ) -> None:
        self._run = run
        self._folder = folder
        self._rank = rank
        self._markers = markers
        self._offset = offset
        self._alone = alone
        self._keep = keep
        self._clock = -1  # the clock reached last
        self.step = -1

    def reached(
        self,
        view: View,
        clock: int,
        module: nn.Module,
        state: Callable[[], State] = dict,
        step: int = -1,
    ) -> None:
        """Write the state when the worker reaches, or passes, a clock that has a checkpoint.

        Args:
            state: the function that returns the strategy's state.
            step: the worker's number of steps so far, with those of the run that it continues.
        """
        self._markers.adopt(view)
        before, self._clock = self._clock, clock
        due = self._markers.latest(clock)  # a worker that was late for rounds leaves out clocks
        if due > before >= 0 or (before < 0 and self._markers.at(clock)):
            ranks = ranks_of(view) if self._alone else ()
            origin = Origin(self._run, due + self._offset, view.id)
            path = self._path(origin.clock)
            write_state(path, module, state(), step, origin, ranks)
            if ranks and self._rank == ranks[0]:
                Checkpoints(self._folder).keep(self._keep)

    def take_up(self, clock: int, module: nn.Module) -> State | None:
        """Restore the state at a checkpoint; return the strategy's, or None if there is no file.

        Without servers, a worker without a file takes the parameters of another worker.

        Raises:
            DataCorrupt: the file is damaged, or of another module.
        """
        path = self._path(clock)
        if not path.exists():
            others = path.parent.glob("worker-*.safetensors") if self._alone else ()
            if other := min(others, default=None):
                tensors, _ = read_verified(other)
                with _fitting(other):
                    _restore(module.named_parameters(), tensors, _PARAMETER)
            return None
        tensors, metadata = read_verified(path)
        with _fitting(path):
            _restore(module.named_buffers(), tensors, _BUFFER)
            _restore(module.named_parameters() if WORKERS in metadata else (), tensors, _PARAMETER)
            _set_random_state(tensors, metadata["python"])
            self.step = int(metadata.get(_STEP, -1))
            return _nested({n: each for n, each in tensors.items() if n.startswith(_STRATEGY)})

    def _path(self, clock: int) -> Path:
        return self._folder / folder_of(clock) / f"worker-{self._rank}.safetensors"


@contextmanager
def _fitting(path: Path) -> Iterator[None]:
    try:
        yield
    except MISFITS as error:
        raise DataCorrupt(
            f"{path} is no state of this worker, or of another model: {error}"
        ) from None


def _restore(
    held: Iterable[tuple[str, Tensor]], tensors: Mapping[str, Tensor], prefix: str
) -> None:
    with torch.no_grad():
        for name, each in held:
            each.copy_(tensors[prefix + name])


def ranks_of(view: View) -> tuple[int, ...]:
    """Return the ranks of the first group's workers in a view, in order."""
    return tuple(sorted(member.rank for member in view.group("")))


def write_state(
    path: Path,
    module: nn.Module,
    state: State,
    step: int,
    origin: Origin,
    ranks: Sequence[int] = (),
    ended: bool = False,
) -> None:
    """Write this process's random state, a module's buffers and a strategy's state.

    A failure is logged.

    Args:
        step: the worker's number of steps so far.
        origin: the run, the clock and the view.
        ranks: the ranks of the workers that make a checkpoint by themselves, with the parameters;
            none with servers.
        ended: whether the worker's work is done, so that the file belongs to a checkpoint of that
            clock or of a later one.
    """
    tensors, python = _random_state()
    told = {"python": python, _STEP: str(step), **origin.told(), **({ENDED: "1"} if ended else {})}
    held = {_BUFFER + name: each for name, each in module.named_buffers()}
    if ranks:
        held |= {_PARAMETER + name: each for name, each in module.named_parameters()}
        told[WORKERS] = ",".join(map(str, ranks))
    tensors |= {name: each.detach().contiguous() for name, each in held.items()}
    memory = {each.untyped_storage().data_ptr() for each in tensors.values()}
    for name, each in _flat(state, _STRATEGY):
        shared = each.untyped_storage().data_ptr() in memory  # a file has each byte once
        tensors[name] = each.clone() if shared else each.contiguous()
    try:
        write_verified(path, tensors, told)
    except (OSError, SafetensorError, ValueError, RuntimeError) as error:  # training goes on
        log.warning("the worker's state could not be written: %s", error)


def _flat(state: State, prefix: str) -> Iterator[tuple[str, Tensor]]:
    for name, value in state.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}/") if value else [(f"{prefix}{name}/", _NONE)]
        else:
            yield prefix + name, torch.as_tensor(value).detach()


def _nested(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    state: dict[str, Any] = {}
    for path, tensor in tensors.items():
        *folders, name = path.removeprefix(_STRATEGY).split("/")
        into = state
        for each in folders:
            into = into.setdefault(each, {})
        if name:  # an empty name marks an empty state
            into[name] = tensor
    return state


def _random_state() -> tuple[dict[str, Tensor], str]:
    """Return the state of torch's, numpy's and Python's own generators; the last as JSON."""
    _, keys, position, has_normal, normal = np.random.get_state(legacy=True)
    tensors = {
        "torch": torch.get_rng_state(),
        "numpy": torch.from_numpy(np.asarray(keys, np.int64)),
        "numpy.at": torch.tensor([position, has_normal], dtype=torch.int64),
        "numpy.normal": torch.tensor([normal], dtype=torch.float64),
    }
    return tensors, msgspec.json.encode(random.getstate()).decode()


def _set_random_state(tensors: dict[str, Tensor], python: str) -> None:
    position, has_normal = tensors["numpy.at"].tolist()
    keys = tensors["numpy"].numpy().astype(np.uint32)
    state = ("MT19937", keys, position, has_normal, float(tensors["numpy.normal"]))
    version, words, normal = msgspec.json.decode(
        python, type=tuple[int, tuple[int, ...], float | None]
    )
    torch.set_rng_state(tensors["torch"])
    np.random.set_state(state)
    random.setstate((version, words, normal))
