"""The decorator that registers a user's access method, for dense or for sparse tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from shoal.errors import InvalidValue
from shoal.tables.access import AccessMethod
from shoal.tables.dense.methods import BUILT_IN, access_methods

M = TypeVar("M", bound=Callable[..., Any])


def access_method(
    name: str,
    *,
    state: Callable[[int], int] | None = None,
    init: Callable[..., None] | None = None,
    read: Callable[..., None] | None = None,
    merge: Callable[..., None] | None = None,
) -> Callable[[M], M]:
    """Register an access method (server-side optimizer): a function on a row, or a class.

    A function `apply(row, state, update, lr=0.1, ...)` applies a push to a row of a sparse table.
    Its further parameters are the options of the method, with their defaults. A row, its state and
    the update are flat arrays of the table's dtype, float32 or float64; the function works in
    place, and numba compiles it. A subclass of `shoal.tables.AccessMethod` is a method of dense
    tables.

    Use it at the top level of a module that servers import: `shoal run --import MODULE` or
    `shoal.init(imports=[MODULE])`.

    Args:
        name: the name for the table's `Access`; not a built-in method's.
        state: the number of elements of a row's state, from that of the row; 0 by default.
        init: init(key, seed, row, state) initialises a new row.
        read: read(row, state, out) fills a pull; copies the row by default.
        merge: merge(into, update, factor) merges pushes of one row; adds them by default.

    Raises:
        InvalidValue: the name is a built-in method's, an option has no number as its default, `lr`
            is not the first option, a class is no `AccessMethod` or does not define `apply`, or
            functions on rows are given with a class.

    Example:
        AdaGrad whose sums of squares decay, with a count of a row's updates:

        >>> import numpy as np
        >>> import shoal
        >>> @shoal.access_method("fading", state=lambda width: width + 1)
        ... def fading(row, state, update, lr=0.1, decay=0.99, eps=1e-10):
        ...     width = row.size
        ...     state[width] += 1
        ...     for j in range(width):
        ...         g = update[j]
        ...         s = decay * state[j] + g * g
        ...         state[j] = s
        ...         row[j] -= lr * g / (np.sqrt(s) + eps)
        >>> fast = shoal.tables.Access("fading", {"lr": 0.5})
        >>> spec = shoal.TableSpec("t", row_shape=(4,), kind="sparse", access=fast)

        The largest of all updates, element by element, in a dense table:

        >>> import torch
        >>> @shoal.access_method("maximum")
        ... class Maximum(shoal.tables.AccessMethod):
        ...     def apply(self, rows, slots, update, step, lr=None):
        ...         torch.maximum(rows, update, out=rows)
        >>> largest = shoal.tables.Access("maximum")
        >>> spec = shoal.TableSpec("t", rows=8, row_shape=(4,), access=largest)

    References:
        Li et al. 2014, section 3.5 (user-defined functions on servers).
    """
    if not isinstance(name, str):
        raise InvalidValue("an access method has a name: write @shoal.access_method(NAME)")
    functions = {"init": init, "read": read, "merge": merge}
    others = {key: each for key, each in functions.items() if each is not None}

    def register(method: M) -> M:
        if isinstance(method, type):
            _add_class(name, method, others.keys() | ({"state"} if state else set()))
        else:
            from shoal.tables.sparse.user_methods import add_row_method  # numba: half a second

            add_row_method(name, method, state or (lambda width: 0), others)
        return method

    return register


def _add_class(name: str, method: type, of_rows: set[str]) -> None:
    if not issubclass(method, AccessMethod):
        raise InvalidValue(
            f"access method {name!r}: {method.__name__} is no subclass of shoal.tables.AccessMethod"
        )
    if of_rows:
        raise InvalidValue(
            f"access method {name!r}: {', '.join(sorted(of_rows))} belong to a function on a row; "
            "a class has methods"
        )
    if method.__abstractmethods__:
        missing = ", ".join(sorted(method.__abstractmethods__))
        raise InvalidValue(f"access method {name!r}: {method.__name__} does not define {missing}")
    if name in BUILT_IN:
        raise InvalidValue(f"access method {name!r} is built in; choose another name")
    if vars(method).get("name", name) != name:
        raise InvalidValue(
            f"access method {name!r}: {method.__name__} is registered as {method.name!r} already; "
            "derive another class from it"
        )
    method.name = name
    access_methods.add(name, method, again=True)
