"""Strategy: the contract of training strategies.

A step is a generator: it yields requests (`protocol.requests.Exchange`, or
`collective.base.AllReduce`) and returns a `StepResult`. State is in the attributes and the
`state_dict` of the strategy, never in the locals of the generator. This module is importable
without torch, so that command lines list and check strategies without delay.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from shoal.errors import InvalidValue, UsageError
from shoal.factories import load
from shoal.registry import Registry
from shoal.strategies.settings import StrategySettings, settings_of
from shoal.tables.spec import Access, Span, TableSpec

if TYPE_CHECKING:
    from torch import Tensor

    from shoal.tables.encoding import LayerFigures

Program = Generator[Any, Any, Any]
Numbers = Mapping[str, tuple[int, ...]]  # by buffer, numbers of parameters
USUAL = "sync"  # the strategy of a job that names none
NONE: Numbers = MappingProxyType({})
WIRE_TAIL = 5  # elements behind the gradients of a buffer, for figures that travel along


class Model(Protocol):
    """A model as strategies see it: flat parameters and gradients, in one or more buffers.

    Attributes:
        values: by buffer, (n,) parameters.
        grads: by buffer, (n,) gradients.
        wires: by buffer, (n + WIRE_TAIL,): the gradients with room for figures that travel along.
        spans: by buffer, the beginning and the name of each parameter; none if they are unknown.
        shapes: by buffer, the shape of each parameter in `spans`.
        absent: by buffer, the numbers of the parameters that the last batch gave no gradient. They
            are not updated, and their `grads` are 0.
        idle: the buffers whose parameters are all frozen.
    """

    values: dict[str, Tensor]
    grads: dict[str, Tensor]
    wires: dict[str, Tensor]

    @property
    def spans(self) -> Mapping[str, tuple[Span, ...]]: ...
    @property
    def shapes(self) -> Mapping[str, Sequence[tuple[int, ...]]]: ...
    @property
    def absent(self) -> Numbers: ...
    @property
    def idle(self) -> Collection[str]: ...

    def gradient(self, batch: Any) -> tuple[float, float]:
        """Fill `grads` with the mean gradient of a batch; return (mean loss, batch weight)."""
        ...


@dataclass(frozen=True)
class StepResult:
    """The result of one step.

    Attributes:
        loss: the mean loss of the batch; nan without a batch.
        weight: the weight of the batch, such as its size; 0 without a batch.
        others: the weight of the round: the sum over all workers or (allreduce) their mean; 0 if no
            worker had a batch, -1 for strategies without shared rounds.
        staleness: the number of clocks by which the slowest known worker is behind.
        clock: the worker's clock after the step, plus the clocks of the run that this one
            continues, for strategies with `Traits.skips_closed_rounds`; -1 for others.
    """

    loss: float
    weight: float
    others: float = -1.0
    staleness: int = 0
    clock: int = -1


@dataclass(frozen=True)
class StrategyOptions:
    """The options of a strategy.

    Attributes:
        access: the optimizer: the access method of the tables, or of the workers
            (`Traits.optimizer_on_workers`).
        staleness: the bound of ssp, in clocks.
        apply_at: the time when pushes of ssp change the rows: "arrival" or "round_end".
        prefix: the prefix of the tables' names, distinct for each model of a run.
        batch: the usual weight of a batch, the same on all workers.
        accesses: the optimizers of the buffers that do not have `access`.
        update: the function that updates the parameters from the gradients in place of `access`,
            such as a torch optimizer's `step`, where the optimizer runs on workers. Its argument is
            the numbers of the parameters without a gradient.
        workers: the number of workers.
        rank: the rank of this worker.
        start_clock: the clock of the resumed checkpoint; 0 for a new run.
        redundancy: the number of workers that get each block of the data.
        nonfinite: the treatment of a push with a NaN or an infinity, as in `TableSpec`.
        codec: the codec of pushes, or of what workers average among themselves; or codecs by layer
            (`strategies.layer_codecs`); "" for none.
        server_codec: the codec of the parameters that workers pull; "" for none.
        seed: the seed of the random bits of codecs without servers.
        settings: the settings of the strategy (`Strategy.Settings`), by name.
    """

    access: Access = field(default_factory=lambda: Access("sgd", {"lr": 0.01}))
    staleness: int = 0
    apply_at: str = "arrival"
    prefix: str = "params"
    batch: float = 1.0
    accesses: Mapping[str, Access] = field(default_factory=dict)
    update: Callable[[Numbers], object] | None = None
    workers: int = 1
    rank: int = 0
    start_clock: int = 0
    redundancy: int = 1
    nonfinite: Literal["reject", "zero", "allow"] = "reject"
    codec: str | Mapping[str, str] = ""
    server_codec: str = ""
    seed: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def codec_name(self) -> str:
        """The name of one of the codecs; empty if there are none."""
        given = [self.codec] if isinstance(self.codec, str) else [*self.codec.values()]
        return next((each for each in [*given, self.server_codec] if each not in ("", "none")), "")

    def access_of(self, buffer: str) -> Access:
        """Return the optimizer of a buffer."""
        return self.accesses.get(buffer, self.access)


@dataclass(frozen=True)
class Traits:
    """The properties of a strategy.

    Attributes:
        in_step: whether all workers take every exchange together. A worker without data then
            continues with weight 0, and evaluations after an exchange are equal on all workers.
        uses_servers: whether the parameters are in tables on servers.
        optimizer_on_workers: whether the optimizer (`StrategyOptions.access`) runs on the workers.
        sends_gradients: whether workers exchange gradients, and not only parameters.
        allows_redundancy: whether the workers' data may overlap (`--redundancy`).
        replicates_batches: whether groups of `redundancy` workers with consecutive ranks have the
            same batches.
        skips_closed_rounds: whether a worker skips the batches of rounds that closed without it.
        survives_worker_loss: whether training without servers continues when a worker is lost.
        idle_rounds: the number of rounds without batches at the end of an epoch, if in step.
        state: the place of the strategy's state, and whether a checkpoint has it; for the docs.
        late_workers: the treatment of late workers, by `--on-timeout`; for the docs.
    """

    in_step: bool = False
    uses_servers: bool = True
    optimizer_on_workers: bool = False
    sends_gradients: bool = True
    allows_redundancy: bool = False
    replicates_batches: bool = False
    skips_closed_rounds: bool = False
    survives_worker_loss: bool = False
    idle_rounds: int = 1
    state: str = ""
    late_workers: str = ""


class Strategy(ABC):
    """Base class of training strategies.

    A new one is a module with its settings, the class and `strategies.add`, and a line in
    `strategies/__init__.py`; or a class in a file of one's own.

    Args:
        options: the optimizer, its consistency, the tables' names and the strategy's settings.

    Raises:
        UnknownName: the strategy does not have a setting.
        InvalidValue: a setting is out of its range, or two contradict each other.

    Attributes:
        name: the name for `--strategy`.
        summary: a description in one line.
        source: the paper, with its section.
        traits: the properties that the loop, the options and the documentation rely on. Those of an
            instance depend on its settings.
        Settings: the class of the settings.
        options: the options as given.
        settings: the settings, with defaults for those that were not given.
        rates: by buffer, the learning rate in place of the optimizer's; for torch's lr_schedulers.
        clock: the number of this worker's exchanges in this run. Without servers the strategy
            itself counts them, for its checkpoints.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    source: ClassVar[str] = ""
    traits: Traits = Traits()
    Settings: ClassVar[type[StrategySettings]] = StrategySettings

    def __init__(self, options: StrategyOptions) -> None:
        self.options = options
        self.settings: Any = settings_of(self.name, self.Settings, options.settings)
        self.traits = self.traits_with(options.settings)
        self._check_codecs()
        self.rates: Mapping[str, float] = {}
        self.clock = 0

    def _check_codecs(self) -> None:
        codec, pulled = self.options.codec_name, self.options.server_codec
        if codec and self.options.nonfinite == "allow":
            raise InvalidValue(
                f"codec {codec!r} encodes finite values, so nonfinite is 'reject' or 'zero'"
            )
        if pulled not in ("", "none") and not self.traits.uses_servers:
            raise InvalidValue(
                f"strategy {self.name!r} has its parameters on workers, and server_codec is for "
                f"what workers pull from servers: leave out server_codec {pulled!r}"
            )

    @classmethod
    def traits_with(cls, settings: Mapping[str, Any]) -> Traits:
        """Return the traits of a strategy with these settings."""
        return cls.traits

    def check_losses(self, on_worker_loss: str, on_timeout: str) -> None:
        """Refuse options that a strategy without servers cannot follow for lost or late workers.

        Args:
            on_worker_loss: "stop", "drop", "replace" or "reassign", as `--on-worker-loss`.
            on_timeout: "wait", "ask" or "drop", as `--on-timeout`.

        Raises:
            InvalidValue: the strategy cannot follow one of them.
        """
        if self.traits.uses_servers:
            return
        possible = ("stop", "drop") if self.traits.survives_worker_loss else ("stop",)
        if on_worker_loss not in possible:
            raise InvalidValue(
                f"strategy {self.name!r} has its parameters on workers: on_worker_loss can be "
                f"{' or '.join(map(repr, possible))}, not {on_worker_loss!r}"
            )
        if on_timeout == "drop" and not self.traits.survives_worker_loss:
            raise InvalidValue(
                f"strategy {self.name!r} sums over all workers and cannot go on without one: "
                "on_timeout can be 'wait' or 'ask', not 'drop'"
            )

    @abstractmethod
    def tables(self, model: Model) -> list[TableSpec]:
        """Return the tables for the model's parameters; none without servers."""

    @abstractmethod
    def begin(self, model: Model, rank: int, clock: int = 0) -> Program:
        """Distribute rank 0's initial parameters; later joiners pull the current ones.

        Args:
            model: the worker's model.
            rank: the worker's rank; -1 for one that never writes.
            clock: the clock at which the worker joins.

        Without servers, in a run that continues another (`options.start_clock`), the model already
        has the parameters that the worker of this rank had.
        """

    @abstractmethod
    def step(self, model: Model, batch: Any) -> Generator[Any, Any, StepResult]:
        """Take one step; `batch` is None if this worker has no data left."""

    def period(self, clock: int) -> int:
        """Return the number of batches from exchange `clock` to the next; 0 for a whole epoch."""
        return 1

    def batches_at(self, clock: int) -> int:
        """Return a worker's number of batches up to `clock`, if workers are not in step."""
        return clock * self.period(0)

    def exchanges_after(self, epoch: int) -> bool:
        """Return whether workers in step flush and exchange at the end of this epoch."""
        return True

    def spread(self, model: Model, writes: bool) -> Program:
        """Replace the parameters of workers and tables by those of the worker that `writes`.

        `shoal.Optimizer.load_state_dict` calls it, only for strategies with
        `Traits.optimizer_on_workers`.
        """
        raise UsageError(f"strategy {self.name!r} has no `spread`: its state cannot be replaced")

    def rewrite(self, model: Model, written: Numbers, writes: bool) -> Program:
        """Handle parameters that the caller has written to since the last step.

        Strategies whose parameters are the workers' own need not do anything.

        Args:
            model: the worker's model, with the new values.
            written: by buffer, the numbers of the parameters that were written to.
            writes: whether this is the worker of the lowest rank.

        Raises:
            UsageError: servers have the parameters, and other workers may train them meanwhile.
        """
        yield from ()

    def flush(self, model: Model) -> Program:
        """Exchange the steps since the last exchange, at the end of an epoch."""
        yield from ()

    def owes(self) -> bool:
        """Return whether this worker has taken steps that are not exchanged yet."""
        return False

    def settle(self, model: Model) -> Program:
        """Bring the model up to date, for a caller that takes no further step."""
        yield from self.flush(model)

    def exact(self, model: Model) -> Program:
        """Read the parameters as servers have them, where a codec had rounded what was pulled."""
        yield from ()

    def end(self, model: Model) -> Program:
        """Read the final parameters into the model."""
        yield from ()

    def codec_figures(self) -> list[LayerFigures]:
        """Return what codecs made of one mean over the workers, by layer, and measure the next one.

        What is pushed to servers is the client's to measure.
        """
        return []

    def state_dict(self) -> dict[str, Any]:
        """Return the strategy's state on this worker: names to tensors, numbers or further states.

        Without servers, checkpoints have the model's parameters as well.
        """
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` has returned.

        Raises:
            InvalidValue: the strategy has no state, but `state` is not empty.
        """
        if state:
            raise InvalidValue(f"strategy {self.name!r} has no state, but got {list(state)}")


class StrategyRegistry(Registry[type[Strategy]]):
    """Strategies by name, or by the place to import them from: "module:Class", "FILE.py:Class"."""

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
    """Load the tensors of a state into `held`: in place, or as they are if `held` lacks them."""
    for name, values in state.items():
        held.setdefault(name, values).copy_(values)


def names_of(model: Model, numbers: Numbers) -> str:
    """Return the names of some parameters, for an error message."""
    found = [
        model.spans[buffer][number].name for buffer, some in numbers.items() for number in some
    ]
    return ", ".join(found[:3]) + (f" and {len(found) - 3} more" if len(found) > 3 else "")
