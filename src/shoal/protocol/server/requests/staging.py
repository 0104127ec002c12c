"""Staging memory for the payloads of admitted requests, and streamed pushes.

Most payloads are staged whole and checked then. A push of many fragments that is applied on arrival
is *streamed*: each fragment is applied as soon as it has come in, because the fragment is the unit
that is checked, applied and de-duplicated. If the sender dies half-way, the fragments that came in
whole are changed and no others. When the request comes again under the same id, here or to the
server that has the rows then, what is applied already is left out: the request log has it. The push
is acknowledged when all fragments are applied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from shoal.errors import AccessFailed, Refused
from shoal.keys import KeyRange
from shoal.protocol.layout import SIZE_BYTES
from shoal.protocol.limits import ANSWER_BYTES, WAITING_BYTES
from shoal.protocol.machine import Arrival, CopyOnWriteGuard, Discard, Sink
from shoal.protocol.messages.base import SAME
from shoal.protocol.messages.requests import Request
from shoal.protocol.server.requests.admission import TAKEN, Admission, Footprint
from shoal.protocol.server.requests.checkpointing import Checkpointer
from shoal.protocol.server.requests.decoding import Decoder
from shoal.protocol.server.requests.key_lists import KeyLists
from shoal.protocol.server.requests.memory import TableMemory
from shoal.protocol.server.state.replica import AppliedPart, Replica
from shoal.protocol.server.state.request_log import RequestLog
from shoal.protocol.server.state.rounds import Rounds
from shoal.protocol.server.state.shard_store import Loads, RowStore, ShardStore, Staged
from shoal.protocol.views import NodeId, ViewId

Place = tuple[int, KeyRange]  # a shard, and rows of it
COUNTED_BYTES = 64 << 10  # pushes from this size on are counted while they wait
BORROWED_BYTES = 32 << 10  # smaller pushes are copied by every transport


class AdmittedRequest(msgspec.Struct, frozen=True, eq=False):
    """A request that was admitted in `view`, and the staging memory of its payload.

    streamed:  whether it is applied while it comes in
    """

    sender: NodeId
    request: Request
    footprint: Footprint
    loads: Loads
    log: RequestLog
    view: ViewId
    streamed: bool


class NoMemory(Refused):
    """This server has no memory for a request."""


class RequestStaging:
    """Receives requests into the staging memory of a server's shards.

    guard:  the guard of the rows in unsent answers; recalled before any row changes
    """

    def __init__(
        self,
        admission: Admission,
        replicas: Mapping[int, Replica],
        checkpointer: Checkpointer,
        memory: TableMemory,
        rounds: Rounds,
        decoder: Decoder,
        key_lists: KeyLists,
        borrowed_bytes: float = BORROWED_BYTES,
    ) -> None:
        self.guard = CopyOnWriteGuard()
        self._key_lists = key_lists
        self._admission = admission
        self._replicas = replicas
        self._checkpointer = checkpointer
        self._memory = memory
        self._rounds = rounds
        self._decoder = decoder
        self._borrowed_bytes = borrowed_bytes

    def arriving(self, sender: NodeId, request: Request, nbytes: int) -> Arrival:
        """Return the destination of a payload.

        This changes nothing: admission decides again once the payload is here.
        """
        footprint = self._admission.footprint(request)
        verdict = self._admission.verdict(sender, request, footprint)
        if footprint is None or verdict not in TAKEN:
            return Discard(verdict)
        needed = footprint.nbytes
        if request.sizes or request.lists:
            needed = self.payload_bytes(request, footprint)
        if nbytes != needed:  # checked before memory is taken
            return Discard(f"{nbytes} bytes announced where the parts need {needed}")
        if not footprint.immediate and self._overdraws(request, footprint):
            return Discard("too many pushes of this worker wait for rounds")
        if request.lists and self._key_lists.lacks(request):
            return Discard("a list of keys is not here")
        try:
            if footprint.simple and footprint.pushes and not (request.assign or request.sizes):
                [(number, rows, _)] = footprint.pushes
                shard = self._replicas[number].shard
                load = shard.stage(rows, -1)
                log, view = self._admission.logs[sender], self._admission.view
                return Sink(
                    load.views,
                    AdmittedRequest(sender, request, footprint, [load], log, view, False),
                    borrows=footprint.nbytes >= self._borrowed_bytes and shard.reads_lent,
                )
            admitted = self.take(sender, request, footprint)
        except NoMemory as error:
            return Discard(error.message)
        except MemoryError:
            return Discard("no memory")  # the request is refused, with more words
        loads = admitted.loads
        views = [view for load in loads for view in load.views]
        if request.lists:
            views = self._key_lists.destinations(request, loads)
        lends, borrows = self._lends(admitted, len(views)), self._borrows(admitted)
        return Sink(views, admitted, admitted.streamed, lends, borrows)

    def payload_bytes(self, request: Request, footprint: Footprint) -> int:
        """Return the bytes of a request's payload."""
        if request.sizes or request.lists:
            return self._admission.payload_bytes(request, footprint)
        return footprint.nbytes

    def lacks_keys(self, request: Request) -> bool:
        """Return whether a request names a list of keys that is not here."""
        return bool(request.lists) and self._key_lists.lacks(request)

    def refusal(self, sender: NodeId, request: Request, footprint: Footprint) -> str:
        """Return why a request whose payload was discarded is refused; empty if it may come again.

        Memory is taken for it, as a trial.
        """
        if self._overdraws(request, footprint):
            return (
                f"more than {WAITING_BYTES} bytes of this worker's pushes wait for rounds to close"
            )
        try:
            self.take(sender, request, footprint)
        except NoMemory as error:
            return error.message
        return ""

    def _overdraws(self, request: Request, footprint: Footprint) -> bool:
        """Return whether this server would keep too many bytes of pushes of one worker."""
        if footprint.immediate or footprint.nbytes < COUNTED_BYTES:
            return False
        waiting = self._rounds.nbytes(request.incarnation)
        return waiting > 0 and waiting + footprint.nbytes > WAITING_BYTES

    def take(self, sender: NodeId, request: Request, footprint: Footprint) -> AdmittedRequest:
        loads: Loads = []
        log = self._admission.logs[sender]
        streamed = footprint.streams and self._may_stream(request, footprint, log)
        shard: RowStore | None = None
        pushed: dict[Place, Staged] = {}
        try:
            encoded = request.sizes or ((),) * len(request.pushes)
            for part, (number, rows, keys), sizes in zip(
                request.pushes, footprint.pushes, encoded, strict=True
            ):
                shard = self._replicas[number].shard
                if sizes and keys >= 0:
                    loads.append(shard.stage_encoded_keys(rows, keys, sizes[0]))
                elif sizes:
                    loads.append(shard.stage_encoded(rows, sizes))
                elif part.slots:
                    loads.append(shard.stage_state(rows))
                else:
                    loads.append(shard.stream(rows) if streamed else shard.stage(rows, keys))
            for number, rows, keys in footprint.pulls:
                shard = self._replicas[number].shard
                if keys >= 0:
                    loads.append(shard.stage_keys(rows, keys))
                elif keys == SAME:
                    pushed = pushed or _by_place(footprint, loads)
                    shard.keep_keys(pushed[number, rows])
            if request.lists:
                self._key_lists.fill(request, loads)
        except MemoryError:
            name = shard.spec.name if shard is not None else ""
            raise NoMemory(
                f"this server has no memory for {footprint.nbytes} bytes of a request to table "
                f"{name!r}: send less at once"
            ) from None
        return AdmittedRequest(
            sender, request, footprint, loads, log, self._admission.view, streamed
        )

    def problem(self, admitted: AdmittedRequest) -> str:
        """Return why a request that names keys is refused; empty if it is not."""
        if admitted.request.lists:
            problem = self._key_lists.keep(admitted.request, admitted.loads)
            if problem:
                return problem
        for load in admitted.loads:
            problem = load.problem() if load.keys is not None else ""
            if problem:
                return problem
        return self._memory.problem(admitted.footprint.pushes, admitted.loads)

    def undecodable(self, admitted: AdmittedRequest) -> str:
        """Decode the pushes of a request; return why it is refused, empty if it is not."""
        numbers = [number for number, _, _ in admitted.footprint.pushes]
        replicas = [self._replicas[number] for number in numbers]
        return self._decoder.problem(zip(replicas, admitted.loads, strict=False))

    def encode(self, several: Sequence[AdmittedRequest]) -> None:
        """Encode the rows that requests pull encoded, before `read` returns them.

        This may take long, and the server goes on meanwhile: requests may have left afterwards.
        """
        wanted: dict[tuple[int, KeyRange], None] = {}
        for admitted in several:
            pulls = zip(admitted.footprint.pulls, admitted.request.pulled, strict=False)
            wanted |= {
                (number, rows): None
                for (number, rows, keys), sizes in pulls
                if sizes and keys == -1
            }
        if wanted:
            self._decoder.encode([(self._replicas[number], rows) for number, rows in wanted])

    def read(self, admitted: AdmittedRequest) -> tuple[memoryview, ...]:
        """Return the rows that a request pulls; the guard has to protect those of whole ranges."""
        keyed = iter(admitted.loads[len(admitted.request.pushes) :])
        found: list[memoryview] = []
        pushed: dict[Place, Staged] = {}
        pulls = admitted.request.pulls
        encoded = admitted.request.pulled or ((),) * len(pulls)
        for part, (number, rows, keys), sizes in zip(
            pulls, admitted.footprint.pulls, encoded, strict=True
        ):
            replica = self._replicas[number]
            shard = replica.shard
            if sizes and keys == -1:
                found += self._decoder.encoded(replica, rows, sizes)
            elif part.slots:
                found += shard.read_state(rows)
            elif keys == SAME:
                pushed = pushed or _by_place(admitted.footprint, admitted.loads)
                found.append(_encoded(shard, shard.read_keys(pushed[number, rows]), sizes))
            elif keys >= 0:
                load = next(keyed)
                if admitted.log.group != replica.group or (  # no rows for other groups
                    shard.new_row_bytes and self._memory.problem(((number, rows, keys),), [load])
                ):
                    shard.only_read(load)
                rows_of = _encoded(shard, shard.read_keys(load), sizes)
                found += (
                    _sized(shard, rows_of, admitted) if shard.spec.kind == "custom" else [rows_of]
                )
            elif shard.spec.sparse:
                found += _sized(shard, shard.scan(rows), admitted)
            else:
                found.append(shard.read(rows))
        return tuple(found)

    def updates(self, admitted: AdmittedRequest) -> int:
        """Return the largest number of updates of the rows that a request pulls with slots."""
        pulls = zip(admitted.request.pulls, admitted.footprint.pulls, strict=True)
        return max(
            self._replicas[number].shard.most_updates(rows)
            for part, (number, rows, _) in pulls
            if part.slots
        )

    def _may_stream(self, request: Request, footprint: Footprint, log: RequestLog) -> bool:
        """Return whether to apply a push while it comes in.

        A push is staged whole if it assigns rows, if it is encoded, if it waits for a checkpoint
        clock, if other servers have to get it, if its access method may fail, or if it was here
        before: parts of it may be in the rows.
        """
        replicas = [self._replicas[number] for number, _, _ in footprint.pushes]
        return (
            not (request.assign or request.sizes)
            and request.seq not in log.parts
            and request.seq not in log.outcomes
            and all(replica.alone and replica.shard.streams for replica in replicas)
            and not any(self._checkpointer.holds(r.shard.spec, request.clock) for r in replicas)
        )

    def _lends(self, admitted: AdmittedRequest, views: int) -> int:
        """Return how many views of a request's sink may be applied from the sender's memory.

        The message that the last view completes may be kept, and be applied later.
        """
        shards = (self._replicas[number].shard for number, _, _ in admitted.footprint.pushes)
        return views - 1 if admitted.streamed and all(each.reads_lent for each in shards) else 0

    def _borrows(self, admitted: AdmittedRequest) -> bool:
        """Return whether a request's pushes may stay in the sender's memory until it is answered.

        Those of other servers' replicas are copied: all have to apply the same values, whatever the
        sender does.
        """
        request, footprint = admitted.request, admitted.footprint
        if admitted.streamed or request.assign or request.sizes:
            return False
        if footprint.states or footprint.keyed:
            return False
        return footprint.nbytes >= self._borrowed_bytes and all(
            len(rows) and self._replicas[at].alone and self._replicas[at].shard.reads_lent
            for at, rows, _ in footprint.pushes
        )

    def adopt(self, payload: Sink) -> None:
        """Use the values of a request where they are, in the sender's memory."""
        admitted: AdmittedRequest = payload.context
        loads: list[Any] = admitted.loads
        loan = payload.take_loan()
        same_view = admitted.view == self._admission.view
        for at, (load, view) in enumerate(zip(loads, payload.views, strict=True)):
            if view.readonly:  # else it was copied
                loads[at] = load.borrowed(view, loan)
                if same_view:
                    self._replicas[admitted.footprint.pushes[at][0]].shard.release(load)

    def land(self, payload: Sink) -> bool:
        """Apply the fragment that has just come in, unless it was applied before.

        Return False if it must not be applied: the view has changed, a duplicate of the request
        came first, or a checkpoint that must not contain it is due.
        """
        admitted: AdmittedRequest = payload.context
        request, log = admitted.request, admitted.log
        if payload.revoked or not self._admission.still_fresh(request, log, admitted.view):
            return False
        named = [self._replicas[number] for number, _, _ in admitted.footprint.pushes]
        if any(map(self._checkpointer.is_due, named)):
            payload.revoke()  # it is sent again
            return False
        self.guard.recall()
        number = payload.landed - 1
        landed = payload.views[number]
        for index, load in enumerate(admitted.loads):
            if number < len(load.views):
                self._apply(admitted, index, number, landed)
                break
            number -= len(load.views)
        return True

    def _apply(
        self, admitted: AdmittedRequest, index: int, number: int, landed: memoryview
    ) -> None:
        """Apply fragment `number` of part `index` of a push, which has landed there."""
        request, log, load = admitted.request, admitted.log, admitted.loads[index]
        replica = self._replicas[admitted.footprint.pushes[index][0]]
        lr = request.rates[index] if request.rates else None
        part = replica.part(replica.shard.rows_of(load, number), -1)
        if log.missing(request.seq, part):
            self._checkpointer.contain(replica, request.clock)
            replica.shard.apply_piece(load, number, landed, lr)
            log.land(request.seq, AppliedPart(part, replica, replica.count()))

    def end_stream(self, admitted: AdmittedRequest) -> bool:
        """End a streamed push that has come in whole; return whether all of it is applied."""
        for (at, _, _), load in zip(admitted.footprint.pushes, admitted.loads, strict=True):
            self._replicas[at].shard.end_stream(load)
        request, log = admitted.request, admitted.log
        return not any(log.missing(request.seq, part) for part in request.pushes)


def _sized(shard: ShardStore, answer: memoryview, admitted: AdmittedRequest) -> list[memoryview]:
    """Return the buffers of an answer of any size: first its size, if it is one of several."""
    if answer.nbytes > ANSWER_BYTES:
        text = f"table {shard.spec.name!r}: an answer of {answer.nbytes} bytes"
        raise AccessFailed(f"{text}; at most {ANSWER_BYTES}")
    if len(admitted.footprint.pulls) == 1:
        return [answer]
    return [memoryview(answer.nbytes.to_bytes(SIZE_BYTES, "little")), answer]


def _encoded(shard: RowStore, rows: memoryview, sizes: Sequence[int]) -> memoryview:
    """Return rows that were read by their keys, encoded if a request says the bytes of one."""
    return shard.encode_keys(rows, sizes[0]) if sizes else rows


def _by_place(footprint: Footprint, loads: Loads) -> dict[Place, Staged]:
    """Return the staged pushes of a request by shard and rows, for pulls of the same keys.

    Admission has checked that each such pull has one. To search for each would take a time that
    grows with the square of the parts that a worker may send.
    """
    pushes = zip(footprint.pushes, loads, strict=False)
    return {(shard, rows): load for (shard, rows, _), load in pushes}
