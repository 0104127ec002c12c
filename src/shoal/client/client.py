"""Client: a worker's connection to a cluster."""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import suppress
from math import inf
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any, TypeVar

from shoal.client.blocking import Blocking
from shoal.client.operations import Operations
from shoal.client.options import ClientOptions
from shoal.client.sums import SumsByMpi
from shoal.collective.base import AllGather, AllReduce
from shoal.collective.figures import WorkerFigures
from shoal.errors import RequestTimeout, ShoalError
from shoal.node.driver import Driver
from shoal.node.dropping import drops_of
from shoal.node.future import Future
from shoal.node.launch import host_label, launch_id
from shoal.protocol.machine import Note, Outcome
from shoal.protocol.requests import (
    AbortRun,
    AwaitView,
    DeclareTable,
    Exchange,
    FinishWork,
    Forget,
    Start,
    Wait,
)
from shoal.protocol.session import Session
from shoal.protocol.session_options import SessionOptions
from shoal.protocol.worker.machine import WorkerMachine
from shoal.protocol.worker.options import WorkerOptions
from shoal.protocol.worker.peers.peers import Peers
from shoal.tables.opening import checked
from shoal.tables.spec import TableSpec
from shoal.transport import Identity, transport_for
from shoal.transport.tcp import await_name, seen_from

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger("shoal.client")

CHECK_S = 0.5  # between two looks at a cluster that is not complete yet
ABORT_S = 5.0  # to tell the scheduler; it may be restarting

T = TypeVar("T")


class Client(Operations, WorkerFigures):
    """A worker's connection to a cluster: tables, pushes, pulls, clocks, barriers and allreduce.

    `shoal.init` and `shoal.connect` make one. Close it, or use it in a `with` block; an error in
    the block also ends this worker's group (`ClientOptions.abort_on_error`). It is thread-safe.

    Args:
        address: the address of the scheduler, unix:///PATH, tcp://HOST:PORT or
            tls://HOST:PORT.
        options: the options with which this worker joins.
        check: a function called every half second until the cluster is complete, or has the table
            that is waited for; its exception ends the wait.

    Attributes:
        options: the options with which this worker has joined the run.
        blocking: the same operations, which wait for their results.
        idle_s: the seconds that `drive` has waited for the requests of its programs.

    Raises:
        AddressInvalid: the address is malformed.
        JoinTimeout: the cluster was not complete within `init_timeout_s`.
        JoinRefused: the scheduler refused this worker, with its reason.

    Example:
        >>> import shoal, torch
        >>> client = shoal.init().client
        >>> spec = client.create_table(shoal.TableSpec("docs/client", 3))
        >>> future = client.push("docs/client", torch.tensor([1.0, 2.0, 3.0]))
        >>> client.pull("docs/client", after=future).wait()
        tensor([1., 2., 3.])

    References:
        Li et al. 2014, "Scaling distributed machine learning with the parameter server".
    """

    def __init__(
        self,
        address: str,
        options: ClientOptions | None = None,
        check: Callable[[], object] = lambda: None,
    ) -> None:
        self._check = check
        options = options or ClientOptions()
        transport_for(address)  # a malformed one is refused at once
        left_s = options.init_timeout_s - await_name(address, options.init_timeout_s)
        name = f"w-{os.getpid()}-{os.urandom(4).hex()}"
        session = Session(
            name,
            "worker",
            host=host_label(),
            rank=options.rank,
            options=SessionOptions(
                join_timeout_s=left_s,
                group=options.group,
                group_size=options.group_size,
                namespace=options.prefix,
            ),
            launch=launch_id(),
        )
        limits = WorkerOptions(
            options.sync_timeout_s,
            options.on_timeout,
            probe_s=options.probe_s,
            probe_max_s=max(options.probe_s, WorkerOptions().probe_max_s),
        )
        peers = Peers(session, limits)
        self._machine = machine = WorkerMachine(session, limits, peers)
        me = Identity(name, "worker", token=options.token, tls=options.tls)
        drops = drops_of(
            options.drop_messages, f"worker-{options.rank}" if options.rank >= 0 else name
        )
        super().__init__(Driver(machine, me, address, drops), options)
        self._tickets: dict[int, Future] = {}  # begun by a program; a later one may wait for them
        self.idle_s = 0.0
        self.blocking = Blocking(self._run, self._exchanges, self._sum_up)
        try:
            self._listen(options.listen, address, name)
            self._join()
            if options.collective == "mpi":
                workers = self.world_size
                self._sums = SumsByMpi(
                    self._driver, workers, lambda: peers.ring.gone or self.world_size < workers
                )
        except BaseException:
            self._driver.node.close()
            raise
        self._driver.start_pump()

    def _join(self) -> None:
        """Wait until the cluster is complete."""
        joined = self._driver.ask(AwaitView())
        while not joined.done():
            self._check()
            with suppress(RequestTimeout):
                joined.wait(CHECK_S)
        joined.wait()

    def _sum_up(self, tensor: Tensor, mean: bool) -> None:
        self._sums.sum(self._sums.prepare(tensor, mean))

    def _listen(self, chosen: str, scheduler: str, name: str) -> None:
        """Listen at an address where other workers reach this one, and announce it."""
        try:
            address = chosen or transport_for(scheduler).beside(scheduler, name)
            bound = seen_from(scheduler, self._driver.node.listen(address))
        except (ShoalError, OSError) as error:
            if chosen:
                raise
            log.info("this worker cannot listen, so its allreduces will fail: %s", error)
            return
        self._driver.machine.session.announce(bound)

    # ------------------------------------------------------------------ membership

    @property
    def name(self) -> str:
        """This worker's name in messages and events: "worker-0", or "eval/worker-0" of a group."""
        return self._driver.machine.session.name

    @property
    def run(self) -> str:
        """The run's name, which all of its members know."""
        return self._driver.machine.session.run

    @property
    def world_size(self) -> int:
        """The number of workers of this worker's group in the current view."""
        return self.groups[self.options.group]

    @property
    def groups(self) -> dict[str, int]:
        """The number of workers by group in the current view; "" is the first group.

        A group that has finished is in no later view, while other groups go on.
        """
        return dict(Counter(member.group for member in self.view.workers))

    @property
    def first_rank(self) -> int:
        """The lowest rank of this worker's group; its worker does what only one should do."""
        return min(member.rank for member in self.view.group(self.options.group))

    @property
    def on_note(self) -> Callable[[Note], None]:
        """The callback for the events of this worker's machine, such as new views."""
        return self._driver.node.on_note

    @on_note.setter
    def on_note(self, call: Callable[[Note], None]) -> None:
        self._driver.node.on_note = call

    def await_table(self, name: str, timeout_s: float = 60.0) -> TableSpec:
        """Wait until a table exists, such as one that another group is about to create.

        Args:
            name: the table's name, in this worker's namespace.
            timeout_s: the longest time to wait, in seconds.

        Returns:
            The specification of the table, as `table` returns it.

        Raises:
            RequestTimeout: no worker has created the table in time.
            RunAborted: the run ended with an error.
            UsageError: this client is closed.

        Example:
            >>> import shoal
            >>> client = shoal.init().client
            >>> spec = client.create_table(shoal.TableSpec("docs/awaited", 2))
            >>> client.await_table("docs/awaited") == spec
            True
        """
        if not self.await_until(
            lambda: self._driver.machine.number_of(name) is not None, timeout_s
        ):
            raise RequestTimeout(f"no worker has created table {name!r} in {timeout_s:g} s")
        return self.table(name)

    def await_until(self, true: Callable[[], bool], timeout_s: float = inf) -> bool:
        """Wait until a condition holds that events of this worker's machine change, such as views.

        Args:
            true: the condition; it is asked again after each event.
            timeout_s: the longest time to wait, in seconds.

        Returns:
            Whether it holds.

        Raises:
            RunAborted: the run ended with an error.
            UsageError: this client is closed.

        Example:
            >>> import shoal
            >>> client = shoal.init().client
            >>> client.await_until(lambda: len(client.view.servers) > 1, timeout_s=0.01)
            False
        """
        until, before, changed = monotonic() + timeout_s, self.on_note, threading.Event()

        def noted(note: Note) -> None:
            before(note)
            changed.set()

        self.on_note = noted
        try:
            while not true():
                if error := self._driver.stopped_by():
                    raise error
                self._check()
                left_s = until - monotonic()
                if left_s <= 0:
                    return False
                changed.wait(min(left_s, CHECK_S))
                changed.clear()
        finally:
            self.on_note = before
        return True

    # ------------------------------------------------------------------ programs

    def drive(self, program: Generator[Any, Any, T]) -> T:
        """Run a strategy's generator.

        The generator yields requests (`Exchange`, `AllReduce`, `AllGather`, `Start(exchange)`,
        `Wait(ticket)`, `DeclareTable`, `EnterBarrier`, `TakeLease`). It is sent their outcomes (the
        ticket of a `Start`), and their errors are thrown into it.

        Args:
            program: the generator.

        Returns:
            The generator's return value.

        Raises:
            ShoalError: the error of a request, where the generator does not catch it.

        Example:
            >>> import shoal
            >>> from shoal.protocol.requests import EnterBarrier
            >>> def program():
            ...     yield EnterBarrier("both here")
            ...     return "done"
            >>> shoal.init().client.drive(program())
            'done'
        """
        value: Any = None
        error: ShoalError | None = None
        while True:
            try:
                request = program.throw(error) if error is not None else program.send(value)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]
            value = error = None
            asked_at = perf_counter()
            try:
                match request:
                    case AllReduce():
                        self._sums.sum(request.prepared(self._sums.prepare))
                    case AllGather(data):
                        value = Outcome(value=self._sums.gather(data))
                    case Start(DeclareTable(spec)):
                        future = self._driver.ask(DeclareTable(checked(spec)))
                        self._tickets[future.request_id] = future
                        value = future.request_id
                    case Start(Exchange() as asked):
                        future = self.exchange(asked)
                        self._tickets[future.request_id] = future
                        value = future.request_id
                    case Wait(ticket):
                        future = self._tickets.pop(ticket)
                        future.wait()
                        value = future.outcome
                    case Forget():
                        self._door.forget(request)
                        value = Outcome()
                    case DeclareTable(spec):
                        value = Outcome(value=self.create_table(spec))
                    case _:
                        future = self._run(request)
                        future.result()
                        value = future.outcome
            except ShoalError as failed:
                error = failed
            self.idle_s += perf_counter() - asked_at

    # ------------------------------------------------------------------ the end

    @property
    def closed(self) -> bool:
        """Whether this worker has left the run, well or with an error."""
        return self._driver.closed or self._driver.node.stopped

    @property
    def in_fork(self) -> bool:
        """Whether this process is a fork of the one that joined, and so has no part in the run."""
        return self._driver.in_fork

    def check_process(self) -> None:
        """Refuse a fork of the process that has joined.

        Raises:
            UsageError: this process is a fork.
        """
        if self.in_fork and (error := self._driver.stopped_by()):
            raise error

    def close(self) -> None:
        """Finish this worker's part of the run and disconnect; further calls do nothing."""
        if self._driver.closed:
            return
        if not self._driver.node.stopped:
            try:
                if self._driver.machine.session.view is not None:
                    with suppress(RequestTimeout):  # it goes on, and the farewell waits for it
                        self.advance(last=True).wait()
                    self._driver.ask(FinishWork()).wait()
            except ShoalError:
                pass  # the run has ended first
        self._driver.close()

    def abort(self, reason: str) -> None:
        """Ask the scheduler to end this worker's group with an error, and disconnect.

        Where the group is the first one, the whole run ends: `RunAborted` on every worker.

        Args:
            reason: the reason, for the error message of the other workers.
        """
        with suppress(ShoalError):  # the run has ended, with this error or another
            self._driver.ask(AbortRun(reason)).wait(ABORT_S)
        self._driver.close()

    def fail(self, error: BaseException) -> None:
        """Leave the run because of an error, and end the group unless others may go on.

        Args:
            error: the error. With `ClientOptions.abort_on_error` it ends the group, and the other
                workers are told of it. After a `KeyboardInterrupt` (Ctrl-C), which is meant for
                this worker, the others always go on.
        """
        if self.options.abort_on_error and not isinstance(error, KeyboardInterrupt):
            self.abort(f"{type(error).__name__}: {error}"[:500])
        else:
            self._driver.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        if error is None:
            self.close()
        else:
            self.fail(error)
