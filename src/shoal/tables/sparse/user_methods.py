"""User-defined access methods: small functions on one row, compiled into a table's loops.

    apply(row, state, update, *options)     applies a push to a row and its state
    init(key, seed, row, state)             initialises a new row, after the table's Init and zeros
    read(row, state, out)                   fills a pull; copies the row by default
    merge(into, update, factor)             merges pushes of a row; by default into += factor update

All work in place and return nothing. numba compiles them with the loops, in each process that has
such a table. They may use numba's subset of Python: numbers, numpy, loops. Globals of their module
are constants.

Each function is first tried on a row in plain Python. A table is refused if its method raises,
returns something or leaves outputs unwritten. Afterwards indices are not checked, as in any
compiled loop: no index may depend on the values of a row. A function that may raise is compiled
with a backup of the rows, so that they can be restored; other functions cost nothing more.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, ClassVar

import numba
import numpy as np
from numba import njit, types
from numba.core import cgutils as numba_cgutils
from numba.extending import intrinsic
from numba.np import arrayobj

from shoal.errors import AccessFailed, InvalidValue
from shoal.tables.schedules import SCHEDULE_OPTIONS
from shoal.tables.sparse.jit import AHEAD, U, kernel_of, prefetch
from shoal.tables.sparse.optimizers import RowMethod, row_methods
from shoal.tables.sparse.records import gather, scatter
from shoal.tables.spec import Options, TableSpec

Function = Callable[..., None]
typeof: Any = numba.typeof
cgutils: Any = numba_cgutils
populate_array: Any = arrayobj.populate_array


def access_method(
    name: str,
    apply: Function,
    *,
    state: Callable[[int], int] = lambda width: 0,
    options: Options | None = None,
    init: Function | None = None,
    read: Function | None = None,
    merge: Function | None = None,
) -> None:
    """Register an access method (server-side optimizer) for sparse tables, from functions on a row.

    Rows, states and updates are flat arrays of the table's dtype, float32 or float64; the functions
    work in place. Call it at the top level of a module that servers import: `shoal run --import
    MODULE` or `shoal.init(imports=[MODULE])`.

    Args:
        name: the name for the table's `Access`; not a built-in method's.
        apply: apply(row, state, update, *options) applies a push to a row.
        state: the number of elements of a row's state, from that of the row; 0 by default.
        options: the names and defaults of numeric options, which `apply` receives in this order.
            `lr` has to come first; it may have a schedule.
        init: init(key, seed, row, state) initialises a new row.
        read: read(row, state, out) fills a pull; copies the row by default.
        merge: merge(into, update, factor) merges pushes of one row; adds them by default.

    Raises:
        InvalidValue: the name is a built-in method's, an option is no number, or `lr` is not the
            first option.

    Example:
        AdaGrad whose sums of squares decay, with a count of a row's updates:

        >>> import numpy as np
        >>> def fading(row, state, update, lr, decay, eps):
        ...     width = row.size
        ...     state[width] += 1
        ...     for j in range(width):
        ...         g = update[j]
        ...         s = decay * state[j] + g * g
        ...         state[j] = s
        ...         row[j] -= lr * g / (np.sqrt(s) + eps)
        >>> options = {"lr": 0.1, "decay": 0.99, "eps": 1e-10}
        >>> access_method("fading", fading, state=lambda width: width + 1, options=options)
        >>> from shoal.tables.spec import Access
        >>> fast = Access("fading", {"lr": 0.5})
        >>> spec = TableSpec("t", row_shape=(4,), kind="sparse", access=fast)

    References:
        Li et al. 2014, section 3.5 (user-defined functions on servers).
    """
    if name in row_methods and not issubclass(row_methods[name], CustomRows):
        raise InvalidValue(f"access method {name!r} is built in; choose another name")
    given = dict(options or {})
    for option, value in given.items():
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise InvalidValue(
                f"access method {name!r}: option {option} is a number, not {value!r}"
            )
    if "lr" in given and next(iter(given)) != "lr":
        raise InvalidValue(f"access method {name!r}: lr has to be the first of its options")
    functions = {"apply": apply, "init": init, "read": read, "merge": merge}
    body = {
        "name": name,
        "options": {**given, **(SCHEDULE_OPTIONS if "lr" in given else {})},
        "scalars": tuple(option for option in given if option != "lr"),
        "state_of": staticmethod(state),
        "functions": {key: value for key, value in functions.items() if value is not None},
    }
    row_methods.add(name, type(f"{name}_rows", (CustomRows,), body), again=True)


class CustomRows(RowMethod):
    """A row method whose loops call a user's functions; `access_method` makes its subclasses."""

    at_once = 0  # all rows change before any is read: a push whose function raises is undone
    functions: ClassVar[dict[str, Function]]
    state_of: ClassVar[Callable[[int], int]]

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        compiled = {
            name: njit(nogil=True, error_model="numpy", forceinline=True)(function)
            for name, function in self.functions.items()
        }
        self.creates = "init" in self.functions
        self._compiled = compiled
        self._apply_may_raise = True  # until `check` has looked at the compiled code
        self._loops = {name: _LOOPS[name](function) for name, function in compiled.items()}

    def state(self, width: int) -> np.ndarray:
        return np.zeros(type(self).state_of(width))

    # ------------------------------------------------------------------ trials

    def check(self, spec: TableSpec) -> None:
        """Try the functions on a row, and compile them."""
        width, dtype = spec.width, np.dtype(spec.dtype)
        row, state, update = np.zeros(width, dtype), self.state(width).astype(dtype), np.ones(width)
        update = (0.01 * update).astype(dtype)
        scalars = [dtype.type(each) for each in self.values(0, None)]
        out = np.full(width, np.nan, dtype)
        trials: dict[str, tuple[Any, ...]] = {
            "init": (np.uint64(7), np.int64(0), row, state),
            "apply": (row, state, update, *scalars),
            "merge": (row.copy(), update, dtype.type(1)),
            "read": (row, state, out),
        }
        for name, arguments in trials.items():
            if name in self.functions:
                self._try(name, arguments)
        self._apply_may_raise = _may_raise(self._compiled["apply"])
        if "read" in self.functions and np.isnan(out).any():
            raise InvalidValue(
                f"read of access method {self.name!r} left {int(np.isnan(out).sum())} of "
                f"{width} elements of a pull unwritten (or made them NaN)"
            )

    def _try(self, name: str, arguments: tuple[Any, ...]) -> None:
        title = f"{name} of access method {self.name!r}"
        try:
            with np.errstate(all="ignore"):
                returned = self.functions[name](*arguments)
        except Exception as error:
            raise InvalidValue(
                f"{title} raised {type(error).__name__} on a trial row: {error}"
            ) from None
        if returned is not None:
            raise InvalidValue(
                f"{title} returned a {type(returned).__name__}: it has to change its arrays in "
                "place and return nothing"
            )
        try:
            self._compiled[name].compile(tuple(typeof(each) for each in arguments))
        except Exception as error:  # not all of numba's errors are a `NumbaError`
            report = " ".join(line.strip() for line in str(error).splitlines() if line.strip())
            report = report or type(error).__name__
            raise InvalidValue(f"{title} cannot be compiled by numba: {report[:300]}") from None

    # ------------------------------------------------------------------ loops

    def create(self, rows: np.ndarray, width: int, keys: np.ndarray, seed: int) -> None:
        self._call("init", rows.reshape(-1), keys, np.int64(seed), width, rows.shape[1])

    def change(
        self, memory: np.ndarray, places: np.ndarray, updates: np.ndarray, *rest: Any
    ) -> None:
        stride, at = rest[0], np.zeros(1, np.int64)
        before = None
        if self._apply_may_raise:
            before = np.empty((len(places), int(stride)), memory.dtype)
            gather(memory, places, before, stride)
        try:
            self._loops["apply"](memory, places, updates, np.int64(stride), at, *rest[1:])
        except Exception as error:
            if before is not None:
                undone = slice(int(at[0]), None, -1)  # in reverse order, because places may repeat
                scatter(memory, places[undone].copy(), before[undone].copy(), stride)
            raise self._failed("apply", error) from None

    def merge(
        self, into: np.ndarray, numbers: np.ndarray, updates: np.ndarray, factor: float
    ) -> None:
        if "merge" in self.functions:
            self._call("merge", into.reshape(-1), numbers, updates, into.dtype.type(factor))
        else:
            super().merge(into, numbers, updates, factor)

    def read(self, memory: np.ndarray, places: np.ndarray, out: np.ndarray, stride: int) -> None:
        if "read" in self.functions:
            self._call("read", memory, places, out, stride)
        else:
            super().read(memory, places, out, stride)

    def _call(self, name: str, *arguments: Any) -> None:
        try:
            self._loops[name](*arguments)
        except Exception as error:
            raise self._failed(name, error) from None

    def _failed(self, name: str, error: Exception) -> AccessFailed:
        kind = type(error).__name__
        return AccessFailed(f"{name} of access method {self.name!r} raised {kind}: {error}")


def _may_raise(function: Any) -> bool:
    """Return whether the compiled code of a function can return another status than 0."""
    for each in function.overloads.values():
        name, text = re.escape(each.fndesc.llvm_func_name), each.library.get_llvm_str()
        found = re.search(rf'define[^\n]*@"?{name}"?\(.*?\n}}', text, re.DOTALL)
        ends = re.findall(r"ret i32 (\S+)", found.group()) if found else []
        if not ends or any(end != "0" for end in ends):
            return True
    return False


def _part(_typing: Any, array: Any, start: Any, size: Any) -> Any:
    """Return `array[start : start + size]` as an array without reference counting."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        whole = context.make_array(signature.args[0])(context, builder, arguments[0])
        part = context.make_array(signature.return_type)(context, builder)
        populate_array(
            part,
            data=builder.gep(whole.data, [arguments[1]]),
            shape=cgutils.pack_array(builder, [arguments[2]]),
            strides=cgutils.pack_array(builder, [whole.itemsize]),
            itemsize=whole.itemsize,
            meminfo=None,
        )
        return part._getvalue()

    return array(array, types.intp, types.intp), generate


part: Any = intrinsic(_part)


def _apply_loop(apply: Any) -> Any:
    def loop(records: Any, places: Any, updates: Any, stride: Any, at: Any, *options: Any) -> None:
        count, width = places.size, updates.shape[1]
        flat = updates.reshape(updates.size)
        for i in range(count):
            if i + np.int64(AHEAD) < count:
                ahead = places[i + np.int64(AHEAD)] * U(stride)
                prefetch(records, ahead)
                prefetch(records, ahead + U(width))
                prefetch(records, ahead + U(stride - 1))
            at[0] = i
            row = np.int64(places[i]) * stride
            apply(
                part(records, row, width),
                part(records, row + width, stride - width),
                part(flat, i * width, width),
                *options,
            )

    return kernel_of(loop)


def _init_loop(init: Any) -> Any:
    def loop(records: Any, keys: Any, seed: Any, width: Any, stride: Any) -> None:
        for i in range(keys.size):
            row = i * stride
            init(
                keys[i], seed, part(records, row, width), part(records, row + width, stride - width)
            )

    return kernel_of(loop)


def _read_loop(read: Any) -> Any:
    def loop(records: Any, places: Any, out: Any, stride: Any) -> None:
        width, flat = out.shape[1], out.reshape(out.size)
        for i in range(places.size):
            row = np.int64(places[i]) * stride
            read(
                part(records, row, width),
                part(records, row + width, stride - width),
                part(flat, i * width, width),
            )

    return kernel_of(loop)


def _merge_loop(merge: Any) -> Any:
    def loop(into: Any, numbers: Any, updates: Any, factor: Any) -> None:
        width, flat = updates.shape[1], updates.reshape(updates.size)
        for i in range(numbers.size):
            to = np.int64(numbers[i]) * width
            merge(part(into, to, width), part(flat, i * width, width), factor)

    return kernel_of(loop)


_LOOPS: dict[str, Callable[[Any], Any]] = {
    "apply": _apply_loop,
    "init": _init_loop,
    "read": _read_loop,
    "merge": _merge_loop,
}
