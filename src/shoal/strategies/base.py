"""What a strategy is.

A step is a generator: it yields what it needs exchanged (`protocol.requests.Exchange`, or
`collective.base.AllReduce`) and returns a `StepResult`. State lives in the strategy's attributes
and its `state_dict`, never in the generator's locals. Importable without torch, so that command
lines can list and check strategies at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from shoal.errors import InvalidValue
from shoal.keys import KeyRange
from shoal.protocol.requests import PullOp, PushOp
from shoal.registry import Registry
from shoal.tables.spec import Access, Consistency, TableSpec

if TYPE_CHECKING:
    from torch import Tensor

Program = Generator[Any, Any, Any]


class Model(Protocol):
    """What a strategy sees of a model: flat parameters and gradients, one pair per dtype.

    wires: each of `grads` with one element more behind it, for what travels along
    """

    values: dict[str, Tensor]
    grads: dict[str, Tensor]
    wires: dict[str, Tensor]

    def gradient(self, batch: Any) -> tuple[float, float]:
        """Fill `grads` with the batch's mean gradient; returns (loss, weight of the batch)."""
        ...


@dataclass(frozen=True)
class StepResult:
    """
    loss:       the batch's mean loss, or nan where this worker had no batch
    weight:     of the batch, such as its size; 0 without one
    others:     weight of the round over all workers, their sum or (allreduce) their mean; 0 where
                none had a batch, -1 where rounds are not shared
    staleness:  how many clocks the slowest worker was behind, as far as it is known
    """

    loss: float
    weight: float
    others: float = -1.0
    staleness: int = 0


@dataclass(frozen=True)
class StrategyOptions:
    """
    access:     the optimizer: a table's access method, or the workers' own under allreduce
    staleness:  the bound of ssp
    apply_at:    when ssp's pushes reach the rows: "arrival" or "round_end"
    prefix:     of the tables' names, distinct for each model of a run
    batch:      the weight that most batches have, and all workers' the same
    """

    access: Access = field(default_factory=lambda: Access("sgd", {"lr": 0.01}))
    staleness: int = 0
    apply_at: str = "arrival"
    prefix: str = "params"
    batch: float = 1.0


class Strategy(ABC):
    """
    in_step:          whether all workers take every step together; then one that is out of data
                      goes on with weight 0, and evaluations are equal on all workers
    uses_servers:     whether parameters live in tables
    takes_copies:     whether splits may overlap (`--redundancy`)
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    in_step: ClassVar[bool] = False
    uses_servers: ClassVar[bool] = True
    takes_copies: ClassVar[bool] = False

    def __init__(self, options: StrategyOptions) -> None:
        self.options = options

    @abstractmethod
    def tables(self, model: Model) -> list[TableSpec]:
        """The tables that the model's parameters live in."""

    @abstractmethod
    def begin(self, model: Model, rank: int, clock: int = 0) -> Program:
        """Agree on the first parameters: rank 0's. After clock 0 they are there."""

    @abstractmethod
    def step(self, model: Model, batch: Any) -> Generator[Any, Any, StepResult]:
        """One step; `batch` is None where this worker has none left."""

    def end(self, model: Model) -> Program:
        """Leave the final parameters in the model."""
        yield from ()

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            raise InvalidValue(f"strategy {self.name!r} has no state, and was given {list(state)}")


strategies: Registry[type[Strategy]] = Registry("strategy")


def table_specs(
    model: Model, options: StrategyOptions, consistency: Consistency
) -> list[TableSpec]:
    """One table per dtype of the model."""
    return [
        TableSpec(
            f"{options.prefix}.{dtype}",
            len(values),
            (),
            dtype,
            access=options.access,
            consistency=consistency,
        )
        for dtype, values in sorted(model.values.items())
    ]


def byte_view(tensor: Tensor) -> memoryview:
    """A flat tensor's own bytes."""
    import torch

    view: memoryview = tensor.detach().view(torch.uint8).numpy().data
    return view


class TableOps:
    """A model's tables as push and pull operations, made once: its buffers do not move."""

    def __init__(self, model: Model, prefix: str) -> None:
        self.pushes = tuple(
            PushOp(f"{prefix}.{dtype}", KeyRange(0, len(grads)), byte_view(grads))
            for dtype, grads in sorted(model.grads.items())
        )
        self.pulls = tuple(
            PullOp(f"{prefix}.{dtype}", KeyRange(0, len(values)), byte_view(values))
            for dtype, values in sorted(model.values.items())
        )
        self.assigns = tuple(
            PushOp(f"{prefix}.{dtype}", KeyRange(0, len(values)), byte_view(values))
            for dtype, values in sorted(model.values.items())
        )
