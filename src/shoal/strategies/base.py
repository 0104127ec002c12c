"""Strategy: the contract of training strategies.

A step is a generator: it yields requests (`protocol.requests.Exchange`, or
`collective.base.AllReduce`) and returns a `StepResult`. State is in the strategy's attributes and
its `state_dict`, never in the generator's locals. This module is importable without torch, so that
command lines list and check strategies without delay.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

import msgspec

from shoal.errors import InvalidValue, UsageError
from shoal.factories import load
from shoal.keys import KeyRange
from shoal.protocol.requests import EnterBarrier, Exchange, PullOp, PushOp
from shoal.registry import Registry
from shoal.strategies.settings import StrategySettings, settings_of
from shoal.tables.consistency import Consistency
from shoal.tables.spec import Access, TableSpec

if TYPE_CHECKING:
    from torch import Tensor

Program = Generator[Any, Any, Any]
Op = TypeVar("Op")


class Model(Protocol):
    """A model as strategies see it: flat parameters and gradients, in one or more buffers.

    Attributes:
        values: by buffer, (n,) parameters.
        grads: by buffer, (n,) gradients.
        wires: by buffer, (n + 1,): the gradients with one more element, for their weight.
    """

    values: dict[str, Tensor]
    grads: dict[str, Tensor]
    wires: dict[str, Tensor]

    def gradient(self, batch: Any) -> tuple[float, float]:
        """Fill `grads` with the mean gradient of a batch; returns (mean loss, batch weight)."""
        ...


@dataclass(frozen=True)
class StepResult:
    """Result of one step.

    Attributes:
        loss: mean loss of the batch; nan without a batch.
        weight: weight of the batch, such as its size; 0 without a batch.
        others: weight of the round over all workers, their sum or (allreduce) their mean; 0 if no
            worker had a batch, -1 for strategies without shared rounds.
        staleness: clocks by which the slowest known worker is behind.
        clock: the worker's clock after the step, with those of the run that this one continues, of
            strategies that `leaves_out` batches; of others -1.
    """

    loss: float
    weight: float
    others: float = -1.0
    staleness: int = 0
    clock: int = -1


@dataclass(frozen=True)
class StrategyOptions:
    """Options of a strategy.

    Attributes:
        access: the optimizer: the tables' access method, or the workers' under allreduce.
        staleness: bound of ssp, in clocks.
        apply_at: when pushes of ssp change the rows: "arrival" or "round_end".
        prefix: prefix of the tables' names, distinct for each model of a run.
        batch: the usual weight of a batch, the same on all workers.
        accesses: the optimizers of buffers that have another one than `access`.
        update: of strategies whose optimizer runs on workers, what updates the parameters from the
            gradients in place of `access`, such as a torch optimizer's `step`.
        workers: how many there are.
        rank: this worker's.
        passed: clocks of the run that this one continues.
        redundancy: workers that get each block of the data.
        settings: of the strategy (`Strategy.Settings`), by name.
    """

    access: Access = field(default_factory=lambda: Access("sgd", {"lr": 0.01}))
    staleness: int = 0
    apply_at: str = "arrival"
    prefix: str = "params"
    batch: float = 1.0
    accesses: Mapping[str, Access] = field(default_factory=dict)
    update: Callable[[], object] | None = None
    workers: int = 1
    rank: int = 0
    passed: int = 0
    redundancy: int = 1
    settings: Mapping[str, Any] = field(default_factory=dict)

    def access_of(self, buffer: str) -> Access:
        """The optimizer of a buffer."""
        return self.accesses.get(buffer, self.access)


class Strategy(ABC):
    """Base class of training strategies.

    Args:
        options: the optimizer, its consistency, the tables' names and the strategy's settings.

    Raises:
        UnknownName: a setting that the strategy does not have.
        InvalidValue: a setting out of its range, or two that contradict each other.

    Attributes:
        name: the name for `--strategy`.
        summary: what it does, in one line.
        in_step: whether all workers take every exchange together. A worker without data then
            continues with weight 0, and evaluations after an exchange are equal on all workers.
        uses_servers: whether the parameters are in tables on servers.
        takes_copies: whether workers' data may overlap (`--redundancy`).
        idle_rounds: rounds of workers in step without batches at the end of an epoch.
        repeats: whether each `redundancy` workers of consecutive ranks have the same batches.
        leaves_out: whether a worker leaves out the batches of rounds that have closed without it.
        bears_losses: whether workers without servers go on without one that is lost.
        on_workers: whether the optimizer (`options.access`) runs on the workers.
        Settings: the class of its settings.
        source: the paper, with its section.
        kept: where its state is, and whether a checkpoint has it.
        late: what happens to workers that are late, by `--on-timeout`.
        options, settings: as given.
        rates: by buffer, the learning rate in place of the optimizer's; for torch's lr_schedulers.
        clock: this worker's exchanges in this run. Without servers the strategy counts them here,
            for its checkpoints.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    in_step: ClassVar[bool] = False
    uses_servers: bool = True
    takes_copies: ClassVar[bool] = False
    idle_rounds: int = 1
    repeats: ClassVar[bool] = False
    leaves_out: bool = False
    bears_losses: ClassVar[bool] = False
    on_workers: ClassVar[bool] = False
    Settings: ClassVar[type[StrategySettings]] = StrategySettings
    source: ClassVar[str] = ""
    kept: ClassVar[str] = ""
    late: ClassVar[str] = ""

    def __init__(self, options: StrategyOptions) -> None:
        self.options = options
        self.settings: Any = settings_of(self.name, self.Settings, options.settings)
        self.rates: Mapping[str, float] = {}
        self.clock = 0

    @classmethod
    def with_servers(cls, settings: Mapping[str, Any]) -> bool:
        """Whether the parameters are in tables on servers, with these settings."""
        return cls.uses_servers

    def check_losses(self, on_worker_loss: str, on_timeout: str) -> None:
        """Refuse what workers without servers cannot do when one of them is lost or late.

        Args:
            on_worker_loss: "stop", "drop", "replace" or "reassign", as `--on-worker-loss`.
            on_timeout: "wait", "ask" or "drop", as `--on-timeout`.

        Raises:
            InvalidValue: the strategy cannot do that.
        """
        if self.uses_servers:
            return
        possible = ("stop", "drop") if self.bears_losses else ("stop",)
        if on_worker_loss not in possible:
            raise InvalidValue(
                f"strategy {self.name!r} has its parameters on workers: on_worker_loss can be "
                f"{' or '.join(map(repr, possible))}, not {on_worker_loss!r}"
            )
        if on_timeout == "drop" and not self.bears_losses:
            raise InvalidValue(
                f"strategy {self.name!r} sums over all workers and cannot go on without one: "
                "on_timeout can be 'wait' or 'ask', not 'drop'"
            )

    @abstractmethod
    def tables(self, model: Model) -> list[TableSpec]:
        """The tables for the model's parameters; none without servers."""

    @abstractmethod
    def begin(self, model: Model, rank: int, clock: int = 0) -> Program:
        """Distribute rank 0's initial parameters; later joiners pull the current ones.

        Args:
            model: the worker's model.
            rank: the worker's rank; -1 for one that never writes.
            clock: the clock at which the worker joins.

        Without servers, the model of a run that continues another (`options.passed`) has the
        parameters that the worker of this rank had.
        """

    @abstractmethod
    def step(self, model: Model, batch: Any) -> Generator[Any, Any, StepResult]:
        """Take one step; `batch` is None if this worker has no data left."""

    def period(self, clock: int) -> int:
        """The number of batches between the exchanges of `clock` and the next; 0: an epoch's."""
        return 1

    def batches_at(self, clock: int) -> int:
        """The batches of a worker that has come to `clock`, where workers are not in step."""
        return clock * self.period(0)

    def exchanges_after(self, epoch: int) -> bool:
        """Whether workers in step exchange what is left at the end of an epoch."""
        return True

    def spread(self, model: Model, writes: bool) -> Program:
        """Replace all workers' parameters, and those in tables, by those of the one that `writes`.

        Only strategies with `on_workers` are asked, by `shoal.Optimizer.load_state_dict`.
        """
        raise UsageError(f"strategy {self.name!r} has no `spread`: its state cannot be replaced")

    def flush(self, model: Model) -> Program:
        """Exchange what is left of the last `period`, at the end of an epoch."""
        yield from ()

    def settle(self, model: Model) -> Program:
        """Bring the model up to date, for a caller that takes no further step."""
        yield from self.flush(model)

    def end(self, model: Model) -> Program:
        """Read the final parameters into the model."""
        yield from ()

    def state_dict(self) -> dict[str, Any]:
        """The strategy's state on this worker: names to tensors, numbers or further states.

        Without servers, checkpoints have the model's parameters beside it.
        """
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` has returned.

        Raises:
            InvalidValue: the strategy has no state, and `state` is not empty.
        """
        if state:
            raise InvalidValue(f"strategy {self.name!r} has no state, but got {list(state)}")


class StrategyRegistry(Registry[type[Strategy]]):
    """Strategies by name, or by where they can be imported: "module:Class", "FILE.py:Class"."""

    def __getitem__(self, name: str) -> type[Strategy]:
        if ":" not in name:
            return super().__getitem__(name)
        found = load(name)
        if not isinstance(found, type) or not issubclass(found, Strategy):
            raise InvalidValue(f"{name} is no strategy: a class that inherits from Strategy")
        if not getattr(found, "name", ""):
            raise InvalidValue(f'{name} has no name: give the class one, such as name = "mine"')
        return found


strategies = StrategyRegistry("strategy", "shoal.strategies")


WAITED_FOR = "are asked and waited for; drop: they leave the run"
NOBODY_WAITS = "no worker waits for another before the end"


def restore(held: dict[str, Tensor], state: Mapping[str, Tensor]) -> None:
    """Take in tensors of a loaded state: in place, where they are the model's or prepared."""
    for name, values in state.items():
        held.setdefault(name, values).copy_(values)


def table_specs(
    model: Model,
    options: StrategyOptions,
    consistency: Consistency,
    access: Access | None = None,
    **more: Any,
) -> list[TableSpec]:
    """One table per buffer of the model.

    access: of all of them, in place of the options'
    more: further fields of the specifications
    """
    return [
        TableSpec(
            f"{options.prefix}.{buffer}",
            len(values),
            (),
            str(values.dtype).removeprefix("torch."),
            access=access or options.access_of(buffer),
            consistency=consistency,
            **more,
        )
        for buffer, values in sorted(model.values.items())
    ]


def byte_view(tensor: Tensor) -> memoryview:
    """A flat tensor's memory as bytes."""
    import torch

    view: memoryview = tensor.detach().view(torch.uint8).numpy().data
    return view


class TableOps:
    """Push and pull operations of a model's tables, built once: its buffers do not move.

    Args:
        model: the model.
        prefix: of the tables' names.
        pushed: by buffer, what is pushed; the gradients if not given.
        pulled: by buffer, where the parameters are pulled to; the model's own if not given.
    """

    def __init__(
        self,
        model: Model,
        prefix: str,
        pushed: dict[str, Tensor] | None = None,
        pulled: dict[str, Tensor] | None = None,
    ) -> None:
        self._prefix = prefix
        self._buffers = sorted(model.grads)
        self._pushes = _whole_tables(PushOp, prefix, model.grads if pushed is None else pushed)
        self.pulls = _whole_tables(PullOp, prefix, model.values if pulled is None else pulled)
        self.assigns = _whole_tables(PushOp, prefix, model.values)

    def begin(self, writes: bool) -> Program:
        """Pull the parameters, which the worker that `writes` has assigned."""
        if writes:
            yield Exchange(self.assigns, assign=True)
        yield EnterBarrier(f"{self._prefix} written")
        yield Exchange(pulls=self.pulls)

    def spread(self, writes: bool) -> Program:
        """Pull the parameters of the worker that `writes`, in place of those that were trained."""
        yield EnterBarrier(f"{self._prefix} loading")  # no push is under way any more
        if writes:
            yield Exchange(self.assigns, assign=True)
        yield EnterBarrier(f"{self._prefix} loaded")
        yield Exchange(pulls=self.pulls)

    def end(self) -> Program:
        """Pull the parameters after all workers have finished, so that all have the same."""
        yield Exchange(advance=True, last=True)  # no other worker waits for this one any more
        yield EnterBarrier(f"{self._prefix} done")
        yield Exchange(pulls=self.pulls)

    def pushes(self, rates: Mapping[str, float]) -> tuple[PushOp, ...]:
        """The gradients, with these learning rates by buffer."""
        return tuple(
            msgspec.structs.replace(op, lr=rates.get(buffer))
            for buffer, op in zip(self._buffers, self._pushes, strict=True)
        )


def _whole_tables(
    op: Callable[[str, KeyRange, memoryview], Op], prefix: str, buffers: dict[str, Tensor]
) -> tuple[Op, ...]:
    return tuple(
        op(f"{prefix}.{buffer}", KeyRange(0, len(each)), byte_view(each))
        for buffer, each in sorted(buffers.items())
    )
