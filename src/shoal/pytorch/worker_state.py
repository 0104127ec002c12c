"""Worker state in checkpoints: random generators, and the buffers of the module.

Each worker writes a file beside a checkpoint's rows when it reaches the checkpoint's clock. With it
a resumed run draws the random numbers that the first run would have drawn, such as dropout's.
"""

from __future__ import annotations

import logging
import random
from pathlib import Path

import msgspec
import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from shoal.errors import DataCorrupt
from shoal.protocol.checkpoint_clocks import CheckpointClocks
from shoal.protocol.views import View
from shoal.storage.run_folder import folder_of
from shoal.storage.verified import read_verified, write_verified

_BUFFER = "buffer."
_MISFITS = (LookupError, ValueError, TypeError, RuntimeError, OverflowError)

log = logging.getLogger("shoal.worker")


class WorkerStates:
    """The state files of one worker, in a run's folder of checkpoints.

    Args:
        folder: the folder of checkpoints.
        rank: the worker's.
        markers: the clocks that have a checkpoint.
        offset: clock of the checkpoint from which the run was resumed.
    """

    def __init__(self, folder: Path, rank: int, markers: CheckpointClocks, offset: int = 0) -> None:
        self._folder = folder
        self._rank = rank
        self._markers = markers
        self._offset = offset

    def reached(self, view: View, clock: int, module: nn.Module) -> None:
        """Write the state, if that clock of this run has a checkpoint."""
        self._markers.adopt(view)
        if self._markers.at(clock):
            write_state(self._path(clock + self._offset), module)

    def take_up(self, clock: int, module: nn.Module) -> bool:
        """Restore the state at a checkpoint; False if this worker has left none there.

        Raises:
            DataCorrupt: the file is damaged, or of another module.
        """
        path = self._path(clock)
        if not path.exists():
            return False
        tensors, metadata = read_verified(path)
        try:
            with torch.no_grad():
                for name, buffer in module.named_buffers():
                    buffer.copy_(tensors[_BUFFER + name])
            _set_random_state(tensors, metadata["python"])
        except _MISFITS as error:
            raise DataCorrupt(f"{path} is no state of this worker: {error}") from None
        return True

    def _path(self, clock: int) -> Path:
        return self._folder / folder_of(clock) / f"worker-{self._rank}.safetensors"


def write_state(path: Path, module: nn.Module) -> None:
    """Write this process's random state and a module's buffers; a failure is logged."""
    tensors, python = _random_state()
    buffers = dict(module.named_buffers())
    tensors |= {_BUFFER + n: each.detach().contiguous() for n, each in buffers.items()}
    try:
        write_verified(path, tensors, {"python": python})
    except (OSError, SafetensorError, ValueError) as error:  # training goes on
        log.warning("the worker's state could not be written: %s", error)


def _random_state() -> tuple[dict[str, Tensor], str]:
    """The state of torch's, numpy's and Python's own generators; the last as JSON."""
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
