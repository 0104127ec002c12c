"""Rows of sparse tables before their first update: functions of the seed and the key."""

from __future__ import annotations

from typing import Any

import numpy as np

from shoal.jit import U, kernel, mixed

_COLUMNS = U(0xD1342543DE82EF95)  # odd
KINDS = {"zeros": 0, "constant": 1, "uniform": 2, "normal": 3}


@kernel
def _uniform(counter: Any, stream: Any) -> Any:
    z = mixed((counter + stream) * U(0x9E3779B97F4A7C15) + U(0x9E3779B97F4A7C15))
    return np.float64(z >> U(11)) * 2.0**-53


@kernel
def create(
    records: Any,
    places: Any,
    keys: Any,
    state: Any,
    width: Any,
    kind: Any,
    a: Any,
    b: Any,
    first: Any,
    second: Any,
) -> None:
    """Write new records: their rows and their state.

    The counter of a random value is the key's hash plus a multiple of the column. `initial.fill`
    counts elements, key * width + column, which would wrap around for keys with upper bits.
    """
    stride = width + U(state.size)
    for i in range(U(keys.size)):
        row, counter = places[i] * stride, mixed(keys[i])
        for j in range(width):
            value = 0.0
            if kind == 1:
                value = a
            elif kind >= 2:
                uniform = _uniform(counter + j * _COLUMNS, first)
                if kind == 2:
                    value = a + (b - a) * uniform
                else:
                    angle = 2.0 * np.pi * _uniform(counter + j * _COLUMNS, second)
                    value = a + b * np.sqrt(-2.0 * np.log1p(-uniform)) * np.cos(angle)
            records[row + j] = value
        for j in range(U(state.size)):
            records[row + width + j] = state[j]
