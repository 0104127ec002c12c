"""Operations of a client: declare tables, push, pull, advance, synchronise, allreduce."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Unpack

import numpy as np
from torch import Tensor

from shoal.client.exchanges import Exchanges, Keys, ids_of, watch_buffers
from shoal.client.options import (
    After,
    ClientOptions,
    PlannedCheckpoint,
    PullOptions,
    PushOptions,
    PushPullOptions,
)
from shoal.client.sparse.scans import scanned
from shoal.client.sums import Sums, SumsByRing
from shoal.errors import InvalidValue, NotImportable, Refused
from shoal.factories import AT_PROMPT, at_prompt
from shoal.node.driver import Driver
from shoal.node.future import Finish, Future
from shoal.protocol.messages.admin import CheckpointPlanned
from shoal.protocol.messages.membership import Group
from shoal.protocol.requests import DeclareTable, EnterBarrier, Exchange, SaveCheckpoint
from shoal.protocol.views import View
from shoal.pushes import Door
from shoal.storage.run_folder import folder_of
from shoal.tables.encoding import LayerFigures
from shoal.tables.opening import checked, registered
from shoal.tables.spec import TableSpec


class Operations:
    """The operations of a `Client`; each returns a `Future` unless it says that it waits.

    Attributes:
        options: the options with which this worker has joined the run.
    """

    def __init__(self, driver: Driver, options: ClientOptions) -> None:
        self.options = options
        self._driver = driver
        session = driver.machine.session
        self._sums: Sums = SumsByRing(driver)
        self._door = Door(self.table, options.seed, lambda: session.rank)
        self._exchanges = Exchanges(self.table, lambda: self.view, lambda: session.incarnation)

    @property
    def view(self) -> View:
        """The current membership view: members, tables and placements."""
        view = self._driver.machine.session.view
        assert view is not None
        return view

    # ------------------------------------------------------------------ tables

    def table(self, name: str) -> TableSpec:
        """Return the specification of a table of this run.

        Args:
            name: the table's name, in this worker's namespace.

        Returns:
            The specification with its fragment size fixed.

        Raises:
            InvalidValue: the run has no such table.
        """
        number = self._driver.machine.number_of(name)
        if number is None:
            known = ", ".join(spec.name for spec in self.view.tables) or "none"
            raise InvalidValue(f"no table {name!r} in this run (known: {known})")
        return self.view.tables[number]

    def create_table(self, spec: TableSpec) -> TableSpec:
        """Declare a table and wait until servers have it.

        Every worker may declare the table, with the same specification. A table belongs to the
        namespace and goes by the clocks of the group that declares it. Workers of other groups may
        pull from it without waiting, and push to it if its consistency is `asp()`.

        Args:
            spec: the name, shape, dtype, initial values, access method and consistency.

        Returns:
            The specification as the servers have it, with its fragment size fixed.

        Raises:
            UnknownName: no such access method, or the method has no such option.
            InvalidValue: an option out of its range, or rows that the access method cannot use.
            Refused: a table of that name exists with another specification, or the servers do not
                have the memory for it.
            NotImportable: servers cannot import the user's function that the table needs.

        Example:
            >>> import shoal
            >>> client = shoal.init().client
            >>> adam = shoal.tables.Access("adam", {"lr": 0.001})
            >>> client.create_table(shoal.TableSpec("docs/weights", 10, access=adam)).rows
            10
        """
        spec = checked(spec)  # what no server could open is refused here
        try:
            self._driver.ask(DeclareTable(spec)).wait()
        except Refused as error:
            if at_prompt(registered(spec)):
                raise NotImportable(f"{spec.access.name!r} {AT_PROMPT} ({error.message})") from None
            raise
        return self.table(spec.name)

    def push(
        self, table: str, values: Tensor, keys: Keys = None, **options: Unpack[PushOptions]
    ) -> Future:
        """Send an update of rows to their servers, which apply the table's access method.

        With asp() and ssp() a push is applied when it arrives; with `apply_at="round_end"` (bsp)
        the pushes u_i of a round are merged with their weights w_i when the round closes::

            merge "mean"   g = sum_i w_i u_i / sum_i w_i
            merge "sum"    g = sum_i u_i

        Args:
            table: the table's name.
            values: a contiguous CPU tensor (n, *row_shape) of the table's dtype. The buffer is
                borrowed: it must not change before the future is done.
            keys: None for the whole table or a `KeyRange`, of dense tables only; or (n,) integers.
                Values of repeated keys are added up (or merged by a user's row method); if they
                are assigned to a sparse table, the last ones count. A custom table takes sorted
                and distinct keys.
            options: the fields of `PushOptions`: within, weight, lr, assign, lens, cmd, after,
                timeout_s.

        Returns:
            A future, done when the servers have applied the push or accepted it for its round.

        Raises:
            InvalidValue: values of another shape, dtype or device, or unknown keys.
            NotFinite: the values hold a NaN or an infinity that the table refuses
                (`TableSpec.nonfinite`); nothing was sent.

        Example:
            >>> import shoal, torch
            >>> client = shoal.init().client
            >>> spec = client.create_table(shoal.TableSpec("docs/push", 4))
            >>> client.push("docs/push", torch.ones(2), keys=[0, 3]).wait()
            >>> client.pull("docs/push").wait()
            tensor([1., 0., 0., 1.])

        References:
            Li et al. 2014, section 3.2 (range push and pull).
        """
        return self._begin(self._exchanges.push(table, values, keys, **options))

    def pull(
        self,
        table: str,
        keys: Keys = None,
        out: Tensor | None = None,
        **options: Unpack[PullOptions],
    ) -> Future:
        """Fetch rows.

        At clock c, with m the clock of the slowest worker, servers answer a pull when::

            bsp     m >= c
            ssp(s)  m >= c - s
            asp     always

        Args:
            table: the table's name.
            keys: as in `push`.
            out: a contiguous CPU tensor (n, *row_shape) of the table's dtype that receives the
                rows; a new one by default. It must not be used before the future is done.
            options: the fields of `PullOptions`: cmd, exact, after, timeout_s.

        Returns:
            A future of the rows, (n, *row_shape); for a custom table, whose keys have to be sorted
            and which takes no `out`, a future of (values, lens).

        Raises:
            InvalidValue: unknown keys, or an `out` of another shape, dtype or device.

        Example:
            >>> import shoal, torch
            >>> client = shoal.init().client
            >>> init = shoal.tables.Init("constant", 2.0)
            >>> spec = client.create_table(shoal.TableSpec("docs/pull", 3, (2,), init=init))
            >>> client.pull("docs/pull", keys=[2, 0]).wait()
            tensor([[2., 2.],
                    [2., 2.]])

        References:
            Ho et al. 2013, section 2 (stale synchronous parallel).
        """
        return self._begin(*self._exchanges.pull(table, keys, out, **options))

    def push_pull(
        self,
        table: str,
        values: Tensor,
        keys: Keys = None,
        out: Tensor | None = None,
        **options: Unpack[PushPullOptions],
    ) -> Future:
        """Push, optionally advance, and pull the same rows, in one message per server if possible.

        Args:
            table: the table's name; not a custom table.
            values: as in `push`.
            keys: as in `push`.
            out: as in `pull`.
            options: the fields of `PushPullOptions`: advance, weight, lr, after, timeout_s.

        Returns:
            A future of the rows, (n, *row_shape).

        Raises:
            InvalidValue: as `push` and `pull`.
            NotFinite: as `push`.

        Example:
            >>> import shoal, torch
            >>> client = shoal.init().client
            >>> spec = client.create_table(shoal.TableSpec("docs/push_pull", 2))
            >>> client.push_pull("docs/push_pull", torch.tensor([1.0, 2.0]), advance=True).wait()
            tensor([1., 2.])
        """
        return self._begin(*self._exchanges.push_pull(table, values, keys, out, **options))

    def request(self, group: str, head: int, body: bytes = b"", *, table: str) -> Future:
        """Send a message to the handlers of a custom table.

        Args:
            group: "servers" for every server, or one server's name, such as "server-1".
            head: a 64-bit integer for the handler.
            body: the bytes for the handler.
            table: the table's name.

        Returns:
            A future of a list of bytes: the answer of each shard whose head was asked, by the
            rank of the head.

        Raises:
            InvalidValue: the table is not custom, the server is unknown or the head of no shard
                of the table, or the head or the body is of another type.

        Example:
            >>> answers = client.request("servers", 1, b"count", table="lists")  # doctest: +SKIP
        """
        return self._begin(*self._exchanges.request(table, group, head, body))

    # ------------------------------------------------------------------ clocks

    def advance(self, *, last: bool = False, after: After = ()) -> Future:
        """End the current clock of this worker, which pushes no more for this iteration.

        Args:
            last: whether every later clock ends as well, so that no other worker waits for this
                one any more.
            after: the futures to be resolved before this request is sent.

        Returns:
            A future, done when every server knows the clock.

        Example:
            >>> import shoal
            >>> client = shoal.init().client
            >>> before = client.clock
            >>> client.advance().wait()
            >>> client.clock - before
            1
        """
        return self.exchange(Exchange(advance=True, last=last, after=ids_of(after)))

    def barrier(self, name: str, groups: tuple[Group, ...] = ("workers",)) -> None:
        """Wait until every member of `groups` has entered the barrier.

        Args:
            name: the barrier's name. Entering it again starts its next generation.
            groups: "workers" (of this worker's group), "servers" or both.

        Raises:
            InvalidValue: an attached group waits for servers.

        Example:
            >>> import shoal
            >>> shoal.init().client.barrier("data loaded")
        """
        if self.options.group and set(groups) != {"workers"}:
            raise InvalidValue(
                f"servers enter barriers of the first group only; group {self.options.group!r} "
                f"may wait for ('workers',), not for {groups}"
            )
        self._driver.ask(EnterBarrier(name, groups)).wait()

    def scan(self, table: str) -> Iterator[tuple[Tensor, Tensor]]:
        """Read all rows of a sparse table that were created and not evicted.

        Rows come by ranges of hash slots, of about 64 MiB each. A range is one pull, with the
        consistency of the table; with `asp` and `ssp` it is of one moment on each server. A scan
        creates no rows.

        Args:
            table: the name of a sparse table.

        Returns:
            An iterator of (keys, rows): (n,) int64, the bits of uint64 keys, and (n, *row_shape).

        Raises:
            InvalidValue: no such table, or one that is not sparse.

        Example:
            >>> import shoal, torch
            >>> client = shoal.init().client
            >>> spec = client.create_table(shoal.TableSpec("docs/scanned", 0, (2,), kind="sparse"))
            >>> client.push("docs/scanned", torch.ones(1, 2), keys=[7]).wait()
            >>> list(client.scan("docs/scanned"))
            [(tensor([7]), tensor([[1., 1.]]))]
        """
        return scanned(self.table(table), table, self.exchange)

    def checkpoint(self) -> PlannedCheckpoint:
        """Ask the servers for a checkpoint at the earliest clock that every worker can still reach.

        It is taken at a clock d a few clocks ahead, while training continues. It has every table of
        the first group, dense or sparse, with all rounds below d and none from d on; tables with
        `asp()` and custom ones are as they are when d is reached. It is complete once every worker
        has finished d clocks; so do not wait for its files before the next steps.

        Returns:
            The clock d, and the folder of the checkpoint on each host with servers.

        Raises:
            Refused: the servers have no folder for checkpoints, or no worker is at work.

        Example:
            >>> client = shoal.connect("shoal-runs/mine", group="admin")  # doctest: +SKIP
            >>> client.checkpoint()  # doctest: +SKIP
            PlannedCheckpoint(clock=124, folders={'host-a': '/data/mine/checkpoints/0000000124'})
        """
        future = self._run(SaveCheckpoint())
        future.result()
        assert future.outcome is not None
        planned: CheckpointPlanned = future.outcome.value
        folders = {host: f"{at}/{folder_of(planned.saved_as)}" for host, at in planned.folders}
        return PlannedCheckpoint(planned.saved_as, folders)

    def all_reduce(self, tensor: Tensor, *, mean: bool = False) -> Future:
        """Sum a tensor over all workers of the group, in place.

        On a ring of P workers each sends 2 (P - 1) / P of it, or P - 1 times a small tensor. All
        workers call it for the same tensors in the same order, and all get bitwise the same result.
        With the collective "mpi" the sum is done when this returns.

        Args:
            tensor: a contiguous CPU tensor of numbers, borrowed until the future is done.
            mean: whether the sum is divided by the number of workers.

        Returns:
            A future, done when the tensor holds the sum. It fails with `RingBroken` if a worker
            joins or leaves meanwhile.

        Raises:
            InvalidValue: no contiguous CPU tensor of numbers, or the mean of integers.

        Example:
            >>> import shoal, torch
            >>> gradient = torch.tensor([1.0, 2.0])
            >>> shoal.init().client.all_reduce(gradient, mean=True).wait()
            >>> gradient
            tensor([1., 2.])

        References:
            Patarasuk & Yuan 2009, section 3 (bandwidth optimal allreduce).
        """
        return self._sums.begin(self._sums.prepare(tensor, mean))

    def exchange(self, ask: Exchange) -> Future:
        """Send any combination of pushes, an advance and pulls as one request.

        Args:
            ask: the operations, whose buffers are borrowed until the future is done.

        Returns:
            A future, done when every server has answered.

        Raises:
            NotFinite: a push holds a NaN or an infinity that its table refuses
                (`TableSpec.nonfinite`); nothing was sent.
        """
        return self._begin(ask)

    def codec_figures(self) -> list[LayerFigures]:
        """Return, by layer, what codecs made of one of this worker's pushes to each table.

        Returns:
            The figures of the first push since the last call of this method; none at the first.
        """
        return self._door.figures()

    def residuals(self) -> dict[str, dict[str, np.ndarray]]:
        """Return, by table, what codecs have left out of this worker's pushes so far.

        Returns:
            Of each table "residual", (rows * width,) float32, and "units", (fragments,): the weight
            in whose units the residual of each fragment is. It belongs to a checkpoint of the
            worker, for `load_residuals`.
        """
        return self._door.state_dict()

    def load_residuals(self, state: Mapping[str, Mapping[str, Any]], start_clock: int = 0) -> None:
        """Continue with what `residuals` has returned in an earlier run, before the first push.

        Args:
            state: what it has returned.
            start_clock: the clock of the worker then, so that codecs draw the random bits that they
                would have drawn.
        """
        self._door.load_state_dict(state, start_clock)

    def waiting(self) -> list[tuple[str, str]]:
        """Return the unanswered requests, each with the reason why it waits.

        Returns:
            The pairs (request, reason).
        """
        with self._driver.own():
            return self._driver.machine.waiting()

    def _begin(self, request: object, finish: Finish | None = None) -> Future:
        """Submit a request."""
        asked = isinstance(request, Exchange)
        sent, finish = self._ready(request, finish)
        return self._watched(self._driver.ask(sent, finish, asked), sent)

    def _run(self, request: object, finish: Finish | None = None) -> Future:
        """Submit a request and wait; the future is done."""
        sent, finish = self._ready(request, finish)
        return self._watched(self._driver.run(sent, finish), sent)

    def _ready(self, request: object, finish: Finish | None) -> tuple[object, Finish | None]:
        """Return a request as it is sent, and what finishes it."""
        if not isinstance(request, Exchange):
            return request, finish
        ready = self._door.ready(request, self._driver.machine.clock)
        return ready, watch_buffers(ready, finish) if self.options.debug else finish

    def _watched(self, future: Future, sent: object) -> Future:
        """Return the future of a request; if it was encoded, what does not count is kept."""
        if isinstance(sent, Exchange) and any(op.sizes for op in sent.pushes):
            future.add_done_callback(partial(self._settled, sent))
        return future

    def _settled(self, sent: Exchange, future: Future) -> None:
        assert future.outcome is not None
        self._door.settled(sent, future.outcome)
