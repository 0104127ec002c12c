"""Merging: the weighted mean or sum of a round's pushes, on rows that all of them cover."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from shoal.keys import KeyRange
from shoal.tables.spec import TableSpec
from shoal.tables.staging import Merged, StagedRows

Contribution = tuple[float, float | None, StagedRows]  # weight, learning rate, push


def merge_whole(spec: TableSpec, part: KeyRange, named: Sequence[Contribution]) -> Merged:
    factors = spec.factors([weight for weight, _, _ in named])
    merged: Tensor | None = None
    for factor, (_, _, staged) in zip(factors, named, strict=True):
        update = rows_of(staged, part)
        if merged is None:  # the first one's staging memory is the accumulator
            merged = update if factor == 1 else update.mul_(factor)
        else:
            merged.add_(update, alpha=factor)
    assert merged is not None
    return Merged(part, None, merged, named[0][1])


def merge_some(spec: TableSpec, part: KeyRange, named: Sequence[Contribution]) -> Merged:
    factors = spec.factors([weight for weight, _, _ in named])
    merged = torch.zeros((len(part), spec.width), dtype=named[0][2].values.dtype)
    carried = torch.zeros(len(part), dtype=torch.bool)
    for factor, (_, _, staged) in zip(factors, named, strict=True):
        values = staged.values
        if staged.keys is None:
            merged.add_(rows_of(staged, part), alpha=factor)
            carried.fill_(True)
        else:
            inside = (staged.keys >= part.start) & (staged.keys < part.stop)
            places = staged.keys[inside] - part.start
            merged.index_add_(0, places, values[inside], alpha=factor)
            carried[places] = True
    if bool(carried.all()):
        return Merged(part, None, merged, named[0][1])
    chosen = carried.nonzero().view(-1)
    return Merged(part, chosen + part.start, merged[chosen], named[0][1])


def rows_of(staged: StagedRows, part: KeyRange) -> Tensor:
    """The values of a push of whole rows for `part`."""
    start = part.start - staged.rows.start
    if not start and len(part) == len(staged.rows):
        return staged.values
    return staged.values[start : start + len(part)]
