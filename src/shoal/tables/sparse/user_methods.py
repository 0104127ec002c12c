"""User-defined access methods: small functions on one row, compiled into a table's loops.

    apply(row, state, update, lr=0.1, ...)  applies a push to a row and its state
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
from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any, ClassVar

import numba
import numpy as np
from numba import njit, types
from numba.core import cgutils as numba_cgutils
from numba.extending import intrinsic
from numba.np import arrayobj

from shoal.errors import AccessFailed, InvalidValue
from shoal.jit import AHEAD, U, kernel_of, prefetch
from shoal.tables.schedules import SCHEDULE_OPTIONS
from shoal.tables.sparse.optimizers import RowMethod, row_methods
from shoal.tables.sparse.records import gather, scatter
from shoal.tables.spec import Options, TableSpec

Function = Callable[..., None]
typeof: Any = numba.typeof
cgutils: Any = numba_cgutils
populate_array: Any = arrayobj.populate_array


def add_row_method(
    name: str, apply: Function, state: Callable[[int], int], others: Mapping[str, Function]
) -> None:
    """Register an access method of sparse tables, as `shoal.access_method` describes it.

    others:  the functions "init", "read" and "merge", where the method has them
    """
    if name in row_methods and not issubclass(row_methods[name], CustomRows):
        raise InvalidValue(f"access method {name!r} is built in; choose another name")
    options = _options(name, apply)
    body = {
        "name": name,
        "options": {**options, **(SCHEDULE_OPTIONS if "lr" in options else {})},
        "scalars": tuple(option for option in options if option != "lr"),
        "state_of": staticmethod(state),
        "functions": {"apply": apply, **others},
    }
    row_methods.add(name, type(f"{name}_rows", (CustomRows,), body), again=True)


def _options(name: str, apply: Function) -> dict[str, Any]:
    """Return the options of an access method: its parameters after `update`, with defaults."""
    options = [*signature(apply).parameters.values()][3:]
    for each in options:
        if each.kind is not each.POSITIONAL_OR_KEYWORD:
            raise InvalidValue(
                f"access method {name!r}: the options of apply are named parameters after "
                f"`update`, such as lr=0.1, not {each}"
            )
        if not isinstance(each.default, int | float) or isinstance(each.default, bool):
            given = "none" if each.default is each.empty else repr(each.default)
            raise InvalidValue(
                f"access method {name!r}: parameter {each.name} of apply is an option and needs a "
                f"number as its default, such as {each.name}=0.1, not {given}"
            )
    found = {each.name: each.default for each in options}
    if "lr" in found and next(iter(found)) != "lr":
        raise InvalidValue(f"access method {name!r}: lr has to be the first of its options")
    return found


class CustomRows(RowMethod):
    """A row method whose loops call a user's functions; `add_row_method` makes its subclasses."""

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
