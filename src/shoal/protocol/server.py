"""The server's machine: arrival, push, advance, pull, rounds, and what waits.

Architecture invariant: absent here are tensors (a `Shard` does the arithmetic), replication (one
replica a fragment, so *acknowledged* means applied here), and any clock but `now`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from math import inf
from typing import Any, Literal, Protocol

import msgspec

from shoal.errors import InvariantBroken, ShoalError
from shoal.keys import KeyRange
from shoal.protocol.consistency import AtClose, VectorClock, needed, settles
from shoal.protocol.machine import (
    Accept,
    Arrival,
    Asked,
    Discard,
    Effects,
    Event,
    Note,
    PeerLost,
    Received,
    Send,
    Sink,
    Story,
    Ticked,
)
from shoal.protocol.messages import (
    FOREVER,
    NO_VIEW,
    SCHEDULER,
    Code,
    Freeze,
    Frozen,
    Member,
    Message,
    NodeId,
    Nudge,
    Part,
    Probe,
    Reply,
    Request,
    View,
    ViewId,
    describe,
)
from shoal.protocol.session import Session
from shoal.tables.spec import TableSpec

WINDOW = 256  # requests that one worker may have in flight


class Staged(Protocol):
    """A push that has come in whole and is not applied yet."""

    views: list[memoryview]

    def problem(self) -> str: ...


class Shard(Protocol):
    """One server's part of a table (`tables.dense.DenseShard`); it stages what it applies."""

    spec: TableSpec
    held: KeyRange

    def stage(self, rows: KeyRange, keys: int) -> Any: ...
    def stage_keys(self, rows: KeyRange, keys: int) -> Any: ...
    def apply(self, staged: Any, lr: float | None) -> None: ...
    def write(self, staged: Any) -> None: ...
    def merge(self, contributions: Sequence[tuple[float, float | None, Any]]) -> None: ...
    def read(self, rows: KeyRange) -> memoryview: ...
    def read_keys(self, staged: Any) -> memoryview: ...


OpenShard = Callable[[TableSpec, KeyRange], Shard]
Loads = list[Staged]  # one per push part, then one per keyed pull part


class Contribution(msgspec.Struct):
    """One push in a round's accumulator: accepted, not acknowledged."""

    rank: int
    incarnation: int
    seq: int
    weight: float
    lr: float | None
    parts: list[tuple[int, Staged]]


class Parked(msgspec.Struct):
    """A pull that waits until every worker has reached `clock`."""

    sender: NodeId
    request: Request
    loads: Loads
    clock: int
    since: float


class Arrived(msgspec.Struct, frozen=True):
    """What a sink on this server fills, and the view that it was accepted in."""

    loads: Loads
    view: ViewId


class Window:
    """Which requests of one incarnation this server has seen: a high-water mark and a few bits.

    `settled_below` only grows, and a request below it is forgotten, so the table is bounded by
    the WINDOW requests that may be in flight.
    """

    __slots__ = ("codes", "settled_below")

    def __init__(self) -> None:
        self.settled_below = 0
        self.codes: dict[int, Code] = {}

    def settle(self, below: int) -> None:
        if below > self.settled_below:
            self.settled_below = below
            for seq in [seq for seq in self.codes if seq < below]:
                del self.codes[seq]


Verdict = Literal[
    "fresh", "again", "seen", "settled", "frozen", "stale", "stranger", "too many", "misfit"
]


class ServerMachine:
    """Holds shards, applies pushes, answers pulls when their consistency admits them."""

    def __init__(self, session: Session, open_shard: OpenShard) -> None:
        self.session = session
        self.shards: list[Shard] = []
        self.clocks = VectorClock()
        self.counters: Counter[str] = Counter()
        self._open_shard = open_shard
        self._promised = NO_VIEW
        self._members: dict[NodeId, Member] = {}  # the view's workers
        self._windows: dict[int, Window] = {}
        self._rounds: dict[int, list[Contribution]] = {}
        self._weights: dict[int, float] = {}  # of rounds that closed, the latest few
        self._open_round = 0  # the slowest worker's last finite clock, and after every closed round
        self._parked: dict[tuple[int, int], Parked] = {}
        self._unopened = ""  # why a table of the view is not here; the run is being aborted
        self._story = Story()

    # ------------------------------------------------------------------ the contract

    def arriving(self, sender: NodeId, message: Message, nbytes: int) -> Arrival:
        """Where a payload goes. Changes nothing: `handle` decides again once it is here."""
        if not isinstance(message, Request):
            return Discard(f"a {type(message).__name__} has no payload")
        verdict = self._verdict(sender, message)
        if verdict not in ("fresh", "again"):
            return Discard(verdict)
        loads = self._stage(message)
        arrived = Arrived(loads, self.session.view_id)
        sink = Sink([view for load in loads for view in load.views], arrived)
        if sink.nbytes != nbytes:
            return Discard(f"{nbytes} bytes announced where the parts need {sink.nbytes}")
        return Accept(sink)

    def handle(self, event: Event, now: float) -> Effects:
        out: Effects = []
        match event:
            case Received(sender, message, payload):
                self._story.add(now, sender, message)
                if isinstance(message, Request):
                    self._request(sender, message, payload, now, out)
                elif isinstance(message, Probe):
                    self._probe(sender, message, out)
                elif isinstance(message, Freeze):
                    self._freeze(message, out)
                elif sender == SCHEDULER:
                    view = self.session.handle(message, now, out)
                    if view is not None:
                        self._adopt(view, out)
                else:
                    self._count(out, "unexpected", sender, type(message).__name__)
            case Ticked():
                self.session.tick(now, out)
            case PeerLost():
                pass  # views say who is gone; a broken connection may come back
            case Asked(request_id, request):
                name, groups = request
                self.session.enter_barrier(request_id, name, groups, now, out)
        self.session.progress += 1
        return out

    def deadline(self) -> float | None:
        return self.session.deadline()

    def address_of(self, node: NodeId) -> str | None:
        member = self.session.view.member(node) if self.session.view else None
        return member.address if member and member.role == "server" else None

    def check(self) -> None:
        """Every parked pull has a reason that is still true; no closed round is kept."""
        for parked in self._parked.values():
            if not self.frozen and self.clocks.minimum >= parked.clock:
                raise self._broken(
                    f"{self.session.name}: {describe(parked.request)} is parked although every "
                    f"worker has reached clock {parked.clock}"
                )
        for clock in self._rounds:
            if not self.frozen and clock < self.clocks.minimum:
                raise self._broken(
                    f"{self.session.name}: round {clock} is open at clock {self.clocks.minimum}"
                )

    @property
    def frozen(self) -> bool:
        """Between the promise of a view and the view itself, nothing is applied or answered."""
        return self._promised > self.session.view_id

    def waiting(self) -> list[tuple[str, str]]:
        """(request, reason) of everything parked."""
        return [(describe(p.request), self._why(p)) for p in self._parked.values()]

    # ------------------------------------------------------------------ views

    def _freeze(self, message: Freeze, out: Effects) -> None:
        if message.view <= self.session.view_id:
            return
        self._promised = max(self._promised, message.view)
        if message.view == self._promised:
            clocks = tuple(self.clocks.items())
            out.append(Send(SCHEDULER, Frozen(message.view, clocks, self._open_round)))

    def _adopt(self, view: View, out: Effects) -> None:
        self._promised = max(self._promised, view.id)
        self._open_tables(view, out)
        present = {m.incarnation: m for m in view.workers}
        self._members = {m.id: m for m in view.workers}
        last_clocks = {m.incarnation: m.last_clock for m in view.departed}
        for worker, _ in list(self.clocks.items()):
            if worker not in present:
                self.clocks.leave(worker)
                self._drop_worker(worker, last_clocks.get(worker, 0))
        for worker, member in present.items():
            if worker not in self.clocks:
                self.clocks.enter(worker, member.first_clock)
        self._windows = {worker: self._windows.get(worker) or Window() for worker in present}
        self._settle(out)

    def _open_tables(self, view: View, out: Effects) -> None:
        mine = next(i for i, m in enumerate(view.servers) if m.id == self.session.me)
        for number in range(len(self.shards), len(view.tables)):
            held = view.rows_of(number, mine)
            try:
                self.shards.append(self._open_shard(view.tables[number], held))
            except ShoalError as error:  # the client checks first; this is for one that did not
                self._unopened = error.message
                self.session.abort(error.message, out)
                return

    def _drop_worker(self, worker: int, last_clock: int) -> None:
        """A dead worker counts in the rounds below its last clock and in no others (rule 5)."""
        for clock in [c for c in self._rounds if c >= last_clock]:
            kept = [c for c in self._rounds[clock] if c.incarnation != worker]
            self._rounds[clock] = kept
        for key in [key for key in self._parked if key[0] == worker]:
            del self._parked[key]

    # ------------------------------------------------------------------ requests

    def _verdict(self, sender: NodeId, request: Request | Probe) -> Verdict:
        view = self.session.view
        if view is None or self.frozen:
            return "frozen"
        window = self._windows.get(request.incarnation)
        member = self._members.get(sender)
        if window is None or member is None or member.incarnation != request.incarnation:
            return "stranger"
        if request.seq < window.settled_below:
            return "settled"
        if request.seq in window.codes:
            lost = isinstance(request, Request) and request.pulls and not request.pushes
            return "again" if lost and window.codes[request.seq] == "applied" else "seen"
        if request.view != self.session.view_id:
            return "stale"
        if isinstance(request, Request):
            if request.seq >= max(window.settled_below, request.settled_below) + WINDOW:
                return "too many"
            if not 0 < request.weight < inf or not all(
                self._fits(part) for part in (*request.pushes, *request.pulls)
            ):
                return "misfit"
        return "fresh"

    def _fits(self, part: Part) -> bool:
        if not 0 <= part.table < len(self.shards):
            return False
        held = self.shards[part.table].held
        return held.start <= part.start <= part.stop <= held.stop and part.keys <= (
            part.stop - part.start
        )

    def _stage(self, request: Request) -> Loads:
        loads: Loads = []
        for part in request.pushes:
            rows = KeyRange(part.start, part.stop)
            loads.append(self.shards[part.table].stage(rows, part.keys))
        for part in request.pulls:
            if part.keys >= 0:
                rows = KeyRange(part.start, part.stop)
                loads.append(self.shards[part.table].stage_keys(rows, part.keys))
        return loads

    def _request(
        self, sender: NodeId, request: Request, payload: Sink | None, now: float, out: Effects
    ) -> None:
        if not self._still_fresh(request, payload):
            verdict = self._verdict(sender, request)
            if verdict not in ("fresh", "again"):
                self._decline(sender, request, verdict, out)
                return
        window = self._windows[request.incarnation]
        self._forget_below(window, request)
        loads: Loads = payload.context.loads if payload is not None else self._stage(request)
        if payload is None and any(view.nbytes for load in loads for view in load.views):
            # Its payload was discarded on arrival, for a reason that has passed since.
            self._reply(out, sender, request, "missing")
            return
        problem = next(filter(None, (load.problem() for load in loads)), "")
        if problem:
            window.codes[request.seq] = "refused"
            self._reply(out, sender, request, "refused", problem)
            return
        accepted = False
        if request.pushes:
            if self._too_late(sender, request, window, out):
                return
            accepted = self._push(sender, request, loads, window, out)
        if request.advance >= 0:
            self._advance(request.incarnation, request.advance, out)
        if request.pulls:
            self._pull(sender, request, loads[len(request.pushes) :], accepted, now, out)
        elif not accepted:
            window.codes[request.seq] = "applied"
            self._reply(out, sender, request, "applied")
        elif window.codes[request.seq] == "accepted":  # and its own advance did not close it
            self._reply(out, sender, request, "accepted")

    def _still_fresh(self, request: Request, payload: Sink | None) -> bool:
        """Whether `arriving` accepted this in the present view and no copy overtook it since."""
        if payload is None or self.frozen or payload.context.view != self.session.view_id:
            return False
        window = self._windows[request.incarnation]
        return request.seq not in window.codes and request.seq >= window.settled_below

    def _forget_below(self, window: Window, request: Request) -> None:
        """Whatever its worker has settled, or given up, is not kept, and not answered any more."""
        if request.settled_below <= window.settled_below:
            return
        window.settle(request.settled_below)
        worker = request.incarnation
        for key in [k for k in self._parked if k[0] == worker and k[1] < request.settled_below]:
            del self._parked[key]

    def _decline(self, sender: NodeId, request: Request, verdict: Verdict, out: Effects) -> None:
        self._count(out, verdict, sender, describe(request))
        if verdict == "seen":
            self._tell_state(sender, request, out)
        elif verdict == "stale":
            self._reply(out, sender, request, "stale")
            if request.view > self.session.view_id:
                self.session.ask_for_view(out)
        elif verdict in ("too many", "misfit"):
            reason = (
                f"more than {WINDOW} requests in flight"
                if verdict == "too many"
                else self._unopened
                or "it names rows or a table that this server does not hold, or has no weight"
            )
            self._reply(out, sender, request, "refused", reason)

    def _too_late(self, sender: NodeId, request: Request, window: Window, out: Effects) -> bool:
        """Refuse a push for a round that takes no more from this worker."""
        reached = self.clocks[request.incarnation]
        if not self._closing(request) or request.clock >= reached:
            return False
        window.codes[request.seq] = "round_closed"
        reason = f"this worker is at clock {reached}; round {request.clock} takes no more"
        self._reply(out, sender, request, "round_closed", reason)
        return True

    def _push(
        self, sender: NodeId, request: Request, loads: Loads, window: Window, out: Effects
    ) -> bool:
        """Apply the push parts, or put them into their round: then True, *accepted*."""
        kept: list[tuple[int, Staged]] = []
        for part, staged in zip(request.pushes, loads, strict=False):
            shard = self.shards[part.table]
            if request.assign:
                shard.write(staged)
            elif isinstance(settles(shard.spec.consistency, request.clock), AtClose):
                kept.append((part.table, staged))
            else:
                shard.apply(staged, request.lr)
        code: Code = "accepted" if kept else "applied"
        if request.pulls:
            code = "parked"  # the answer with the rows acknowledges the push as well
        window.codes[request.seq] = code
        out.append(Note("pushed", {"request": request, "code": code}))
        if kept:
            entry = Contribution(
                self._members[sender].rank,
                request.incarnation,
                request.seq,
                request.weight,
                request.lr,
                kept,
            )
            self._rounds.setdefault(request.clock, []).append(entry)
        return bool(kept)

    def _closing(self, request: Request) -> bool:
        return not request.assign and any(
            self.shards[part.table].spec.consistency.settles == "close" for part in request.pushes
        )

    def _advance(self, worker: int, to: int, out: Effects) -> None:
        before = self.clocks.minimum
        if self.clocks.advance(worker, to) and self.clocks.minimum != before:
            self._settle(out)

    def _pull(
        self,
        sender: NodeId,
        request: Request,
        keys: Loads,
        accepted: bool,
        now: float,
        out: Effects,
    ) -> None:
        """Answer with rows, now or when the slowest worker has reached what the rules ask.

        The answer acknowledges the request's own push too, so it also waits for that round.
        """
        clock = _read_clock(request)
        rules = [self.shards[part.table].spec.consistency for part in request.pulls]
        need = max(needed(rule, clock) for rule in rules)
        if accepted:
            need = max(need, request.clock + 1)
        parked = Parked(sender, request, keys, need, now)
        if need <= self.clocks.minimum:
            self._serve(parked, out)
            return
        self._windows[request.incarnation].codes[request.seq] = "parked"
        self._parked[request.incarnation, request.seq] = parked
        out.append(Note("parked", {"worker": request.incarnation, "reason": self._why(parked)}))

    def _serve(self, parked: Parked, out: Effects) -> None:
        request = parked.request
        buffers: list[memoryview] = []
        keyed = iter(parked.loads)
        for part in request.pulls:
            shard = self.shards[part.table]
            if part.keys >= 0:
                buffers.append(shard.read_keys(next(keyed)))
            else:
                buffers.append(shard.read(KeyRange(part.start, part.stop)))
        self._parked.pop((request.incarnation, request.seq), None)
        self._windows[request.incarnation].codes[request.seq] = "applied"
        self._reply(out, parked.sender, request, "applied", buffers=tuple(buffers))

    # ------------------------------------------------------------------ rounds

    def _settle(self, out: Effects) -> None:
        """Close every round below the slowest clock, then look at the parked pulls again."""
        minimum = self.clocks.minimum
        if minimum < FOREVER:
            self._open_round = max(self._open_round, minimum)
        for clock in sorted(c for c in self._rounds if c < minimum):
            self._close(clock, out)
        for parked in [p for p in self._parked.values() if p.clock <= minimum]:
            self._serve(parked, out)

    def _close(self, clock: int, out: Effects) -> None:
        """Merge the round's pushes in rank order, apply them once, acknowledge them."""
        entries = sorted(self._rounds.pop(clock), key=lambda entry: (entry.rank, entry.seq))
        tables = sorted({table for entry in entries for table, _ in entry.parts})
        for table in tables:
            self.shards[table].merge(
                [
                    (entry.weight, entry.lr, staged)
                    for entry in entries
                    for number, staged in entry.parts
                    if number == table
                ]
            )
        self._open_round = max(self._open_round, clock + 1)
        self._weights[clock] = sum(entry.weight for entry in entries)
        for old in [c for c in self._weights if c < clock - WINDOW]:
            del self._weights[old]
        workers = self._workers()
        out.append(Note("closed", {"clock": clock, "pushes": len(entries)}))
        for entry in entries:
            window = self._windows.get(entry.incarnation)
            if window is None or window.codes.get(entry.seq) != "accepted":
                continue  # it has left, or its pull in the same request answers for both
            window.codes[entry.seq] = "applied"
            out.append(
                Send(
                    workers[entry.incarnation].id,
                    Reply(entry.incarnation, entry.seq, self.session.view_id, "applied"),
                )
            )

    # ------------------------------------------------------------------ answers

    def _probe(self, sender: NodeId, probe: Probe, out: Effects) -> None:
        verdict = self._verdict(sender, probe)
        if verdict == "fresh":
            self._reply(out, sender, probe, "missing")
        elif verdict == "seen":
            self._tell_state(sender, probe, out)
        elif verdict == "stale":
            self._reply(out, sender, probe, "stale")
        else:
            self._count(out, verdict, sender, describe(probe))

    def _tell_state(self, sender: NodeId, request: Request | Probe, out: Effects) -> None:
        code = self._windows[request.incarnation].codes[request.seq]
        parked = self._parked.get((request.incarnation, request.seq))
        target = parked.clock if parked else self.clocks.minimum + 1
        reason = ""
        if parked is not None or code == "accepted":
            reason = self._absent(target)
        self._reply(out, sender, request, code, reason)
        if isinstance(request, Probe) and request.urgent and reason:
            for worker, member in self._workers().items():
                if worker in self.clocks and self.clocks[worker] < target:
                    out.append(Send(member.id, Nudge(reason)))

    def _reply(
        self,
        out: Effects,
        to: NodeId,
        request: Request | Probe,
        code: Code,
        reason: str = "",
        buffers: tuple[memoryview, ...] = (),
    ) -> None:
        weight = -1.0
        if buffers and isinstance(request, Request):
            weight = self._weights.get(_read_clock(request) - 1, 0.0)
        reply = Reply(
            request.incarnation,
            request.seq,
            self.session.view_id,
            code,
            reason,
            self.clocks.minimum,
            weight,
            sum(view.nbytes for view in buffers),
        )
        out.append(Send(to, reply, buffers, volatile=True))

    def _why(self, parked: Parked) -> str:
        return self._absent(parked.clock)

    def _absent(self, clock: int) -> str:
        """Who keeps `clock` from being reached: every wait is explained by this line."""
        workers = self._workers()
        late = [
            f"{workers[worker].name} (at {self.clocks[worker]})"
            for worker in self.clocks.behind(clock)
            if worker in workers
        ]
        return f"waits for clock {clock} of {', '.join(late)}" if late else ""

    def _workers(self) -> dict[int, Member]:
        view = self.session.view
        return {m.incarnation: m for m in view.workers} if view else {}

    def _count(self, out: Effects, kind: str, sender: NodeId, what: str) -> None:
        self.counters[kind] += 1
        out.append(Note("declined", {"kind": kind, "sender": sender, "what": what}))

    def _broken(self, message: str) -> InvariantBroken:
        return self._story.broken(message)


def _read_clock(request: Request) -> int:
    return request.advance if request.advance >= 0 else request.clock
