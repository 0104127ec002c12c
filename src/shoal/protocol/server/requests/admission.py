"""Admission: decides which requests a server admits, on arrival and before execution."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Mapping, Sequence
from math import inf
from typing import Literal

import msgspec

from shoal.keys import KeyRange
from shoal.protocol.layout import KEY_BYTES, Layout
from shoal.protocol.limits import KEYS_MAX, REPEATS_MAX, WINDOW
from shoal.protocol.messages.base import SAME, Part, Sizes
from shoal.protocol.messages.requests import Probe, Request
from shoal.protocol.server.state.replica import NONE, Cut, Replica
from shoal.protocol.server.state.request_log import RequestLog
from shoal.protocol.views import NO_VIEW, NodeId, View, ViewId
from shoal.tables.spec import TableSpec

Verdict = Literal[
    "fresh",
    "again",
    "seen",
    "forgotten",
    "frozen",
    "stale",
    "stranger",
    "too many",
    "out_of_order",
    "misfit",
]
TAKEN = ("fresh", "again")
FOOTPRINT_PARTS_KEPT = 1 << 14  # of all footprints that are kept; one may have more

Parts = tuple[Part, ...]
Named = tuple[int, KeyRange, int]  # shard, rows, number of keys or -1


class Footprint(msgspec.Struct, eq=False):
    """The shards, rows and payload size that a request's parts name on this server.

    groups:     the worker groups that may push to these shards
    nbytes:     the size of the payload, if no part of it is encoded
    streams:    whether the push may be streamed, and has more than one fragment
    immediate:  whether its pushes wait for no clock
    prompt:     whether its pulls wait for no clock
    calls:      whether it names a custom table
    states:     whether it pushes rows with their slots
    counts:     whether it pulls rows with their slots
    keyed:      whether a part of it names keys
    simple:     whether it needs nothing but a dense shard that no other server has
    """

    pushes: tuple[Named, ...]
    pulls: tuple[Named, ...]
    groups: frozenset[str]
    nbytes: int
    streams: bool
    immediate: bool
    prompt: bool
    calls: bool
    states: bool
    counts: bool
    keyed: bool
    simple: bool


class Ends(msgspec.Struct, frozen=True):
    """Whether this server takes a shard's pushes, and whether it answers its pulls."""

    pushes: bool
    pulls: bool


class WorkerLeft(msgspec.Struct, frozen=True, eq=False):
    """A worker that has left; its pushes count in the rounds below its last clock."""

    node: NodeId
    log: RequestLog
    last_clock: int


class Admission:
    """Decides which requests a server admits, by its view, workers and replicas.

    view, promised:  the current view, and the newest view that was promised to the scheduler
    refused:         the view up to which none is adopted, unless another server has adopted it
    frozen:          whether a view is promised and has not come: nothing is applied or answered
    draining:        whether no request is admitted before the next view or the drain's time limit
    logs:            the request log of each worker of the view
    left:            the workers that have left and may have pushes in open rounds, by incarnation
    held:            the (rows, number) of each shard that is here, by table
    """

    def __init__(self) -> None:
        self.view: ViewId = NO_VIEW
        self.promised: ViewId = NO_VIEW
        self.refused: ViewId = NO_VIEW
        self.frozen = False
        self.draining = False
        self.logs: dict[NodeId, RequestLog] = {}
        self.left: dict[int, WorkerLeft] = {}
        self.held: list[list[tuple[KeyRange, int]]] = []
        self._specs: dict[int, TableSpec] = {}  # of each shard
        self._slots: dict[int, int] = {}  # the number of slots of each dense shard
        self._hashed: list[bool] = []  # by table: whether its ranges are of hash slots
        self._sparse: list[bool] = []  # by table: whether a pull may scan a range
        self._ends: dict[int, Ends] = {}  # of each shard
        self._owners: dict[int, str] = {}  # by shard: its group, if pushes go by clocks
        self._simple: set[int] = set()  # dense shards without clocks that no other server has
        self._footprints: dict[tuple[Parts, Parts], Footprint] = {}
        self._kept = 0  # the number of their parts

    @property
    def closed(self) -> bool:
        """Whether no new request is admitted at present."""
        return self.frozen or self.draining

    def place(
        self,
        tables: Sequence[TableSpec],
        replicas: Mapping[int, Replica],
        changed: bool,
    ) -> None:
        """Record which rows are here, and which pushes and pulls this server takes.

        changed:  whether chains differ from those of the previous view
        """
        self._hashed = [spec.hashed for spec in tables]
        self._sparse = [spec.sparse for spec in tables]
        self.held = [[] for _ in tables]
        self._owners.clear()
        self._simple.clear()
        self._specs = {number: tables[replica.table] for number, replica in replicas.items()}
        self._slots = {
            number: len(replica.shard.slots)
            for number, replica in replicas.items()
            if self._specs[number].kind == "dense"
        }
        for number, replica in replicas.items():
            insort(self.held[replica.table], (replica.rows, number))
            head, tail = replica.previous == NONE, replica.tail == replica.rank
            asynchronous = tables[replica.table].consistency.name == "asp"
            self._ends[number] = Ends(head, head if asynchronous else tail)
            if not asynchronous:
                self._owners[number] = replica.group
            elif head and replica.following == NONE and number in self._slots:
                self._simple.add(number)
        self._footprints.clear()
        if changed:
            for log in self.logs.values():
                log.placements_changed()

    def recut(self, cut: Cut) -> None:
        """Assign the parts of pushes to the pieces of replicas that were cut."""
        for log in self.logs.values():
            log.recut(cut)

    def counts(self, node: NodeId, log: RequestLog, clock: int) -> bool:
        """Return whether a worker's push counts in the round of that clock."""
        left = self.left.get(log.incarnation)
        return self.logs.get(node) is log or (left is not None and clock < left.last_clock)

    def log_of(self, incarnation: int) -> tuple[NodeId, RequestLog] | None:
        """Return the node and log of a worker that is in the view or has left."""
        for node, log in self.logs.items():
            if log.incarnation == incarnation:
                return node, log
        left = self.left.get(incarnation)
        return (left.node, left.log) if left is not None else None

    def promise(self, view: ViewId) -> None:
        """Promise a view: apply and answer nothing in an earlier view."""
        self.promised = max(self.promised, view)
        self.frozen = self.promised > self.view

    def refuse(self, view: ViewId) -> None:
        """Refuse to adopt any view up to this one from the scheduler."""
        self.refused = max(self.refused, view)

    def thaw(self) -> None:
        """Take back the promise, because all servers of the view have refused the promised one."""
        self.promised = self.view
        self.frozen = False

    def drain(self, on: bool) -> None:
        """Begin or end draining."""
        self.draining = on

    def adopt(self, view: View) -> None:
        """Adopt a view. A worker that is still in it keeps its request log."""
        self.view, self.draining = view.id, False
        self.promise(view.id)
        known = {log.incarnation: log for log in self.logs.values()}
        known.update({inc: left.log for inc, left in self.left.items()})
        self.logs = {
            m.id: known.get(m.incarnation) or RequestLog(m.incarnation, m.rank, m.group)
            for m in view.workers
        }
        self.left = {
            m.incarnation: WorkerLeft(
                m.id,
                known.get(m.incarnation) or RequestLog(m.incarnation, m.rank, m.group),
                m.last_clock,
            )
            for m in view.departed
        }

    def verdict(
        self, sender: NodeId, request: Request | Probe, footprint: Footprint | None = None
    ) -> Verdict:
        """Return the verdict on a request with that footprint, or on a probe.

        This changes nothing: the payload may never come, or come twice.
        """
        if self.frozen:
            return "frozen"
        log = self.logs.get(sender)
        if log is None or log.incarnation != request.incarnation:
            return "stranger"
        seq = request.seq
        if seq < log.forget_below:
            return "forgotten"
        if self.draining:
            return "frozen"
        known = seq in log.outcomes
        if seq in log.recheck or (seq in log.parts and not known):  # known from other servers
            return self._recheck(log, request, footprint)
        if known:
            if isinstance(request, Probe) or request.pushes or log.outcomes[seq] != "applied":
                return "seen"
            if request.view == self.view:
                return (
                    "again" if self._fits(request, log, footprint) else "misfit"
                )  # the answer was lost
        if request.view != self.view:
            return "stale"
        if isinstance(request, Request):
            if seq - WINDOW >= log.forget_below and seq - WINDOW >= request.forget_below:
                return "too many"
            if request.follows and lacks(log, request.follows):
                return "out_of_order"
            if not self._fits(request, log, footprint):
                return "misfit"
        return "fresh"

    def _recheck(
        self, log: RequestLog, request: Request | Probe, footprint: Footprint | None
    ) -> Verdict:
        """Return the verdict on a request of which some parts may be applied already."""
        if request.view != self.view:
            return "stale"
        if isinstance(request, Probe):
            return "fresh"
        if lacks(log, request.follows):
            return "out_of_order"
        return "again" if self._fits(request, log, footprint) else "misfit"

    def _fits(self, request: Request, log: RequestLog, footprint: Footprint | None) -> bool:
        """Return whether a request is valid, its rows are here, and its group may push to them."""
        if not 0 < request.weight < inf or request.forget_below > request.seq:
            return False
        if request.rates and len(request.rates) != len(request.pushes):
            return False
        encoded = request.sizes or request.pulled
        if encoded and (footprint is None or not self._encodes(request, footprint)):
            return False
        if request.lists and not _lists(request):
            return False
        if footprint is None or (footprint.states and not request.assign):
            return False
        return not footprint.groups or footprint.groups <= {log.group}

    def _encodes(self, request: Request, footprint: Footprint) -> bool:
        """Return whether the sizes of a request's encoded fragments fit its parts."""
        if request.sizes and request.assign:
            return False
        pushed = request.pushes, footprint.pushes, request.sizes, False
        pulled = request.pulls, footprint.pulls, request.pulled, True
        return all(not each[2] or self._fit(*each) for each in (pushed, pulled))

    def _fit(self, parts: Parts, named: tuple[Named, ...], sizes: Sizes, pulled: bool) -> bool:
        """Return whether these are sizes of encoded fragments of some parts."""
        return len(sizes) == len(parts) and not any(
            part.slots
            or (
                Layout(self._specs[shard]).encoded_problem(rows, encoded, pulled)
                if part.keys == -1
                else Layout(self._specs[shard]).encoded_row_problem(encoded)
            )
            for part, (shard, rows, _), encoded in zip(parts, named, sizes, strict=True)
            if encoded
        )

    def payload_bytes(self, request: Request, footprint: Footprint) -> int:
        """Return the size of a request's payload: some may be encoded, or keys may be here."""
        nbytes = footprint.nbytes
        for (shard, rows, keys), sizes in zip(footprint.pushes, request.sizes, strict=False):
            if sizes:
                count, each = (len(rows), 1) if keys < 0 else (keys, keys)
                nbytes += each * sum(sizes) - Layout(self._specs[shard]).nbytes(count)
        if request.lists:
            told = sum(each.nbytes for each in request.lists)
            nbytes += told - KEY_BYTES * sum(request.key_counts())
        return nbytes

    def still_fresh(self, request: Request, log: RequestLog, view: ViewId) -> bool:
        """Return whether a request admitted in `view` still is: same view, open, no duplicate."""
        return (
            view == self.view
            and not (self.frozen or self.draining)
            and request.seq not in log.outcomes
            and request.seq >= log.forget_below
        )

    def footprint(self, request: Request) -> Footprint | None:
        """Return a request's footprint, or None if some of it is not here.

        Cached, because training names the same rows in every step.
        """
        key = (request.pushes, request.pulls)
        found = self._footprints.get(key)
        if found is None:
            pushes = self._named(request.pushes)
            pulls = self._named(request.pulls, request.pushes)
            if pushes is None or pulls is None:
                return None
            self._kept += 1 + len(pushes) + len(pulls)
            if self._kept > FOOTPRINT_PARTS_KEPT:
                self._footprints.clear()
                self._kept = 1 + len(pushes) + len(pulls)
            groups = frozenset(self._owners[at] for at, _, _ in pushes if at in self._owners)
            asp = {at for at, spec in self._specs.items() if spec.consistency.name == "asp"}
            found = self._footprints[key] = Footprint(
                pushes,
                pulls,
                groups,
                self._nbytes(request, pushes, pulls),
                self._streams(pushes, pulls),
                all(at in asp for at, _, _ in pushes),
                all(at in asp for at, _, _ in pulls),
                any(self._specs[at].kind == "custom" for at, _, _ in pulls),
                any(part.slots for part in request.pushes),
                any(part.slots for part in request.pulls),
                any(keys >= 0 for _, _, keys in (*pushes, *pulls)),
                self._is_simple(request, pushes, pulls),
            )
        return found

    def _nbytes(self, request: Request, pushes: tuple[Named, ...], pulls: tuple[Named, ...]) -> int:
        nbytes = sum(KEY_BYTES * keys for _, _, keys in pulls if keys > 0)
        for part, (shard, rows, keys) in zip(request.pushes, pushes, strict=True):
            nbytes += Layout(self._specs[shard]).part_bytes(rows, keys, part.slots)
        return nbytes

    def _streams(self, pushes: tuple[Named, ...], pulls: tuple[Named, ...]) -> bool:
        """Return whether a push may be streamed: it has several fragments, and no row twice."""
        specs = [self._specs[shard] for shard, _, _ in pushes]
        plain = all(len(rows) and keys < 0 for _, rows, keys in pushes)
        plain = plain and all(spec.consistency.apply_at == "arrival" for spec in specs)
        several = any(
            len(rows) > spec.fragment_rows for spec, (_, rows, _) in zip(specs, pushes, strict=True)
        )
        distinct = len({shard for shard, _, _ in pushes}) == len(pushes)
        return plain and several and distinct and all(keys < 0 for _, _, keys in pulls)

    def _is_simple(
        self, request: Request, pushes: tuple[Named, ...], pulls: tuple[Named, ...]
    ) -> bool:
        """Return whether a request is of at most a push and a pull of rows of simple shards."""
        named = (*pushes, *pulls)
        whole = all(at in self._simple and len(rows) and keys == -1 for at, rows, keys in named)
        several = len(pushes) > 1 or len(pulls) > 1 or self._streams(pushes, pulls)
        slots = any(part.slots for part in (*request.pushes, *request.pulls))
        return bool(named) and whole and not several and not slots

    def _named(self, parts: Parts, pushed: Parts | None = None) -> tuple[Named, ...] | None:
        """Return the shard, rows and keys of each part; None if one does not fit.

        pushed:  the push parts of the request, if these are its pull parts; None otherwise
        """
        named = []
        left: dict[int, int] = {}  # rows or keys of a shard that may still be named
        twins = _twins(pushed or (), parts) if any(part.keys == SAME for part in parts) else {}
        for part in parts:
            counted = part if part.keys != SAME else twins.get(_rows(part))
            if counted is None or not 0 <= part.table < len(self.held):
                return None
            start, stop = part.start, part.stop
            held = self.held[part.table]
            at = bisect_right(held, start, key=_first_row) - 1
            if at < 0 or not start <= stop <= held[at][0].stop:
                return None
            shard = held[at][1]
            ends = self._ends[shard]
            if not (ends.pushes if pushed is None else ends.pulls):
                return None
            if part.slots and (part.keys != -1 or part.slots != self._slots.get(shard)):
                return None
            most = KEYS_MAX if self._hashed[part.table] else stop - start
            scanned = pushed is not None and self._sparse[part.table]
            least = 0 if self._hashed[part.table] and not scanned else -1
            if not least <= counted.keys <= most:
                return None
            # each part takes memory and time: a request may not name the same rows for ever
            size = max(1, stop - start if counted.keys < 0 else counted.keys)
            left[shard] = left.get(shard, REPEATS_MAX * max(most, len(held[at][0]))) - size
            if left[shard] < 0:
                return None
            named.append((shard, KeyRange(start, stop), part.keys))
        return tuple(named)


def _lists(request: Request) -> bool:
    """Return whether a request says of each part with keys how these are sent."""
    counts = request.key_counts()
    return len(counts) == len(request.lists) and all(
        count > 0 if each.named else each.nbytes == KEY_BYTES * count
        for count, each in zip(counts, request.lists, strict=True)
    )


def lacks(log: RequestLog, follows: Sequence[int]) -> bool:
    """Return whether one of these requests has not been admitted yet in this view."""
    for seq in follows:
        if seq >= log.forget_below and (seq not in log.outcomes or seq in log.recheck):
            return True
    return False


def _twins(pushed: Parts, pulled: Parts) -> dict[tuple[int, int, int], Part]:
    """Return, by rows, the keyed pushes whose keys a pull of SAME may name.

    Such a push is the only one to its rows, and one pull names them.
    """
    pushes, pulls = Counter(map(_rows, pushed)), Counter(map(_rows, pulled))
    return {
        _rows(part): part
        for part in pushed
        if part.keys >= 0 and pushes[_rows(part)] == pulls[_rows(part)] == 1
    }


def _first_row(held: tuple[KeyRange, int]) -> int:
    return held[0].start


def _rows(part: Part) -> tuple[int, int, int]:
    return part.table, part.start, part.stop
