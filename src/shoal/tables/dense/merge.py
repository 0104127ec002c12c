"""Merging: the mean, sum, median or trimmed mean of a round's pushes, on rows that each covers.

The median of an even number is the mean of the two in the middle. See Yin et al. 2018,
"Byzantine-Robust Distributed Learning", section 4 (coordinate-wise median and trimmed mean).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from shoal.keys import KeyRange
from shoal.tables.dense.gradient_method import MERGED, pool
from shoal.tables.spec import TableSpec
from shoal.tables.staging import Merged, StagedRows

Contribution = tuple[float, float | None, StagedRows]  # weight, learning rate, push


def merge_whole(spec: TableSpec, part: KeyRange, named: Sequence[Contribution]) -> Merged:
    """Merge pushes of all of these rows, in the memory of the first one if it is this server's.

    If the first one is in its sender's memory, the result may be in this thread's scratch memory,
    until the next merge.
    """
    updates = [rows_of(staged, part) for _, _, staged in named]
    first, *others = updates
    borrowed = named[0][2].loan is not None
    if spec.robust:
        middle = _middle(spec, updates)
        return Merged(part, None, middle if borrowed else first.copy_(middle), named[0][1])
    factor, *factors = spec.factors([weight for weight, _, _ in named])
    merged = first
    if factor != 1:
        merged = torch.mul(first, factor, out=pool.like(first, MERGED) if borrowed else first)
    elif borrowed and others:
        merged = pool.like(first, MERGED).copy_(first)
    for update, weighed in zip(others, factors, strict=True):
        merged.add_(update, alpha=weighed)
    return Merged(part, None, merged, named[0][1])


def merge_some(spec: TableSpec, part: KeyRange, named: Sequence[Contribution]) -> Merged:
    factors = [1.0] * len(named) if spec.robust else spec.factors([w for w, _, _ in named])
    size, dtype = (len(part), spec.width), named[0][2].values.dtype
    merged = torch.zeros(size, dtype=dtype)
    alone = [torch.zeros(size, dtype=dtype) if spec.robust else merged for _ in named]
    carried = torch.zeros(len(part), dtype=torch.bool)
    for factor, (_, _, staged), into in zip(factors, named, alone, strict=True):
        values = staged.values
        if staged.keys is None:
            into.add_(rows_of(staged, part), alpha=factor)
            carried.fill_(True)
        else:
            inside = (staged.keys >= part.start) & (staged.keys < part.stop)
            places = staged.keys[inside] - part.start
            into.index_add_(0, places, values[inside], alpha=factor)
            carried[places] = True
    if spec.robust:
        merged = _middle(spec, alone)
    if bool(carried.all()):
        return Merged(part, None, merged, named[0][1])
    chosen = carried.nonzero().view(-1)
    return Merged(part, chosen + part.start, merged[chosen], named[0][1])


def _middle(spec: TableSpec, updates: Sequence[Tensor]) -> Tensor:
    """Return the mean, element by element, of the values that are not among the outliers."""
    out = spec.outliers(len(updates))
    ordered = torch.stack(list(updates)).sort(dim=0).values
    return ordered[out : len(updates) - out].mean(dim=0)


def rows_of(staged: StagedRows, part: KeyRange) -> Tensor:
    """Return the values of a push of whole rows for `part`."""
    start = part.start - staged.rows.start
    if not start and len(part) == len(staged.rows):
        return staged.values
    return staged.values[start : start + len(part)]
