"""Client: a worker's caller. It pushes, pulls and advances, and runs strategies' programs."""

from __future__ import annotations

import logging
import os
import socket
from collections import Counter
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from torch import Tensor

from shoal.client.all_reduce import reduce_of
from shoal.client.blocking import Blocking
from shoal.client.exchanges import After, Exchanges, Keys, ids_of, watch_buffers
from shoal.client.options import ClientOptions
from shoal.client.values import Lens
from shoal.collective.base import AllReduce, Collective
from shoal.collective.worker import CollectiveWorker
from shoal.errors import InvalidValue, ShoalError
from shoal.keys import KeyRange
from shoal.node.driver import Driver, Finish, Future
from shoal.protocol.machine import Note, Outcome
from shoal.protocol.messages import Group
from shoal.protocol.requests import (
    AwaitView,
    DeclareTable,
    EnterBarrier,
    Exchange,
    FinishWork,
    Start,
    Wait,
)
from shoal.protocol.session import Session, SessionOptions
from shoal.protocol.views import View
from shoal.protocol.worker.machine import WorkerOptions
from shoal.tables.opening import checked
from shoal.tables.spec import TableSpec
from shoal.transport import Identity, transport_for

log = logging.getLogger("shoal.client")

T = TypeVar("T")


class Client:
    """A connected worker. Made by `shoal.connect`; close it, or use it in a `with`.

    Thread-safe. `blocking` has the same operations, waited for.
    """

    def __init__(self, address: str, options: ClientOptions | None = None) -> None:
        self.options = options or ClientOptions()
        transport_for(address)  # a malformed one is refused at once
        name = f"w-{os.getpid()}-{os.urandom(4).hex()}"
        session = Session(
            name,
            "worker",
            host=socket.gethostname(),
            rank=self.options.rank,
            options=SessionOptions(
                join_timeout_s=self.options.init_timeout_s,
                group=self.options.group,
                group_size=self.options.group_size,
                namespace=self.options.prefix,
            ),
            process=os.getpid(),
        )
        patience = WorkerOptions(sync_timeout_s=self.options.sync_timeout_s)
        machine = CollectiveWorker(session, patience)
        me = Identity(name, "worker", token=self.options.token)
        self._driver = Driver(machine, me, address)
        self._exchanges = Exchanges(self.table, lambda: self.view, lambda: session.incarnation)
        self.collective: Collective | None = None
        self.blocking = Blocking(self._driver.run, self._exchanges)
        self._listen(address, name)
        try:
            self._driver.ask(AwaitView()).wait()
        except BaseException:
            self._driver.node.close()
            raise
        self._driver.start_pump()

    def _listen(self, scheduler: str, name: str) -> None:
        """Where the other workers reach this one."""
        try:
            bound = self._driver.node.listen(transport_for(scheduler).beside(scheduler, name))
        except (ShoalError, OSError) as error:
            log.info("no worker can reach this one, so that it has no allreduce: %s", error)
            return
        self._driver.machine.session.announce(bound)

    # ------------------------------------------------------------------ who and where

    @property
    def view(self) -> View:
        view = self._driver.machine.session.view
        assert view is not None
        return view

    @property
    def rank(self) -> int:
        return self._driver.machine.session.rank

    @property
    def world_size(self) -> int:
        """Workers of this one's group, in the present view."""
        return self.groups[self.options.group]

    @property
    def groups(self) -> dict[str, int]:
        """How many workers of which groups are in the present view; "" is the first group.

        A group that has finished is in none of the views that follow, where others go on.
        """
        return dict(Counter(member.group for member in self.view.workers))

    @property
    def first_rank(self) -> int:
        """The lowest rank of the workers of this one's group: who does what one is to do."""
        return min(member.rank for member in self.view.group(self.options.group))

    @property
    def clock(self) -> int:
        """The iterations that this worker has finished."""
        return self._driver.machine.clock

    @property
    def bytes_pushed(self) -> int:
        return self._driver.machine.bytes_pushed

    @property
    def bytes_pulled(self) -> int:
        return self._driver.machine.bytes_pulled

    def table(self, name: str) -> TableSpec:
        """The specification of a table of this run."""
        number = self._driver.machine.number_of(name)
        if number is None:
            known = ", ".join(spec.name for spec in self.view.tables) or "none"
            raise InvalidValue(f"no table {name!r} in this run (known: {known})")
        return self.view.tables[number]

    def waiting(self) -> list[tuple[str, str]]:
        """(request, why it waits) of everything unanswered."""
        with self._driver.own():
            return self._driver.machine.waiting()

    @property
    def on_note(self) -> Callable[[Note], None]:
        """Called with what the worker's machine notes, such as views."""
        return self._driver.on_note

    @on_note.setter
    def on_note(self, call: Callable[[Note], None]) -> None:
        self._driver.on_note = call

    # ------------------------------------------------------------------ tables

    def create_table(self, spec: TableSpec) -> TableSpec:
        """Declare a table; all workers may, with the same specification.

        It goes by the clocks of this worker's group, in whose namespace it is. Workers of other
        groups may pull from it, which waits for nobody, and push to it where it is `asp()`.

        Raises:
            UnknownName: no such access method, or it has no such option
            InvalidValue: an option's value, or rows that the access method cannot work on
            Refused: there is another table of that name
        """
        spec = checked(spec)  # what no server could open is refused here
        self._driver.ask(DeclareTable(spec)).wait()
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
        lens: Lens = None,
        cmd: int = 0,
        after: After = (),
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
        lens:    of a custom table: how many of the values each of the sorted keys has
        cmd:     ... and what its handler is told
        """
        return self.exchange(
            self._exchanges.push(
                table,
                values,
                keys,
                within=within,
                weight=weight,
                lr=lr,
                assign=assign,
                lens=lens,
                cmd=cmd,
                after=after,
                timeout_s=timeout_s,
            )
        )

    def pull(
        self,
        table: str,
        keys: Keys = None,
        out: Tensor | None = None,
        *,
        cmd: int = 0,
        after: After = (),
        timeout_s: float | None = None,
    ) -> Future:
        """Fetch rows; the future's result is a tensor (n, *row_shape), `out` where given.

        Of a custom table it is (values, lens), of sorted keys; `cmd` is what its handler is told.
        """
        return self._begin(
            *self._exchanges.pull(table, keys, out, cmd=cmd, after=after, timeout_s=timeout_s)
        )

    def request(self, group: str, head: int, body: bytes = b"", *, table: str) -> Future:
        """A message of one's own to a custom table's handlers; the result is a list of bytes.

        group:  "servers", or one of them, such as "server-1"
        head:   a whole number, and `body` any bytes: handlers get both
        """
        return self._begin(*self._exchanges.request(table, group, head, body))

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
        after: After = (),
        timeout_s: float | None = None,
    ) -> Future:
        """Push, advance if asked to, and pull the same rows: one message a server if it may be."""
        return self._begin(
            *self._exchanges.push_pull(
                table,
                values,
                keys,
                out,
                advance=advance,
                weight=weight,
                lr=lr,
                after=after,
                timeout_s=timeout_s,
            )
        )

    def all_reduce(self, tensor: Tensor, *, mean: bool = False) -> Future:
        """Sum a tensor over all workers of the group, in place, around a ring of them.

        Each worker asks for the same ones in the same order; all end with bitwise the same. The
        tensor is borrowed until the future is done.

        tensor:  contiguous, on the CPU; of numbers
        mean:    divide the sum by the number of workers

        The future's errors: RingBroken where a worker came or went meanwhile.

        Patarasuk & Yuan 2009, "Bandwidth optimal all-reduce algorithms", section 3.
        """
        return self._begin(reduce_of(tensor, mean), pump=True)

    def advance(self, *, last: bool = False, after: After = ()) -> Future:
        """This worker has finished its clock; with `last`, all that could come."""
        return self.exchange(Exchange(advance=True, last=last, after=ids_of(after)))

    def barrier(self, name: str, groups: tuple[Group, ...] = ("workers",)) -> None:
        """Wait until every member of `groups` is here too; of workers, of this one's group.

        Raises:
            InvalidValue: another group than the first asks for servers as well
        """
        if self.options.group and set(groups) != {"workers"}:
            raise InvalidValue(f"servers wait with no group but the first: not {groups}")
        self._driver.ask(EnterBarrier(name, groups)).wait()

    def exchange(self, ask: Exchange) -> Future:
        """Any combination of pushes, an advance and pulls, as strategies make them."""
        return self._begin(self._exchanges.finite.checked(ask))

    def _begin(self, request: object, finish: Finish | None = None, pump: bool = False) -> Future:
        pump = pump or isinstance(request, Exchange)
        return self._driver.ask(request, self._watched(request, finish), pump)

    def _run(self, request: object) -> Outcome:
        """Ask, and wait for how it ends; raises its error."""
        future = self._driver.run(request, self._watched(request, None))
        future.result()
        assert future.outcome is not None
        return future.outcome

    def _watched(self, request: object, finish: Finish | None) -> Finish | None:
        watched = self.options.debug and isinstance(request, Exchange)
        return watch_buffers(request, finish) if watched else finish  # type: ignore[arg-type]

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
                    case AllReduce(tensor, mean, prepared):
                        if self.collective is not None:
                            self.collective.all_reduce(tensor, mean)
                        else:
                            request.request = prepared or reduce_of(tensor, mean)
                            self._driver.run(request.request).result()
                    case Start(asked):
                        future = self.exchange(asked)
                        tickets[future.request_id] = future
                        value = future.request_id
                    case Wait(ticket):
                        future = tickets.pop(ticket)
                        future.wait()
                        value = future.outcome
                    case DeclareTable(spec):
                        self.create_table(spec)
                    case Exchange():
                        value = self._run(self._exchanges.finite.checked(request))
                    case _:
                        value = self._run(request)
            except ShoalError as failed:
                error = failed

    # ------------------------------------------------------------------ the end

    def close(self) -> None:
        """Tell the cluster that this worker is done, and disconnect."""
        if self._driver.closed:
            return
        if not self._driver.node.stopped:
            try:
                if self._driver.machine.session.view is not None:
                    self.advance(last=True).wait()
                    self._driver.ask(FinishWork()).wait()
            except ShoalError:
                pass  # the run ended first; there is nobody to tell
        self._driver.close()
        if self.collective is not None:
            self.collective.close()

    def abort(self, reason: str) -> None:
        """Ask the scheduler to end the run for everybody in the group, and disconnect.

        The end of the first group's is the run's.
        """
        with self._driver.own():
            if not self._driver.node.stopped:
                effects: list[Any] = []
                self._driver.machine.session.abort(reason, effects)
                self._driver.node.perform(effects)
        self._driver.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort(f"{kind.__name__}: {error}"[:500])
