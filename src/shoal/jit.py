"""Compilation of loops over keys, rows and values with numba, and the hash of a key.

Kernels release the GIL and run in one thread: a server is one loop. Compiled code is kept on disk
and executed by later processes, so it is kept only where no other user can write. Within kernels
indices are unsigned, because signed ones are checked for being negative, and arrays are flat.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
from llvmlite import ir
from numba import config as numba_config
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from shoal.errors import NotTrusted
from shoal.keys import splitmix64
from shoal.ownership import cache_folder, private_folder

F = TypeVar("F", bound=Callable[..., Any])
config: Any = numba_config

U = np.uint64
AHEAD = U(16)  # memory is fetched so many keys before its use


def kernel(function: F, **options: Any) -> F:
    """Compile a function at its first call, and keep the code on disk."""
    compiled: Any = kernel_of(function, **options)
    folder = _folder()
    if folder is None or config.DISABLE_JIT:
        return cast(F, compiled)
    numbas = config.CACHE_DIR
    config.CACHE_DIR = str(folder)
    try:
        compiled.enable_caching()  # chooses its folder now
    except RuntimeError:  # it can write to no folder
        return kernel_of(function, **options)
    finally:
        config.CACHE_DIR = numbas
    if Path(compiled.stats.cache_path).parent != folder:  # it could not write there
        return kernel_of(function, **options)
    return cast(F, compiled)


def kernel_of(function: F, **options: Any) -> F:
    """Compile a function that closes over another one, for this process only."""
    return cast(F, njit(nogil=True, error_model="numpy", **options)(function))


@cache
def _folder() -> Path | None:
    """Return the folder of compiled code: $NUMBA_CACHE_DIR, or one in the user's cache.

    Return None if other users can write there, or if it cannot be made.
    """
    folder = Path(config.CACHE_DIR or cache_folder(os.environ) / "compiled").absolute()
    try:
        private_folder(folder)
    except (NotTrusted, OSError) as error:
        logging.getLogger("shoal.tables").warning(
            "compiled code is not kept, and every process compiles anew, because %s", error
        )
        return None
    return folder


def _call_prefetch(builder: Any, place: Any) -> None:
    pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
    insert: Any = cgutils.get_or_insert_function
    call = insert(builder.module, kind, "llvm.prefetch.p0")
    place = builder.bitcast(place, pointer)
    builder.call(call, [place, *(ir.Constant(number, value) for value in (0, 3, 1))])


def _prefetch(_typing: Any, array: Any, index: Any) -> Any:
    """Prefetch the cache line of `array[index]`; an index outside of the array is harmless."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        _call_prefetch(builder, builder.gep(data, [arguments[1]]))
        return context.get_dummy_value()

    return types.void(array, index), generate


prefetch: Any = intrinsic(_prefetch)


def _fetch(_typing: Any, address: Any) -> Any:
    """Prefetch the cache line at an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _call_prefetch(builder, builder.inttoptr(arguments[0], ir.IntType(8).as_pointer()))
        return context.get_dummy_value()

    return types.void(types.uint64), generate


def _word(_typing: Any, address: Any) -> Any:
    """Return the uint64 at an address, unchecked."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(builder.inttoptr(arguments[0], ir.IntType(64).as_pointer()))

    return types.uint64(types.uint64), generate


def _put(_typing: Any, address: Any, value: Any) -> Any:
    """Write a uint64 to an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(arguments[1], builder.inttoptr(arguments[0], ir.IntType(64).as_pointer()))
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint64), generate


fetch: Any = intrinsic(_fetch)
word: Any = intrinsic(_word)
put: Any = intrinsic(_put)


mixed = kernel(splitmix64(U))  # `keys.hash_of`, compiled


def warm() -> None:
    """Call a kernel, so that numba is ready: its first call in a process takes half a second."""
    mixed(U(0))
