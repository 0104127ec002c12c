"""Records: rows with their state side by side, in one flat array, and the loops over them.

A record is `stride` elements long: its row, and then the state of the row method. `places` are
numbers of records. `tables.sparse.optimizers` defines the updates that the loops compute; scalars
have the records' dtype, so that nothing is computed in a wider one.

Each loop is written out: numba cannot keep code on disk that it compiles around another function,
and every process would wait a second for it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shoal.jit import AHEAD, U, kernel, prefetch


@kernel
def scatter(records: Any, places: Any, values: Any, stride: Any) -> None:
    """Write rows into their records."""
    count, width, flat = U(places.size), U(values.shape[1]), values.reshape(values.size)
    for i in range(count):
        if i + AHEAD < count:
            prefetch(records, places[i + AHEAD] * stride)
        row, at = places[i] * stride, i * width
        for j in range(width):
            records[row + j] = flat[at + j]


@kernel
def gather(records: Any, places: Any, out: Any, stride: Any) -> None:
    """Read rows out of their records."""
    count, width, flat = U(places.size), U(out.shape[1]), out.reshape(out.size)
    for i in range(count):
        if i + AHEAD < count:
            prefetch(records, places[i + AHEAD] * stride)
        row, at = places[i] * stride, i * width
        for j in range(width):
            flat[at + j] = records[row + j]


@kernel
def add_rows(into: Any, numbers: Any, updates: Any, factor: Any) -> None:
    """Compute into[numbers[i]] += factor updates[i], in the order of i."""
    width, flat = U(updates.shape[1]), updates.reshape(updates.size)
    for i in range(U(numbers.size)):
        row, at = numbers[i] * width, i * width
        for j in range(width):
            into[row + j] += factor * flat[at + j]


# ---------------------------------------------------------------------------- updates


@kernel
def add(records: Any, places: Any, updates: Any, stride: Any) -> None:
    count, width, flat = U(places.size), U(updates.shape[1]), updates.reshape(updates.size)
    for i in range(count):
        if i + AHEAD < count:
            prefetch(records, places[i + AHEAD] * stride)
        row, at = places[i] * stride, i * width
        for j in range(width):
            records[row + j] += flat[at + j]


@kernel
def sgd(records: Any, places: Any, updates: Any, stride: Any, rate: Any, decay: Any) -> None:
    count, width, flat = U(places.size), U(updates.shape[1]), updates.reshape(updates.size)
    for i in range(count):
        if i + AHEAD < count:
            prefetch(records, places[i + AHEAD] * stride)
        row, at = places[i] * stride, i * width
        for j in range(width):
            here = records[row + j]
            records[row + j] = here - rate * (flat[at + j] + decay * here)


@kernel
def adagrad(
    records: Any, places: Any, updates: Any, stride: Any, rate: Any, decay: Any, eps: Any
) -> None:
    count, width, flat = U(places.size), U(updates.shape[1]), updates.reshape(updates.size)
    for i in range(count):
        if i + AHEAD < count:
            prefetch(records, places[i + AHEAD] * stride)
            prefetch(records, places[i + AHEAD] * stride + width)
        row, at = places[i] * stride, i * width
        state = row + width
        for j in range(width):
            here = records[row + j]
            g = flat[at + j] + decay * here
            s = records[state + j] + g * g
            records[state + j] = s
            records[row + j] = here - rate * g / (np.sqrt(s) + eps)


@kernel
def adam(
    records: Any,
    places: Any,
    updates: Any,
    stride: Any,
    rate: Any,
    decay: Any,
    beta1: Any,
    beta2: Any,
    eps: Any,
) -> None:
    count, width, flat = U(places.size), U(updates.shape[1]), updates.reshape(updates.size)
    one = records.dtype.type(1)
    for i in range(count):
        if i + AHEAD < count:
            prefetch(records, places[i + AHEAD] * stride)
            prefetch(records, places[i + AHEAD] * stride + width)
        row, at = places[i] * stride, i * width
        first, second = row + width, row + width + width
        t = records[second + width] + one
        records[second + width] = t
        scale = rate / records.dtype.type(1.0 - np.float64(beta1) ** np.float64(t))
        root = records.dtype.type(np.sqrt(1.0 - np.float64(beta2) ** np.float64(t)))
        for j in range(width):
            here = records[row + j]
            g = flat[at + j] + decay * here
            m = beta1 * records[first + j] + (one - beta1) * g
            v = beta2 * records[second + j] + (one - beta2) * g * g
            records[first + j] = m
            records[second + j] = v
            records[row + j] = here - scale * m / (np.sqrt(v) / root + eps)


@kernel
def ftrl(
    records: Any, places: Any, updates: Any, stride: Any, rate: Any, beta: Any, l1: Any, l2: Any
) -> None:
    count, width, flat = U(places.size), U(updates.shape[1]), updates.reshape(updates.size)
    zero = records.dtype.type(0)
    if not rate > zero:  # at the end of a schedule: σ would be infinite
        return
    for i in range(count):
        if i + AHEAD < count:
            prefetch(records, places[i + AHEAD] * stride)
            prefetch(records, places[i + AHEAD] * stride + width + width)
        row, at = places[i] * stride, i * width
        leader, squares = row + width, row + width + width
        for j in range(width):
            g = flat[at + j]
            n = records[squares + j]
            more = n + g * g
            root = np.sqrt(more)
            z = records[leader + j] + g - (root - np.sqrt(n)) / rate * records[row + j]
            records[leader + j] = z
            records[squares + j] = more
            here = zero
            if z > l1:
                here = -(z - l1) / ((beta + root) / rate + l2)
            elif z < -l1:
                here = -(z + l1) / ((beta + root) / rate + l2)
            records[row + j] = here
