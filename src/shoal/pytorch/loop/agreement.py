"""Agreement: workers that train one model describe it alike, or are told how they differ."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from hashlib import blake2b
from itertools import zip_longest
from typing import Any

import torch

from shoal.collective.base import AllReduce
from shoal.errors import InvalidValue
from shoal.pytorch.flat_parameters import FlatParams
from shoal.pytorch.spreading import spread

Described = Sequence[tuple[str, str]]  # (property, value)


def described(
    inner: torch.optim.Optimizer, flat: FlatParams, strategy: str, settings: Mapping[str, Any]
) -> Described:
    """Return what has to be alike on all workers: strategy, parameters, optimizer and options."""
    found = [("strategy", f"{strategy} {dict(settings)}")]
    for buffer, spans in sorted(flat.spans.items()):
        for number, span in enumerate(spans):
            found.append((f"place {number} of {buffer}", span.name or f"row {span.start}"))
    found.append(("the optimizer", type(inner).__name__))
    for number, group in enumerate(inner.param_groups):
        for name, value in sorted(group.items()):
            if name not in ("params", "param_names"):
                found.append((f"{name} of group {number}", repr(_plain(value))))
    return found


def agree(told: Described, rank: int, ranks: Sequence[int]) -> Generator[Any, Any, None]:
    """Compare the descriptions of all workers; all of them take part.

    Args:
        told: the description of this worker.
        rank: the rank of this worker.
        ranks: the ranks of all workers, in order.

    Raises:
        InvalidValue: two workers differ; raised on all workers.
    """
    digest = blake2b(repr(told).encode(), digest_size=8).digest()
    digests = torch.zeros(len(ranks), dtype=torch.int64)
    digests[ranks.index(rank)] = int.from_bytes(digest, "little") >> 1
    yield AllReduce(digests)
    first = ranks[0]
    other = next((r for r, each in zip(ranks, digests, strict=True) if each != digests[0]), first)
    if other == first:
        return
    one = yield from spread([list(each) for each in told], rank == first)
    two = yield from spread([list(each) for each in told], rank == other)
    raise InvalidValue(
        f"workers {first} and {other} do not train the same: {difference(one, two, first, other)}. "
        "All workers have to make the same model and the same optimizer"
    )


def check_tables(names: Sequence[str], present: Sequence[str]) -> None:
    """Compare this worker's tables of a model with those that the workers have declared together.

    Args:
        names: the tables of this worker.
        present: the tables of this model in the run.

    Raises:
        InvalidValue: another worker has declared other tables.
    """
    if more := sorted({*present} - {*names}):
        raise InvalidValue(
            "workers do not train the same: this one has the tables "
            f"{', '.join(sorted(names))}, and another one {', '.join(more)} (there is one for each "
            "dtype and parameter group). All workers have to make the same model and optimizer"
        )


def difference(one: Described, two: Described, first: int, other: int) -> str:
    """Return the first difference between the descriptions of two workers."""
    missing = ("", "missing")
    for mine, theirs in zip_longest(one, two, fillvalue=missing):
        if tuple(mine) != tuple(theirs):
            what = mine[0] or theirs[0]
            said = theirs[1] if theirs[0] in ("", what) else f"{theirs[0]} {theirs[1]}"
            return f"{what} is {mine[1]} on worker {first}, and {said} on worker {other}"
    return "in what they describe"


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, torch.Tensor) else value
