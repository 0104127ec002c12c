"""Custom tables: a user's handler on each server defines what pushes and pulls mean.

    class Handler:
        def push(self, pairs: Pairs, cmd: int) -> None
        def pull(self, keys, cmd: int) -> list of arrays, one per key, of any lengths
        def request(self, head: int, body: bytes) -> bytes
        def save(self) -> Pairs            its whole state, for checkpoints and migration
        def load(self, pairs: Pairs)       add a saved state

A handler defines the methods that it needs. Each server has one, for the keys in its hash slots.
Each call is executed once. If a method raises, its changes up to there remain.

A handler with `save` and `load` can be replicated and migrated. Every replica then executes every
call in the same order before it is answered, so that a handler has to be a function of its calls
alone. A handler that draws random numbers or reads a clock sets `replicated = False` and stays on
one server.

All methods are called in one thread, so that a handler may own an object that is bound to it (a
connection of sqlite3). With `any_thread = True`, `save` for a checkpoint is called in another
thread, while the server goes on with other tables; no other method is called meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence, Sized
from functools import partial
from typing import Any

import msgspec
import numpy as np
import torch

from shoal.errors import AccessFailed, InvalidValue
from shoal.factories import call_user_code
from shoal.keys import KeyRange
from shoal.registry import Registry
from shoal.tables.custom.calls import Call, Pairs, add_up, answer_of
from shoal.tables.snapshots import Snapshot
from shoal.tables.spec import TableSpec
from shoal.tables.staging import Shard

UNKNOWN_BYTES = 1 << 62  # the size of a copy made by a user's code is unknown
SUM, ASSIGN = 0, 1  # values of `cmd` for `Lists`

NO_LENS = np.empty(0, np.int64)
NOTHING = answer_of(NO_LENS, memoryview(b""))

handlers: Registry[Callable[..., Any]] = Registry("handler")


def handler(name: str, factory: Callable[..., Any]) -> None:
    """Register a handler for custom tables (`TableSpec(kind="custom")`).

    Call it at the top level of a module that servers import: `shoal run --import MODULE` or
    `shoal.init(imports=[MODULE])`. The module `shoal.tables.custom.shard` describes the methods of
    a handler.

    Args:
        name: the name for the table's `Access`; a second handler of that name replaces the first.
        factory: the function that makes a handler on each server, from the options of `Access`.

    Example:
        >>> class Longest:
        ...     def __init__(self):
        ...         self.rows = {}
        ...     def push(self, pairs, cmd):
        ...         for key, values in pairs:
        ...             self.rows[key] = max(self.rows.get(key, values[:0]), values, key=len)
        ...     def pull(self, keys, cmd):
        ...         return [self.rows.get(key, ()) for key in keys.tolist()]
        >>> from shoal.tables.spec import Access
        >>> handler("longest", Longest)
        >>> spec = TableSpec("names", kind="custom", access=Access("longest"))

    References:
        Li et al. 2014, section 3.5 (user-defined functions on servers); ps-lite, KVServer request
        handles.
    """
    handlers.add(name, factory, again=True)


class Lists:
    """The built-in handler `lists`: a list of numbers for each key.

    push   cmd 0 adds to the key's list, element by element; cmd 1 replaces the list
    pull   the keys' lists; empty for unknown keys
    """

    any_thread = True

    def __init__(self) -> None:
        self.rows: dict[int, np.ndarray] = {}

    def push(self, pairs: Pairs, cmd: int) -> None:
        if cmd not in (SUM, ASSIGN):
            raise ValueError(f"cmd is {SUM} (add) or {ASSIGN} (assign), not {cmd}")
        for key, values in pairs:
            known = self.rows.get(key)
            if cmd == SUM and known is not None and len(known) != len(values):
                raise ValueError(
                    f"key {key} has {len(known)} values and the push has {len(values)}: push as "
                    "many, or replace them with cmd=1"
                )
        for key, values in pairs:
            if cmd == SUM and key in self.rows:
                self.rows[key] += values
            else:
                self.rows[key] = values.copy()

    def pull(self, keys: np.ndarray, cmd: int) -> list[Any]:
        return [self.rows.get(key, ()) for key in keys.tolist()]

    def save(self) -> Pairs:
        keys = np.array(sorted(self.rows), np.uint64)
        rows = [self.rows[key] for key in keys.tolist()]
        return Pairs.of(keys, rows, str(rows[0].dtype) if rows else "float32")

    def load(self, pairs: Pairs) -> None:
        self.push(pairs, ASSIGN)


handlers.add("lists", Lists)


class Answered(msgspec.Struct, array_like=True):
    """The answer cache of a client: each call is executed once, even if it arrives again.

    Attributes:
        below: the number below which the client has the answers of all calls.
        answers: the answers by the number of the call.
        errors: the error texts of failed calls, by the number of the call.
    """

    below: int = 0
    answers: dict[int, bytes] = {}
    errors: dict[int, str] = {}

    def forget(self, below: int) -> None:
        """Drop the answers of the calls below a number, because the client has them."""
        if below > self.below:
            self.below = below
            self.answers = {n: each for n, each in self.answers.items() if n >= below}
            self.errors = {n: each for n, each in self.errors.items() if n >= below}


class Everything(msgspec.Struct, array_like=True):
    """The state of a custom shard, for other replicas.

    saved:    the handler's pairs as (dtype, bytes) of `keys`, `values` and `lens`
    answers:  the answer caches by client
    """

    saved: tuple[tuple[str, bytes], tuple[str, bytes], tuple[str, bytes]]
    answers: dict[int, Answered]


class StagedCall:
    """A staged call."""

    __slots__ = ("kept", "retained", "views", "words")

    keys = ()  # the keys of the call are in `words`
    encoded = None

    def __init__(self, words: int) -> None:
        self.words = np.empty(words, np.uint64)
        self.views: list[memoryview] = [self.words.view(np.uint8).data] if words else []
        self.kept = self.retained = False

    def problem(self) -> str:
        return ""


class StagedRows(StagedCall):
    """A push of rows, which is invalid: custom tables take calls."""

    def problem(self) -> str:
        return "a custom table takes calls of its handler, not rows"


class CustomShard(Shard):
    """One server's handler of a table, and its answers."""

    def __init__(self, spec: TableSpec, held: KeyRange) -> None:
        self.spec = spec
        self.held = held
        self.handler = made(spec)
        self._answered: dict[int, Answered] = {}  # by client

    @property
    def copy_bytes(self) -> int:
        return UNKNOWN_BYTES if getattr(self.handler, "any_thread", False) else 0

    def __len__(self) -> int:
        rows = getattr(self.handler, "rows", ())
        return len(rows) if isinstance(rows, Sized) else 0

    def stage(self, rows: KeyRange, keys: int) -> StagedCall:
        return StagedRows(keys + -(-keys * self.spec.row_bytes // 8))

    def stage_keys(self, rows: KeyRange, keys: int) -> StagedCall:
        return StagedCall(keys)

    def read_keys(self, staged: StagedCall) -> memoryview:
        """Execute a call unless it was executed before, and return its answer."""
        try:
            call = Call.read(staged.words)
        except ValueError as error:
            raise AccessFailed(f"table {self.spec.name!r}: a malformed call: {error}") from None
        answered = self._answered.setdefault(call.client, Answered())
        answered.forget(call.forget_below)
        if call.number < answered.below:  # a late duplicate, whose answer the client has
            return memoryview(NOTHING)
        if call.number in answered.errors:
            raise AccessFailed(answered.errors[call.number])
        answer = answered.answers.get(call.number)
        if answer is None:
            try:
                answer = answered.answers[call.number] = self._done(call)
            except AccessFailed as error:
                answered.errors[call.number] = error.message
                raise
        return memoryview(answer)

    def keep(self, clients: Collection[int]) -> None:
        """Drop the answers of all clients but these; the others are gone."""
        for client in [each for each in self._answered if each not in clients]:
            del self._answered[client]

    def _done(self, call: Call) -> bytes:
        do = getattr(self.handler, call.what, None)
        try:
            if do is None:
                raise TypeError(f"it has no {call.what}()")
            if call.what == "request":
                return answer_of(
                    NO_LENS, memoryview(call_user_code(do, call.cmd, bytes(call.values)))
                )
            if call.what == "push":
                call_user_code(do, self._pairs(call), call.cmd)
                return NOTHING
            found = call_user_code(do, call.keys, call.cmd)
            if len(found) != len(call.keys):
                raise TypeError(f"pull() returned {len(found)} rows of {len(call.keys)} keys")
            pairs = Pairs.of(call.keys, found, self.spec.dtype)
            return answer_of(pairs.lens, pairs.values.view(np.uint8).data)
        except Exception as error:
            raise self._failed(call.what, error) from error

    def _failed(self, what: str, error: Exception) -> AccessFailed:
        return AccessFailed(
            f"table {self.spec.name!r}: its handler {self.spec.access.name!r} failed in {what}: "
            f"{type(error).__name__}: {error}"
        )

    def _pairs(self, call: Call) -> Pairs:
        size = np.dtype(self.spec.dtype).itemsize
        count, rest = divmod(call.values.nbytes, size)
        if rest or not add_up(call.lens, count):
            raise ValueError(f"its lengths do not add up to {call.values.nbytes} bytes")
        return Pairs(call.keys, np.frombuffer(call.values, self.spec.dtype), call.lens)

    # ------------------------------------------------------------------ operations on rows

    def apply(self, staged: StagedCall, lr: float | None) -> None:
        raise AccessFailed(staged.problem())

    def write(self, staged: StagedCall) -> None:
        raise AccessFailed(staged.problem())

    def _no_rounds(self, *_: Any) -> Any:
        """Refuse the operation: replicas receive calls as clients send them, and no updates."""
        raise AccessFailed("a custom table has no rounds")

    merge = apply_round = stage_told = part_of = _no_rounds

    def release(self, staged: StagedCall) -> None:
        """Do nothing: the memory of calls is not pooled."""

    # ------------------------------------------------------------------ other servers

    def split(self, ranges: Sequence[KeyRange]) -> Sequence[CustomShard]:
        raise InvalidValue("a custom table's shards cannot be split")

    def snapshot(self, at: int, nbytes: int) -> Snapshot:
        """Return the handler's state and the answer caches, in one piece of any size.

        Raises:
            AccessFailed: the handler failed to save.
        """
        try:
            pairs: Pairs = call_user_code(self.handler.save)
            arrays = pairs.keys, pairs.values, pairs.lens
            keys, values, lens = ((each.dtype.str, each.tobytes()) for each in arrays)
        except Exception as error:
            raise self._failed("save", error) from error
        data = msgspec.msgpack.encode(Everything((keys, values, lens), self._answered))
        words = np.zeros(1 + -(-len(data) // 8), np.uint64)
        words[0] = len(data)
        words[1:].view(np.uint8)[: len(data)] = np.frombuffer(data, np.uint8)
        return Snapshot(self.held, len(words), (words.view(np.uint8).data,), 1, True)

    def stage_snapshot(self, rows: KeyRange, keys: int) -> StagedCall:
        """Return staging memory for a snapshot."""
        return StagedCall(keys)

    def install(self, staged: StagedCall) -> None:
        """Load another replica's snapshot into a fresh handler.

        Raises:
            AccessFailed: the handler failed to load it.
        """
        fresh = made(self.spec)
        try:
            data = staged.words[1:].view(np.uint8)[: int(staged.words[0])]
            sent = msgspec.msgpack.decode(data.tobytes(), type=Everything)
            saved = (np.frombuffer(each, kind).copy() for kind, each in sent.saved)
            call_user_code(fresh.load, Pairs(*saved))
        except Exception as error:
            raise self._failed("load", error) from error
        self.handler = fresh
        self._answered = sent.answers

    def _not_compared(self, *_: Any) -> Any:
        raise InvalidValue("a custom table's replicas cannot be compared")

    sample = digest = _not_compared

    # ------------------------------------------------------------------ disk

    def state(self, copied: bool = False) -> dict[str, torch.Tensor]:
        """Return `keys` (int64 bits), `values` and `lens`; empty if the handler does not save.

        Raises:
            AccessFailed: the handler failed to save.
        """
        save = getattr(self.handler, "save", None)
        pairs = Pairs.of(np.empty(0, np.uint64), (), "f4")
        try:
            if save is not None:
                pairs = call_user_code(save)
            return {
                "keys": torch.from_numpy(pairs.keys.view(np.int64).copy()),
                "values": torch.from_numpy(pairs.values.copy()),
                "lens": torch.from_numpy(pairs.lens.copy()),
            }
        except Exception as error:
            raise self._failed("save", error) from error

    def restore(self, held: KeyRange, state: dict[str, torch.Tensor], same: bool) -> None:
        """Load the pairs of a checkpointed shard that belong here.

        Raises:
            AccessFailed: the handler failed to load them.
        """
        from shoal.tables.sparse.distinct import within

        keys = state["keys"].numpy().view(np.uint64)
        mine = np.flatnonzero(within(keys, self.held.start, self.held.stop))
        pairs = Pairs(keys, state["values"].numpy(), state["lens"].numpy()).chosen(mine)
        load = getattr(self.handler, "load", None)
        if load is not None and len(mine):
            try:
                call_user_code(load, pairs)
            except Exception as error:
                raise self._failed("load", error) from error


def described(spec: TableSpec) -> TableSpec:
    """Return a specification with `saves` set: whether its handler can be replicated.

    Raises:
        UnknownName: as `made`.
        InvalidValue: as `made`.
    """
    one = made(spec)
    saves = all(callable(getattr(one, what, None)) for what in ("save", "load"))
    return msgspec.structs.replace(spec, saves=saves and bool(getattr(one, "replicated", True)))


def made(spec: TableSpec) -> Any:
    """Create a table's handler.

    Raises:
        UnknownName: there is no handler of that name.
        InvalidValue: the factory failed with these options, or numpy has no such dtype.
    """
    factory = handlers[spec.access.name]
    try:
        np.dtype(spec.dtype)
    except TypeError:
        raise InvalidValue(
            f"table {spec.name!r} is custom: its values are numpy arrays, which have no "
            f"{spec.dtype}; use float32"
        ) from None
    try:
        return call_user_code(partial(factory, **spec.access.options))
    except Exception as error:
        raise InvalidValue(
            f"table {spec.name!r}: handler {spec.access.name!r} cannot be created: "
            f"{type(error).__name__}: {error}"
        ) from error
