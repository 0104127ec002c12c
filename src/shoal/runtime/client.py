"""Client: a worker's caller. It pushes, pulls and advances, and drives strategies.

One lock owns the machine. A caller that waits does the socket work itself, so that a blocking
request costs no thread hand-off; a pump thread takes over while requests are under way and nobody
waits, and sends heartbeats while the caller computes (DESIGN section 4, rule 8).
"""

from __future__ import annotations

import os
import socket
import threading
import weakref
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from time import monotonic
from typing import Any, TypeVar

import msgspec
import numpy as np
import torch
from torch import Tensor

from shoal.collective.base import AllReduce, Collective
from shoal.errors import (
    BufferInUse,
    InvalidValue,
    RequestTimeout,
    ShoalError,
    UsageError,
    WaitsForever,
)
from shoal.keys import KeyRange
from shoal.protocol.machine import Asked, Note, Outcome
from shoal.protocol.messages import Group, Role, View
from shoal.protocol.requests import (
    AwaitView,
    Cancel,
    DeclareTable,
    EnterBarrier,
    Exchange,
    FinishWork,
    PullOp,
    PushOp,
    Start,
    Wait,
)
from shoal.protocol.session import Session, SessionOptions
from shoal.protocol.worker import WorkerMachine, WorkerOptions
from shoal.runtime.node import Node
from shoal.tables.dense import DTYPES
from shoal.tables.methods import make
from shoal.tables.spec import TableSpec
from shoal.transport import Identity

T = TypeVar("T")
Keys = KeyRange | Tensor | np.ndarray | Sequence[int] | None
PUMP_AFTER_S = 0.0005  # a request that nobody waits for is left to its caller for this long


class ClientOptions(msgspec.Struct, frozen=True):
    """
    token:           of the cluster, where it has one
    init_timeout_s:  how long to wait until the cluster is complete
    sync_timeout_s:  after this an unanswered request is asked for again, after twice this it fails
    rank:            the rank wished for; -1 for any
    debug:           look for writes to borrowed buffers (a checksum a push)
    """

    token: str = ""
    init_timeout_s: float = 60.0
    sync_timeout_s: float = 10.0
    rank: int = -1
    debug: bool = False


class Future:
    """A request under way. `wait` drives the exchange; done callbacks run where it is driven."""

    __slots__ = ("_callbacks", "_client", "_finish", "_result", "outcome", "request_id")

    def __init__(self, client: Client, request_id: int, finish: Callable[[], Any]) -> None:
        self.request_id = request_id
        self.outcome: Outcome | None = None
        self._client = client
        self._finish = finish
        self._result: Any = None
        self._callbacks: list[Callable[[Future], None]] = []

    def done(self) -> bool:
        return self.outcome is not None

    def wait(self, timeout: float | None = None) -> Any:
        """What was pulled (None for pushes), once it is there.

        timeout: seconds; then RequestTimeout is raised and the request goes on. `cancel` ends it.
        Raises the request's own error: SyncTimeout, Refused, RoundClosed, WaitsForever ...
        """
        self._client._drive_until(self, timeout)
        assert self.outcome is not None
        if self.outcome.error is not None:
            raise self.outcome.error
        return self._result

    def exception(self) -> ShoalError | None:
        """The error of a request that is done."""
        return self.outcome.error if self.outcome is not None else None

    def cancel(self) -> bool:
        """Withdraw the request; its buffers are the caller's again. False if it was done."""
        return self._client._cancel(self)

    def add_done_callback(self, callback: Callable[[Future], None]) -> None:
        """Call `callback(future)` when it is done, or now if it is."""
        if self.outcome is not None:
            callback(self)
        else:
            self._callbacks.append(callback)

    def _settle(self, outcome: Outcome) -> None:
        if outcome.error is None:
            try:
                self._result = self._finish()
            except ShoalError as error:
                outcome = Outcome(error=error)
        self.outcome = outcome
        for callback in self._callbacks:
            callback(self)
        self._callbacks.clear()


class Client:
    """A connected worker. Made by `shoal.connect`; close it, or use it in a `with`.

    Thread-safe. `blocking` has the same operations, waited for.
    """

    def __init__(self, address: str, options: ClientOptions | None = None) -> None:
        self.options = options or ClientOptions()
        name = f"w-{os.getpid()}-{os.urandom(4).hex()}"
        session = Session(
            name,
            "worker",
            host=socket.gethostname(),
            rank=self.options.rank,
            options=SessionOptions(join_timeout_s=self.options.init_timeout_s),
        )
        self._machine = WorkerMachine(
            session, WorkerOptions(sync_timeout_s=self.options.sync_timeout_s)
        )
        role: Role = "worker"
        self._node = Node(
            self._machine,
            Identity(name, role, token=self.options.token),
            scheduler=address,
            resolve=self._resolved,
            on_note=self._noted,
        )
        self.collective: Collective | None = None
        self.on_note: Callable[[Note], None] = lambda note: None
        self._futures: dict[int, Future] = {}
        self._known: dict[
            tuple[str, int], tuple[weakref.ref[Tensor], int, KeyRange, memoryview]
        ] = {}
        self._ids = count(1)
        self._lock = threading.Lock()
        self._turnstile = threading.Lock()
        self._visitors = 0
        self._drivers = 0
        self._pump_wake = threading.Event()
        self._closed = False
        self._pump = threading.Thread(target=self._run_pump, name="shoal-pump", daemon=True)
        self.blocking = Blocking(self)
        try:
            self._ask(AwaitView()).wait()
        except BaseException:
            self._node.close()
            raise
        self._pump.start()

    # ------------------------------------------------------------------ who and where

    @property
    def view(self) -> View:
        view = self._machine.session.view
        assert view is not None
        return view

    @property
    def rank(self) -> int:
        return self._machine.session.rank

    @property
    def world_size(self) -> int:
        """Workers in the present view."""
        return len(self.view.workers)

    @property
    def clock(self) -> int:
        """The iterations that this worker has finished."""
        return self._machine.clock

    @property
    def bytes_pushed(self) -> int:
        return self._machine.bytes_pushed

    @property
    def bytes_pulled(self) -> int:
        return self._machine.bytes_pulled

    def table(self, name: str) -> TableSpec:
        """The specification of a table of this run."""
        number = self._machine.number_of(name)
        if number is None:
            known = ", ".join(spec.name for spec in self.view.tables) or "none"
            raise InvalidValue(f"no table {name!r} in this run (known: {known})")
        return self.view.tables[number]

    def waiting(self) -> list[tuple[str, str]]:
        """(request, why it waits) of everything unanswered."""
        with self._own():
            return self._machine.waiting()

    # ------------------------------------------------------------------ tables

    def create_table(self, spec: TableSpec) -> TableSpec:
        """Declare a table; all workers may, with the same specification.

        Raises:
            UnknownName: no such access method, or it has no such option
            InvalidValue: an option's value, or rows that the access method cannot work on
            Refused: there is another table of that name
        """
        if not make(spec.access).supports(spec.dtype):
            raise InvalidValue(
                f"table {spec.name!r}: access method {spec.access.name!r} cannot work on "
                f"{spec.dtype} rows"
            )
        self._ask(DeclareTable(spec)).wait()
        return self.table(spec.name)

    def push(
        self,
        table: str,
        values: Tensor,
        keys: Keys = None,
        *,
        within: KeyRange | None = None,
        weight: float = 1.0,
        lr: float | None = None,
        assign: bool = False,
        after: Sequence[Future] = (),
        timeout_s: float | None = None,
    ) -> Future:
        """Send an update of rows.

        values:  (n, *row_shape), the table's dtype, contiguous. Borrowed: do not write to it
                 before the future is done
        keys:    the rows: None for the whole table, a KeyRange, or n row numbers. Repeated row
                 numbers are added up first
        within:  with row numbers, the range that the push names. Its other rows keep their values
                 and take part in the clock
        weight:  among the round's pushes, such as the batch size
        lr:      overrides the table's learning rate
        assign:  write the rows as they are, past the access method
        """
        op = self._push_op(table, values, keys, within)
        ask = Exchange(
            (op,),
            weight=weight,
            lr=lr,
            assign=assign,
            after=_ids(after),
            timeout_s=timeout_s,
        )
        return self._ask(ask, pump=True)

    def pull(
        self,
        table: str,
        keys: Keys = None,
        out: Tensor | None = None,
        *,
        after: Sequence[Future] = (),
        timeout_s: float | None = None,
    ) -> Future:
        """Fetch rows; the future's result is a tensor (n, *row_shape), `out` where given."""
        op, finish = self._pull_op(table, keys, out)
        ask = Exchange(pulls=(op,), after=_ids(after), timeout_s=timeout_s)
        return self._ask(ask, finish, pump=True)

    def push_pull(
        self,
        table: str,
        values: Tensor,
        keys: Keys = None,
        out: Tensor | None = None,
        *,
        advance: bool = False,
        weight: float = 1.0,
        lr: float | None = None,
        after: Sequence[Future] = (),
        timeout_s: float | None = None,
    ) -> Future:
        """Push, advance if asked to, and pull the same rows: one message a server if it may be."""
        push = self._push_op(table, values, keys, None)
        pull, finish = self._pull_op(table, keys, out)
        ask = Exchange(
            (push,), advance, (pull,), _ids(after), timeout_s=timeout_s, weight=weight, lr=lr
        )
        return self._ask(ask, finish, pump=True)

    def advance(self, *, last: bool = False, after: Sequence[Future] = ()) -> Future:
        """This worker has finished its clock; with `last`, all that could come."""
        return self._ask(Exchange(advance=True, last=last, after=_ids(after)), pump=True)

    def barrier(self, name: str, groups: tuple[Group, ...] = ("workers",)) -> None:
        """Wait until every member of `groups` is here too."""
        self._ask(EnterBarrier(name, groups)).wait()

    def exchange(self, ask: Exchange) -> Future:
        """Any combination of pushes, an advance and pulls, as strategies make them."""
        return self._ask(ask, pump=True)

    def drive(self, program: Generator[Any, Any, T]) -> T:
        """Run a strategy's generator: do what it yields, send it what came, throw what failed.

        It yields `Exchange`, `AllReduce`, or `Start(exchange)` and `Wait(ticket)`.
        """
        tickets: dict[int, Future] = {}
        value: Any = None
        error: ShoalError | None = None
        while True:
            try:
                request = program.throw(error) if error is not None else program.send(value)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]
            value = error = None
            try:
                match request:
                    case AllReduce(tensor):
                        if self.collective is None:
                            raise UsageError("this run has no collective to reduce on")
                        self.collective.all_reduce(tensor)
                    case Start(asked):
                        future = self._ask(asked, pump=True)
                        tickets[future.request_id] = future
                        value = future.request_id
                    case Wait(ticket):
                        future = tickets.pop(ticket)
                        future.wait()
                        value = future.outcome
                    case DeclareTable(spec):
                        self.create_table(spec)
                    case _:
                        future = self._ask(request)
                        future.wait()
                        value = future.outcome
            except ShoalError as failed:
                error = failed

    def close(self) -> None:
        """Tell the cluster that this worker is done, and disconnect."""
        if self._closed:
            return
        if not self._node.stopped:
            try:
                if self._machine.session.view is not None:
                    self.advance(last=True).wait()
                    self._ask(FinishWork()).wait()
            except ShoalError:
                pass  # the run ended first; there is nobody to tell
        self._closed = True
        self._pump_wake.set()
        with self._own():
            self._node.linger()
            self._node.close()
        if self._pump.is_alive() and threading.current_thread() is not self._pump:
            self._pump.join(timeout=2)
        if self.collective is not None:
            self.collective.close()

    def abort(self, reason: str) -> None:
        """Ask the scheduler to end the run for everybody, and disconnect."""
        with self._own():
            if not self._node.stopped:
                effects: list[Any] = []
                self._machine.session.abort(reason, effects)
                self._node._perform(effects)
                self._node.linger()
            self._closed = True
            self._node.close()
        self._pump_wake.set()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort(f"worker-{self.rank} failed: {kind.__name__}: {error}"[:500])

    # ------------------------------------------------------------------ operations

    def _whole(self, table: str, tensor: Tensor) -> tuple[KeyRange, memoryview] | None:
        """A tensor that is all of a table, as it was the last time: checked then."""
        key = (table, id(tensor))
        known = self._known.get(key)
        if known is None or known[0]() is not tensor or known[1] != tensor.data_ptr():
            return None
        return known[2], known[3]

    def _remember(self, table: str, tensor: Tensor, rows: KeyRange, view: memoryview) -> None:
        """Training pushes and pulls the same few tensors for ever."""
        key = (table, id(tensor))
        forget = weakref.ref(tensor, lambda _: self._known.pop(key, None))
        self._known[key] = (forget, tensor.data_ptr(), rows, view)

    def _push_op(self, table: str, values: Tensor, keys: Keys, within: KeyRange | None) -> PushOp:
        known = self._whole(table, values) if keys is None else None
        if known is not None:
            return PushOp(table, *known)
        spec = self.table(table)
        _check_values(spec, values)
        if keys is None or isinstance(keys, KeyRange):
            op = PushOp(table, spec.keys if keys is None else keys, bytes_of(values))
            if keys is None and values.numel() == spec.rows * spec.width:
                self._remember(table, values, op.rows, op.values)
            return op
        chosen, order = _sorted_keys(keys)
        rows = values.reshape(len(order), spec.width)
        if len(chosen) < len(order):
            merged = torch.zeros((len(chosen), spec.width), dtype=rows.dtype)
            merged.index_add_(0, torch.from_numpy(order), rows)
            rows = merged
        else:
            rows = rows[torch.from_numpy(np.argsort(order))]
        return PushOp(
            table, spec.keys if within is None else within, bytes_of(rows.contiguous()), chosen.data
        )

    def _pull_op(
        self, table: str, keys: Keys, out: Tensor | None
    ) -> tuple[PullOp, Callable[[], Tensor]]:
        known = self._whole(table, out) if keys is None and out is not None else None
        if known is not None:
            return PullOp(table, *known), lambda: out  # type: ignore[return-value]
        spec = self.table(table)
        plain = keys is None or isinstance(keys, KeyRange)
        rows = keys if isinstance(keys, KeyRange) else spec.keys
        count_rows = len(rows) if plain else len(keys)  # type: ignore[arg-type]
        if out is None:
            out = torch.empty((count_rows, *spec.row_shape), dtype=DTYPES[spec.dtype])
        _check_values(spec, out)
        if out.numel() != count_rows * spec.width:
            raise InvalidValue(
                f"table {table!r}: {count_rows} rows of {spec.width} do not fit a tensor of shape "
                f"{tuple(out.shape)}"
            )
        target = out
        if plain:
            op = PullOp(table, rows, bytes_of(target))
            if keys is None:
                self._remember(table, target, op.rows, op.out)
            return op, lambda: target
        chosen, order = _sorted_keys(keys)
        staged = torch.empty((len(chosen), spec.width), dtype=out.dtype)
        index = torch.from_numpy(order)

        def finish() -> Tensor:
            target.view(len(order), spec.width).copy_(staged[index])
            return target

        return PullOp(table, spec.keys, bytes_of(staged), chosen.data), finish

    # ------------------------------------------------------------------ driving

    def _ask(
        self, request: object, finish: Callable[[], Any] = lambda: None, pump: bool = False
    ) -> Future:
        future = Future(self, next(self._ids), finish)
        self._futures[future.request_id] = future
        if self.options.debug and isinstance(request, Exchange):
            _watch_buffers(future, request)
        self._enter()
        try:
            if self._node.stopped:
                error = self._node.error or UsageError("this client is closed")
                self._resolved(future.request_id, Outcome(error=error))
                return future
            self._node.handle(Asked(future.request_id, request))
        finally:
            self._lock.release()
        if pump and not self._drivers:
            self._pump_wake.set()
        return future

    @contextmanager
    def _caller_waits(self) -> Iterator[None]:
        """The caller of this thread waits at once for what it asks: leave it all to it."""
        self._drivers += 1
        try:
            yield
        finally:
            self._drivers -= 1

    def _drive_until(self, future: Future, timeout: float | None) -> None:
        if future.outcome is not None:
            return
        until = monotonic() + timeout if timeout is not None else None
        self._drivers += 1
        self._enter()
        try:
            reason = self._machine.hopeless(future.request_id)
            if reason:
                raise WaitsForever(reason)
            while future.outcome is None:
                left = 3600.0 if until is None else until - monotonic()
                if left <= 0:
                    raise RequestTimeout(
                        f"not done within {timeout:g} s; the request goes on (cancel() ends "
                        f"it): {_shown(self._machine.waiting())}"
                    )
                self._poll(left)
        finally:
            self._lock.release()
            self._drivers -= 1
            if self._futures and not self._drivers:
                self._pump_wake.set()

    def _poll(self, limit_s: float) -> None:
        """Poll once with the lock held, then let visitors in."""
        self._node.poll(limit_s)
        if self._node.stopped:
            error = self._node.error or UsageError("the run has ended")
            for request_id in list(self._futures):
                self._resolved(request_id, Outcome(error=error))
        if self._visitors:
            self._lock.release()
            with self._turnstile:  # until the visitor has the lock
                pass
            self._lock.acquire()

    def _enter(self) -> None:
        """Own the machine; a driver that polls is woken to let us in."""
        if not self._lock.acquire(blocking=False):
            with self._turnstile:
                self._visitors += 1
                if not self._node.stopped:
                    self._node.wake()
                self._lock.acquire()
                self._visitors -= 1

    @contextmanager
    def _own(self) -> Iterator[None]:
        self._enter()
        try:
            yield
        finally:
            self._lock.release()

    def _run_pump(self) -> None:
        """Heartbeats while the caller computes; progress while nobody waits."""
        while not self._over():
            left_alone = bool(self._futures) and not self._drivers
            if left_alone:
                idle_s = PUMP_AFTER_S
            elif self._drivers:
                idle_s = 0.05
            else:
                due = self._machine.deadline()
                idle_s = 0.5 if due is None else max(0.0, min(0.5, due - monotonic()))
            self._pump_wake.wait(idle_s)
            self._pump_wake.clear()
            if self._drivers or (self._futures and not left_alone):
                continue  # its caller may be about to wait for it
            with self._own():
                if not self._over():
                    self._poll(0.02 if self._futures else 0.0)

    def _over(self) -> bool:
        return self._closed or self._node.stopped

    def _cancel(self, future: Future) -> bool:
        if future.outcome is not None:
            return False
        self._ask(Cancel(future.request_id)).wait()
        return True

    def _resolved(self, request_id: int, outcome: Outcome) -> None:
        future = self._futures.pop(request_id, None)
        if future is not None:
            future._settle(outcome)

    def _noted(self, note: Note) -> None:
        self.on_note(note)


def connect(address: str, **options: Any) -> Client:
    """Join the cluster whose scheduler is at `address`, as a worker.

    address:  unix:///PATH or tcp://HOST:PORT
    options:  fields of `ClientOptions`: token, init_timeout_s, sync_timeout_s, rank, debug

    Raises:
        JoinTimeout: the cluster was not complete in time
        JoinRefused: the scheduler said no, with its reason

    >>> with shoal.connect("tcp://127.0.0.1:4000") as client:      # doctest: +SKIP
    ...     client.create_table(shoal.TableSpec("w", 1000))
    ...     client.push("w", torch.ones(1000)).wait()
    """
    try:
        chosen = msgspec.convert(options, ClientOptions)
    except msgspec.ValidationError as error:
        raise InvalidValue(f"connect: {error}") from None
    unknown_options = sorted(set(options) - set(ClientOptions.__struct_fields__))
    if unknown_options:
        raise InvalidValue(
            f"connect has no option {', '.join(unknown_options)} "
            f"(known: {', '.join(ClientOptions.__struct_fields__)})"
        )
    return Client(address, chosen)


class Blocking:
    """The client's operations, waited for: `client.blocking.pull("w")` is the tensor.

    Faster than `client.pull("w").wait()`: nobody else is told that there is work.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    def push(self, *args: Any, **options: Any) -> None:
        with self._client._caller_waits():
            self._client.push(*args, **options).wait()

    def pull(self, *args: Any, **options: Any) -> Tensor:
        with self._client._caller_waits():
            rows: Tensor = self._client.pull(*args, **options).wait()
        return rows

    def push_pull(self, *args: Any, **options: Any) -> Tensor:
        with self._client._caller_waits():
            rows: Tensor = self._client.push_pull(*args, **options).wait()
        return rows

    def advance(self, **options: Any) -> None:
        with self._client._caller_waits():
            self._client.advance(**options).wait()


def bytes_of(tensor: Tensor) -> memoryview:
    """A tensor's memory as bytes; it has to be contiguous and on the CPU."""
    if not tensor.is_contiguous() or tensor.device.type != "cpu":
        raise InvalidValue(
            f"values have to be contiguous CPU tensors, not {tensor.device.type} of strides "
            f"{tensor.stride()}; use .cpu().contiguous()"
        )
    if not tensor.numel():
        return memoryview(bytearray())
    view: memoryview = tensor.detach().view(-1).view(torch.uint8).numpy().data
    return view


def _ids(futures: Sequence[Future]) -> tuple[int, ...]:
    return tuple(future.request_id for future in futures)


def _check_values(spec: TableSpec, values: Tensor) -> None:
    if values.dtype != DTYPES[spec.dtype]:
        raise InvalidValue(f"table {spec.name!r} holds {spec.dtype} values, not {values.dtype}")


def _sorted_keys(keys: object) -> tuple[np.ndarray, np.ndarray]:
    """(distinct keys in order, for each given key its place among them)."""
    given = np.asarray(keys)
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        raise InvalidValue(f"keys are a list of row numbers, not {given.dtype} of {given.shape}")
    chosen, order = np.unique(given.astype(np.int64), return_inverse=True)
    return chosen, order


def _watch_buffers(future: Future, request: Exchange) -> None:
    before = [zlib.crc32(op.values) for op in request.pushes]
    finish = future._finish

    def check() -> Any:
        for op, checksum in zip(request.pushes, before, strict=True):
            if zlib.crc32(op.values) != checksum:
                raise BufferInUse(
                    f"the values pushed to table {op.table!r} were written to before the push was "
                    "acknowledged; wait for its future first, or push a copy"
                )
        return finish()

    future._finish = check


def _shown(waiting: list[tuple[str, str]]) -> str:
    return "; ".join(f"{what}: {why}" for what, why in waiting[:4]) or "nothing is unanswered"
