"""`shoal bench train`: steps of two workers, each with its own batch of 64.

The same network is trained by torch's DistributedDataParallel over gloo, by `allreduce` around our
ring, by `p2p` between neighbours, and by `sync` through one server, by turns and from the same
parameters and batches, so that their losses can be compared. All keep freed memory
(`node.memory`). The ceiling is the same step without any exchange. Beside the times is the
processor time of a step, of both workers, the server and the scheduler together.

    118k    784-128-128-10        (118,282 parameters)
    24.4M   784-4560-4560-10   (24,423,370 parameters)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import cycle, pairwise
from typing import Any

import torch
from torch import Tensor, nn

from shoal.apps.bench.clusters import first_of_two, second_of_two
from shoal.apps.bench.processor_time import ProcessorTime
from shoal.apps.bench.rows import (
    Batches,
    During,
    Row,
    beside,
    by_turns,
    latency,
    microseconds,
)
from shoal.client.client import Client
from shoal.protocol.requests import DeclareTable
from shoal.pytorch.model import LossModel
from shoal.storage.run_folder import RunFolder
from shoal.strategies import StrategyOptions, strategies
from shoal.tables.spec import Access

SIZES = {"118k": (128, 30, 20), "24.4M": (4560, 2, 2)}  # hidden width, calls a batch, warm-up
STRATEGIES = ("allreduce", "p2p", "sync")
INPUTS, CLASSES, BATCH = 784, 10, 64
BATCHES = 8
LR = 0.05

COUNT = len(SIZES) * len(STRATEGIES)
ROUNDS = 7


def rows(folder: RunFolder, rounds: int) -> Iterator[Row]:
    with first_of_two(folder, 1, f"{__name__}:partner", rounds) as (processes, client):
        others = [processes.pid(name) for name in ("scheduler", "server-0", "partner")]
        for size, (_, calls, _) in SIZES.items():
            time = ProcessorTime([os.getpid(), *others])
            sides, (alone, ddp, *ours) = measured(client, size, rounds, time.during)
            cpu = [1e6 * time.seconds[side] / calls / rounds for side in range(len(sides))]
            for at, (name, batches) in enumerate(zip(STRATEGIES, ours, strict=True), 2):
                more = {"loss_gap": _gap(sides[at], sides[1]), "cpu": cpu[at], "peer_cpu": cpu[1]}
                row = latency(f"{name} {size}", batches, alone, **more)
                yield beside(row, "DDP, gloo", microseconds(ddp))


def partner(scheduler: str, rendezvous: str, rounds: int) -> None:
    """Run the other worker."""
    with second_of_two(scheduler, rendezvous) as client:
        for size in SIZES:
            measured(client, size, rounds)


def measured(
    client: Client, size: str, rounds: int, during: During = nullcontext
) -> tuple[list[Trained], list[Batches]]:
    """Measure the step alone, DDP's and those of our strategies; return the sides and batches."""
    hidden, calls, warm_up = SIZES[size]
    sides = [
        Trained(client.rank, plain(network(hidden))),
        Trained(client.rank, plain(nn.parallel.DistributedDataParallel(network(hidden)))),
        *(Trained(client.rank, ours(client, name, size, network(hidden))) for name in STRATEGIES),
    ]
    cores = os.sched_getaffinity(0)
    return sides, by_turns([(side.step, cores) for side in sides], calls, rounds, warm_up, during)


Step = Callable[[tuple[Tensor, Tensor]], float]


class Trained:
    """A network in training, and its losses so far."""

    def __init__(self, rank: int, step: Step) -> None:
        random = torch.Generator().manual_seed(rank)
        self._batches = cycle(
            (
                torch.randn(BATCH, INPUTS, generator=random),
                torch.randint(CLASSES, (BATCH,), generator=random),
            )
            for _ in range(BATCHES)
        )
        self._step = step
        self.losses: list[float] = []

    def step(self) -> None:
        self.losses.append(self._step(next(self._batches)))


def network(hidden: int) -> nn.Module:
    """Return a new network, the same for every side."""
    torch.manual_seed(0)
    widths = (INPUTS, hidden, hidden, CLASSES)
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def plain(module: nn.Module) -> Step:
    """Return a training step of torch alone."""
    optimizer = torch.optim.SGD(module.parameters(), lr=LR)

    def step(batch: tuple[Tensor, Tensor]) -> float:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(module(batch[0]), batch[1])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.item()

    return step


def ours(client: Client, strategy: str, size: str, module: nn.Module) -> Step:
    model = LossModel(module)
    options = StrategyOptions(
        Access("sgd", {"lr": LR}),
        prefix=f"{strategy}.{size}",
        batch=float(BATCH),
        workers=2,
        rank=client.rank,
    )
    chosen = strategies[strategy](options)

    def begin() -> Any:
        for spec in chosen.tables(model):
            yield DeclareTable(spec)
        yield from chosen.begin(model, client.rank)

    client.drive(begin())
    return lambda batch: client.drive(chosen.step(model, batch)).loss


def _gap(one: Trained, other: Trained) -> float:
    """Return the largest difference between two sides' losses at the same step."""
    return max(abs(a - b) for a, b in zip(one.losses, other.losses, strict=True))
