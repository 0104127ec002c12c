"""Saved states: checks of the tensors of a file before a shard is restored from them.

Checksums show that a file is as it was written. They do not show that it was written correctly, and
loops over rows trust lengths, places and counts: a wrong one would read other memory, or loop
without an end.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from shoal.keys import KeyRange
from shoal.tables.custom.calls import add_up
from shoal.tables.sizes import USES_MOST
from shoal.tables.spec import TableSpec

COUNT_MOST = 1 << 62  # updates or requests; the count still grows after that
State = Mapping[str, Tensor]


def problem_of(spec: TableSpec, rows: KeyRange, state: State) -> str:
    """Return the problem of the state of a shard with these rows or slots; "" if it has none."""
    if spec.kind == "dense":
        return _dense_problem(spec, rows, state)
    if spec.kind == "custom":
        return _custom_problem(state)
    return _sparse_problem(spec, rows, state) or _bounded_problem(state)


def problem_of_changes(state: State, changes: State) -> str:
    """Return the problem of later changes of a state (`snapshots.overlaid`); "" if they have none.

    Their places have to be those of rows of the state, or follow them without a gap.
    """
    places = changes.get("places")
    wrong = _shape_problem("places", places, torch.int64, (None,))
    if wrong or places is None:
        return wrong
    for name in ("keys", "records"):
        some, before = changes.get(name), state.get(name)
        if before is None:
            return f"what it changes has no {name}"
        wrong = _shape_problem(name, some, before.dtype, (len(places), *before.shape[1:]))
        if wrong:
            return wrong
    before_count, new = len(state["keys"]), places[places >= len(state["keys"])]
    if len(places) and int(places.min()) < 0:
        return "a place is negative"
    if not torch.equal(new, torch.arange(before_count, before_count + len(new))):
        return "the places of new rows have gaps"
    return ""


# ---------------------------------------------------------------------------- kinds of tables


def _dense_problem(spec: TableSpec, rows: KeyRange, state: State) -> str:
    shape, dtype = (len(rows), spec.width), getattr(torch, spec.dtype)
    slots = [name for name in state if name.startswith("slot.") or name == "references"]
    for name in ("rows", *slots):
        wrong = _shape_problem(name, state.get(name), dtype, shape)
        if wrong:
            return wrong
    if "references" in state:
        names = len([part for part in spec.fragments() if rows.covers(part)])
        wrong = _shape_problem("names", state.get("names"), torch.int64, (names,))
    return wrong or _count_problem("updates", state.get("updates"))


def _sparse_problem(spec: TableSpec, rows: KeyRange, state: State) -> str:
    from shoal.tables.sparse.distinct import outside

    keys, records = state.get("keys"), state.get("records")
    wrong = _shape_problem("keys", keys, torch.int64, (None,))
    if wrong or keys is None:
        return wrong
    wrong = _shape_problem("records", records, getattr(torch, spec.dtype), (len(keys), None))
    if wrong or records is None:
        return wrong
    if records.shape[1] < spec.width:
        return f"records have {records.shape[1]} elements, fewer than a row's {spec.width}"
    if outside(keys.contiguous().numpy().view("uint64"), rows.start, rows.stop) >= 0:
        return f"a key is in none of the slots {rows}"
    return _count_problem("updates", state.get("updates"))


def _bounded_problem(state: State) -> str:
    uses, drawn = state.get("uses"), state.get("drawn")
    if uses is None and drawn is None:  # the saved table had no bound
        return ""
    wrong = _shape_problem("uses", uses, torch.int64, (len(state["keys"]), 2))
    wrong = wrong or _shape_problem("drawn", drawn, torch.int64, (1,))
    if wrong or uses is None or drawn is None:
        return wrong
    if int(drawn[0]) == 0:  # xorshift would draw 0 for ever
        return "drawn is 0, which no generator's state is"
    for column, most in ((uses[:, 0], USES_MOST), (uses[:, 1], COUNT_MOST)):
        if len(column) and not 0 <= int(column.min()) <= int(column.max()) <= most:
            return "uses are out of their range"
    return ""


def _custom_problem(state: State) -> str:
    keys, values, lens = (state.get(name) for name in ("keys", "values", "lens"))
    wrong = _shape_problem("keys", keys, torch.int64, (None,))
    if wrong or keys is None:
        return wrong
    wrong = _shape_problem("lens", lens, torch.int64, (len(keys),))
    if wrong or lens is None:
        return wrong
    if values is None or values.dim() != 1 or values.dtype == torch.bfloat16:
        return "it has no list of values that numpy has a type for"
    if not add_up(lens.numpy(), len(values)):
        return f"lens do not add up to the number of values, {len(values)}"
    return ""


# ---------------------------------------------------------------------------- tensors


def _shape_problem(
    name: str, found: Tensor | None, dtype: torch.dtype, shape: tuple[int | None, ...]
) -> str:
    """Return the problem of a tensor; "" if it has this dtype and shape (None: any length)."""
    if found is None:
        return f"it has no {name}"
    fits = len(found.shape) == len(shape) and all(
        wanted in (None, size) for size, wanted in zip(found.shape, shape, strict=True)
    )
    if fits and found.dtype == dtype:
        return ""
    sides = ", ".join("any" if side is None else str(side) for side in shape)
    said = f"{name} has shape {tuple(found.shape)} of {found.dtype}"
    return f"{said}, where shape ({sides}) of {dtype} is expected"


def _count_problem(name: str, found: Tensor | None) -> str:
    """Return the problem of a tensor of one or more numbers of updates; "" if it has none."""
    wrong = _shape_problem(name, found, torch.int64, (None,))
    if wrong or found is None:
        return wrong
    if not len(found) or not 0 <= int(found.min()) <= int(found.max()) <= COUNT_MOST:
        return f"{name} are no counts"
    return ""
