"""shoal.Optimizer: an existing training loop becomes distributed by wrapping its optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import nan
from typing import Any, overload

import torch
from torch import Tensor

from shoal.client.context import Context, current
from shoal.errors import InvalidValue, UsageError
from shoal.protocol.requests import DeclareTable
from shoal.pytorch.flat_parameters import FlatParams
from shoal.strategies import StrategyOptions, strategies
from shoal.tables.from_torch import from_torch


class _Gradients:
    """The `Model` of a loop that is not ours: its gradients are there when `step` is called."""

    def __init__(self, flat: FlatParams) -> None:
        self.values = flat.values
        self.grads = flat.grads
        self.wires = flat.wires
        self.weight = 1.0

    def gradient(self, batch: object) -> tuple[float, float]:
        return nan, self.weight


class Optimizer(torch.optim.Optimizer):
    """Exchanges gradients and parameters with the run's other workers at every `step`.

    Where the strategy runs on servers the optimizer does too: its class and hyper-parameters
    become the tables' access method, and `inner` itself only keeps them. Its learning rate is sent
    with each push, so torch's lr_schedulers work on this object as on any other.

    inner:     SGD, Adagrad, RMSprop, Adadelta, Adam or AdamW; others are refused by name
    strategy:  "sync", "ssp", "asgd" or "allreduce"
    staleness: the bound of ssp

    Parameters and gradients become views of flat buffers. All workers start from rank 0's
    parameters, or from a checkpoint's where the run goes on with one. Call
    `step(weight=len(batch))` where batches differ in size; a worker whose data end first just ends,
    and the others go on.

    `step` refuses what the servers would not hear of. InvalidValue: a hyper-parameter other than
    the rate has changed, or the groups' rates differ. UsageError: the parameters were written to
    since the last step (load weights first, then wrap the optimizer).

    >>> optimizer = shoal.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1))  # doctest: +SKIP
    """

    def __init__(
        self,
        inner: torch.optim.Optimizer,
        strategy: str = "sync",
        *,
        staleness: int = 0,
        context: Context | None = None,
    ) -> None:
        access = from_torch(inner)
        self._context = context or current()
        self._inner = inner
        self._wrapped = False
        super().__init__(inner.param_groups, dict(inner.defaults))
        self.param_groups = inner.param_groups  # one list, so that schedulers of either see both
        self._flat = FlatParams(p for group in inner.param_groups for p in group["params"])
        self._model = _Gradients(self._flat)
        prefix = f"params{self._context.models or ''}"
        self._context.models += 1
        self._strategy: Any = strategies[strategy](
            StrategyOptions(access, staleness=staleness, prefix=prefix)
        )
        client = self._context.client
        client.drive(self._begin())
        self._settings = self._present_settings()
        self._version = self._flat.version
        self._wrapped = True

    def _begin(self) -> Any:
        specs = self._strategy.tables(self._model)
        for spec in specs:
            yield DeclareTable(spec)
        writer = self._writer(spec.name for spec in specs)
        clock = self._context.client.clock if writer < 0 else 0
        yield from self._strategy.begin(self._model, writer, clock)

    def _writer(self, tables: Iterable[str]) -> int:
        """This worker's rank, of which the first writes the parameters; -1 where they are there."""
        context, tables = self._context, list(tables)
        group = context.client.options.group
        if any(context.client.table(name).group != group for name in tables):
            return -1  # others train them
        if any(context.client.table(name).name in context.tables_before for name in tables):
            return -1  # this worker replaces another, and they are trained already
        if not context.resumed_at:
            return context.rank
        if not self._strategy.uses_servers:
            raise UsageError(
                f"strategy {self._strategy.name!r} has its parameters on no server: the checkpoint "
                "that this run goes on with has none of them"
            )
        absent = sorted(set(tables) - context.resumed_tables)
        if absent:
            raise UsageError(
                f"the checkpoint that this run goes on with has no table {', '.join(absent)} (it "
                f"has: {', '.join(sorted(context.resumed_tables)) or 'none'})"
            )
        return -1

    @overload
    def step(self, closure: None = None, *, weight: float = 1.0) -> None: ...
    @overload
    def step(self, closure: Callable[[], float], *, weight: float = 1.0) -> float: ...
    def step(
        self, closure: Callable[[], float] | None = None, *, weight: float = 1.0
    ) -> float | None:
        """Exchange the gradients in `.grad`; afterwards the parameters are the cluster's.

        weight: of this worker's gradient in the round's mean, such as its batch size
        """
        loss: float | None = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._check_unchanged()
        self._flat.attach_grads()
        self._model.weight = weight
        self._strategy.lr = float(self.param_groups[0]["lr"])
        with torch.no_grad():
            self._context.client.drive(self._strategy.step(self._model, ()))
        self._version = self._flat.version
        return loss

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused: the tables are as large as the parameters that were wrapped."""
        if self._wrapped:
            raise UsageError("parameters cannot be added; give them to the optimizer first")
        super().add_param_group(param_group)

    def _present_settings(self) -> list[dict[str, Any]]:
        """All groups' hyper-parameters but the rate, which is sent with every push."""
        return [
            {name: group[name] for name in self._inner.defaults if name != "lr"}
            for group in self.param_groups
        ]

    def _check_unchanged(self) -> None:
        """What the servers do not hear of must not change without a word."""
        if len({float(group["lr"]) for group in self.param_groups}) > 1:
            raise InvalidValue("the groups' learning rates differ, and a table has one")
        for before, now in zip(self._settings, self._present_settings(), strict=True):
            for name, value in now.items():
                if value != before[name]:
                    raise InvalidValue(
                        f"{name} was {before[name]!r} when the optimizer was wrapped and is "
                        f"{value!r} now; only the learning rate may change (a scheduler that "
                        "cycles the momentum as well takes cycle_momentum=False)"
                    )
        if self._strategy.uses_servers and self._flat.version != self._version:
            raise UsageError(
                "the parameters were written to since the last step, and the servers' would "
                "replace them; load weights before the optimizer is wrapped"
            )

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Zero the flat gradients; they stay views, so that `backward` adds into them."""
        self._flat.zero_grads()

    def state_dict(self) -> dict[str, Any]:
        """The groups' hyper-parameters and the strategy's state; server tables are not in it."""
        groups = [
            {key: value for key, value in group.items() if key != "params"}
            for group in self.param_groups
        ]
        return {"param_groups": groups, "strategy": self._strategy.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for group, saved in zip(self.param_groups, state_dict["param_groups"], strict=True):
            group.update(saved)
        self._strategy.load_state_dict(state_dict["strategy"])

    @property
    def flat(self) -> dict[str, Tensor]:
        """The flat parameters by dtype."""
        return self._flat.values
