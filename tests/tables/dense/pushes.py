"""Pushes to small dense tables: as a worker names them, and as bytes in staging memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from shoal.keys import KeyRange
from shoal.tables.consistency import asp, bsp
from shoal.tables.dense.shard import DenseShard
from shoal.tables.init import Init
from shoal.tables.spec import Access, Span, TableSpec
from shoal.tables.staging import StagedRows

WIDTH = 2


class Push(NamedTuple):
    """What one worker pushes: the named rows, the carried keys (None: all), their values."""

    rows: KeyRange
    keys: list[int] | None
    values: Sequence[Sequence[float]]
    weight: float = 1.0
    lr: float | None = None

    @property
    def carried(self) -> dict[int, npt.NDArray[np.float64]]:
        keys = range(self.rows.start, self.rows.stop) if self.keys is None else self.keys
        return {key: np.array(row, float) for key, row in zip(keys, self.values, strict=True)}


def one(rows: KeyRange, value: float, **more: Any) -> Push:
    """A push of all of these rows."""
    return Push(rows, None, [[value] * WIDTH] * len(rows), **more)


def some(rows: KeyRange, keys: list[int], value: float, **more: Any) -> Push:
    """A push that names these rows and carries some of them."""
    return Push(rows, keys, [[value] * WIDTH] * len(keys), **more)


def table(
    rows: int = 10,
    fragment_rows: int = 4,
    access: Access | str = "sum",
    dtype: str = "float32",
    merge: Literal["mean", "sum", "median", "trimmed_mean"] = "sum",
    row_shape: tuple[int, ...] = (WIDTH,),
    trim: float = 0.0,
    spans: Sequence[int] = (),
) -> TableSpec:
    """A table whose rows begin as ones."""
    robust = merge in ("median", "trimmed_mean")
    if merge == "trimmed_mean":
        trim = trim or 0.26
    return TableSpec(
        "t",
        rows,
        row_shape,
        dtype,
        Init("constant", 1.0),
        Access(access) if isinstance(access, str) else access,
        consistency=bsp() if robust else asp(),
        merge=merge,
        fragment_rows=fragment_rows,
        trim=trim,
        spans=tuple(map(Span, spans)),
    )


def stage(shard: DenseShard, push: Push) -> StagedRows:
    """A push as it comes in: into the views that the shard offers, byte by byte."""
    staged = shard.stage(push.rows, -1 if push.keys is None else len(push.keys))
    payload = [] if push.keys is None else [np.array(push.keys, np.int64).tobytes()]
    if push.values:
        payload.append(encoded(shard, push.values))
    for view, data in zip(staged.views, payload, strict=True):
        assert view.nbytes == len(data)
        view[:] = data
    assert staged.problem() == ""
    return staged


def staged_keys(shard: DenseShard, rows: KeyRange, keys: list[int]) -> StagedRows:
    """The keys of a pull, as they come in."""
    staged = shard.stage_keys(rows, len(keys))
    (view,) = staged.views
    view[:] = np.array(keys, np.int64).tobytes()
    return staged


def send(shard: DenseShard, how: str, push: Push) -> StagedRows:
    """Stage a push and hand it on as `how` says; what it was staged in."""
    staged = stage(shard, push)
    if how == "merge":
        shard.merge([(push.weight, push.lr, staged)])
    elif how == "apply":
        shard.apply(staged, push.lr)
    elif how == "write":
        shard.write(staged)
    else:
        shard.release(staged)
    return staged


def send_round(shard: DenseShard, pushes: Sequence[Push]) -> None:
    """Stage the pushes of a round, then apply them as one update."""
    shard.merge([(push.weight, push.lr, stage(shard, push)) for push in pushes])


def encoded(shard: DenseShard, values: Sequence[Sequence[float]]) -> bytes:
    tensor = torch.tensor(values, dtype=torch.float64).to(shard.dtype).reshape(-1)
    data: bytes = tensor.view(torch.uint8).numpy().tobytes()
    return data


def decoded(shard: DenseShard, data: memoryview) -> list[list[float]]:
    rows = torch.frombuffer(bytearray(data), dtype=shard.dtype) if len(data) else torch.empty(0)
    values: list[list[float]] = rows.double().view(-1, shard.spec.width).tolist()
    return values


def column(shard: DenseShard) -> list[float]:
    """The first element of each row."""
    values: list[float] = shard.rows[:, 0].tolist()
    return values
