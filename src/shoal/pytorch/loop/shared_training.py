"""SharedTraining: what all workers that train a model do together, at the beginning and the end."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from shoal.client.context import Context
from shoal.collective.base import AllReduce
from shoal.errors import UsageError
from shoal.protocol.requests import DeclareTable, Start, Wait
from shoal.pytorch.loop.agreement import agree, check_tables, described
from shoal.pytorch.loop.loop_model import LoopModel
from shoal.pytorch.loop.module_state import ModuleState
from shoal.pytorch.optimizer_state import StateOnServers, StateOnWorkers
from shoal.strategies.base import Strategy
from shoal.strategies.reduction import AveragesGradients


@dataclass(frozen=True)
class SharedTraining:
    """The programs that all workers run together, each at the same point of its script.

    Attributes:
        context: the membership of this worker in the run.
        inner: the wrapped torch optimizer.
        model: the parameters that the optimizer trains.
        strategy: the strategy by which workers exchange them.
        state: the state of the optimizer, on servers or on workers.
        others: the module's other tensors.
    """

    context: Context
    inner: torch.optim.Optimizer
    model: LoopModel
    strategy: Strategy
    state: StateOnServers | StateOnWorkers
    others: ModuleState

    @property
    def in_step(self) -> bool:
        """Whether all workers take every exchange together, without servers."""
        return bool(self.strategy.traits.in_step and not self.strategy.traits.uses_servers)

    def begin(self) -> Generator[Any, Any, None]:
        """Compare descriptions, declare the tables, and spread the parameters and the state."""
        context, client = self.context, self.context.client
        if not self.strategy.traits.uses_servers:
            name, settings = self.strategy.name, self.strategy.options.settings
            told = described(self.inner, self.model, name, settings)
            yield from agree(told, client.rank, self._ranks())
        specs = self.strategy.tables(self.model)
        declared = []
        for spec in specs:  # all at once, in one view
            declared.append((yield Start(DeclareTable(spec))))
        for ticket in declared:
            yield Wait(ticket)
        writer = self._writer(spec.name for spec in specs)
        clock = client.clock if writer < 0 else 0
        yield from self.state.begin(writer, clock)
        names, prefix = [spec.name for spec in specs], f"{self.strategy.options.prefix}."
        present = [spec.name for spec in client.view.tables if spec.name.startswith(prefix)]
        check_tables(names, present if specs else ())  # all workers have declared theirs by now
        if not context.tables_before:  # otherwise the others began long ago
            yield from self.others.begin(self._writes)

    def settle(self) -> Generator[Any, Any, None]:
        """Exchange the remaining steps, and make parameters and buffers the same on all workers."""
        yield from self.strategy.settle(self.model)
        if self.in_step:
            steps = yield from self.accompany()
            if self.strategy.traits.sends_gradients:
                yield from self._catch_up(steps)
        yield from self.strategy.exact(self.model)
        yield from self.others.unify(self._writes)

    def averaged(self, loss: torch.Tensor, weight: float) -> Generator[Any, Any, float]:
        """Replace the gradients by their mean over the workers; return the mean of the loss."""
        strategy = self.strategy
        if not isinstance(strategy, AveragesGradients):
            raise UsageError(f"strategy {strategy.name!r} has no `average`: use 'allreduce'")
        self.model.collect()
        mean = yield from strategy.average(self.model, weight)
        self.model.attach_grads(mean.absent)
        total = loss * weight
        yield AllReduce(total, mean=True)
        return float(total) / mean.weight if mean.weight else float(loss)

    def accompany(self) -> Generator[Any, Any, int]:
        """Take part in the others' steps without data, until all workers have come here.

        Return the number of steps that have changed this worker's parameters.
        """
        steps = 0
        while True:
            result = yield from self.strategy.step(self.model, None)
            if not result.others:
                return steps
            steps += 1

    def _catch_up(self, steps: int) -> Generator[Any, Any, None]:
        """Take the state of a worker that took all steps itself, if any worker did not.

        A worker without data may have a rate of its own, because its scheduler stands still.
        """
        ranks, rank = self._ranks(), self.context.client.rank
        told = torch.zeros(len(ranks), dtype=torch.int64)
        told[ranks.index(rank)] = steps
        yield AllReduce(told)
        if bool(told.any()):
            yield from self.state.write(self.inner, rank == ranks[int(told.argmin())])

    def _ranks(self) -> list[int]:
        client = self.context.client
        return sorted(member.rank for member in client.view.group(client.options.group))

    @property
    def _writes(self) -> bool:
        return self.context.client.rank == self.context.client.first_rank

    def _writer(self, tables: Iterable[str]) -> int:
        """Return the rank with which this worker begins: 0 writes parameters, -1 never does."""
        context, client, tables = self.context, self.context.client, list(tables)
        if any(client.table(name).group != client.options.group for name in tables):
            return -1  # another group trains these tables
        if any(client.table(name).name in context.tables_before for name in tables):
            return -1  # this worker replaces another, and they are trained already
        if not context.resumed_at:
            return context.rank
        if not self.strategy.traits.uses_servers:
            raise UsageError(
                f"strategy {self.strategy.name!r} keeps its parameters on workers, so that the "
                "checkpoint from which this run resumes has none; start a new run"
            )
        absent = sorted(set(tables) - context.resumed_tables)
        if absent:
            raise UsageError(
                f"the checkpoint from which this run resumes has no table {', '.join(absent)} "
                f"(known: {', '.join(sorted(context.resumed_tables)) or 'none'}); wrap the same "
                "models in the same order as before"
            )
        return -1
