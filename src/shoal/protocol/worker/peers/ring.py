"""Ring: allreduce and allgather, where each worker exchanges messages with its two neighbours.

A tensor is cut into as many segments as there are workers, and these into pieces. A piece of
segment s starts at worker s as a *partial* sum. Each worker on the way adds its values; the last
one, s - 1, has the *whole* sum, which goes around once more (Patarasuk & Yuan 2009, section 3). So
each of n workers sends 2 (n - 1) / n of the tensor, pieces are forwarded while others still arrive,
and all workers have bitwise the same sum.

Small tensors are gathered instead: each worker's values go around once, and every worker adds them
up in the order of ranks. They are sent from copies, so that the caller need not wait until the next
worker has them. An allgather is the same without the sum, and without a limit of size.

Invariant: a piece that this worker has sent does not change before its neighbour has received it,
because the whole sum of the piece cannot exist before. So lost messages are sent again from the
tensor itself, which belongs to the caller again when the next worker has received everything.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from mmap import mmap
from typing import Any
from zlib import crc32

from shoal.errors import Cancelled, InvalidValue, RingBroken, ShoalError
from shoal.protocol.limits import LISTED_MAX
from shoal.protocol.machine import (
    Arrival,
    Detach,
    Discard,
    Effects,
    Outcome,
    Received,
    Resolve,
    Send,
    Sink,
    Unexpected,
)
from shoal.protocol.messages.base import Message
from shoal.protocol.messages.collective import MissingPieces, Piece, PieceProbe, SumAck, WorkerLeft
from shoal.protocol.requests import Gather, Reduce
from shoal.protocol.session import Session
from shoal.protocol.views import Member, NodeId, View
from shoal.protocol.worker.peers.handshakes import Handshakes
from shoal.protocol.worker.peers.members import members_of, unreachable
from shoal.protocol.worker.peers.sums import PROBE_MAX_S, Sum

PIECE_BYTES = 4 << 20
PARTS = 8  # per piece: each part is added while it is in the cache
GATHERED_BYTES = 64 << 10  # tensors are gathered up to this size, over all workers
FAILED_TOLD = 64  # allreduces that have failed, which a probe tells of
TOLD_EVERY = 8  # gathered allreduces per acknowledgement
AHEAD_MOST = 1 << 12  # sums that another worker has begun, and this one has not


FromRing = Piece | PieceProbe | MissingPieces | SumAck | WorkerLeft


class Ring:
    """The allreduces of one worker: the part of its machine that handles the ring's messages."""

    def __init__(self, session: Session, piece_bytes: int, gathered_bytes: int) -> None:
        self._session = session
        self._sizes = piece_bytes, gathered_bytes
        self._part_bytes = piece_bytes // PARTS
        self._members: tuple[Member, ...] = ()
        self._index = 0
        self._name = 0  # identifies the ring's members
        self._asked = 0  # number of allreduces requested in this ring
        self._sums: dict[int, Sum] = {}
        self._early: dict[int, tuple[set[int], set[int]]] = {}  # pieces before their request
        self._handshakes = Handshakes(0)
        self._failed: deque[int] = deque(maxlen=FAILED_TOLD)
        self.left: dict[str, int] = {}  # finished workers, and the first allreduce without them
        self._ended: set[str] = set()  # workers that have finished, as the scheduler says
        self._scratch: list[mmap] = []
        self.bytes_sent = self.bytes_received = 0  # of tensors' values

    # ------------------------------------------------------------------ events of the machine

    def adopt(self, view: View, out: Effects) -> None:
        """Adopt the members of this worker's group; if they changed, fail all allreduces."""
        members = members_of(view, self._session)
        if [m.incarnation for m in members] == [m.incarnation for m in self._members]:
            self._members = members
            return
        gone = [m.name for m in self._members if view.member(m.id) is None]
        error = RingBroken(
            f"{', '.join(gone) or 'the workers'} "
            f"{'left' if gone else 'changed'} in the middle of an allreduce ({view.reason})"
        )
        self.close(error, out)
        self._members = members
        self._index = next(i for i, m in enumerate(members) if m.id == self._session.me)
        self._name = crc32(repr([m.incarnation for m in members]).encode())
        self._asked = 0
        self._early.clear()
        self._failed.clear()
        self._handshakes = Handshakes(self._name)
        self.left.clear()

    def address_of(self, node: NodeId) -> str:
        """Return where to connect to a worker; "" for one of lower rank, which connects here."""
        for index, member in enumerate(self._members):
            if member.id == node and index > self._index:
                return member.address
        return ""

    def ask(self, request_id: int, ask: Reduce | Gather, now: float, out: Effects) -> None:
        """Begin an allreduce or allgather; all workers request the same ones in the same order."""
        if problem := unreachable(self._members, "an allreduce"):
            out.append(Resolve(request_id, Outcome(error=InvalidValue(problem))))
            return
        number, self._asked = self._asked, self._asked + 1
        workers, nbytes = len(self._members), ask.values.nbytes
        if workers == 1 or not nbytes:
            out.append(Resolve(request_id, Outcome(value=_alone(ask))))
            return
        one = Sum.begun(request_id, ask, workers, self._index, now, *self._sizes)
        self._sums[number] = one
        if self._end_without(number, out):
            return
        for piece, whole in one.ready():
            self._send(number, one, piece, whole, out)
        if early := self._early.pop(number, None):
            self._miss(number, *early, 0, out)
        self._handshakes.greet(self._near(), out)

    def end(self, finished: Iterable[str]) -> None:
        """Record the workers that have finished according to the scheduler."""
        self._ended.update(finished)

    @property
    def settled(self) -> bool:
        """Whether the next worker has all that it needs of the sums that are complete here."""
        if not any(one.complete for one in self._sums.values()):
            return True
        after = self._neighbours()[1].name
        return after in self.left or after in self._ended

    def leave(self, out: Effects) -> None:
        """Tell the others that this worker has finished, so that they do not wait for it."""
        if len(self._members) > 1:
            self._tell_left(WorkerLeft(self._name, self._session.name, self._asked), "", out)
            for number, one in self._sums.items():
                if one.complete:  # gathered, and perhaps not acknowledged
                    self._probe(number, one, out)

    @property
    def gone(self) -> bool:
        """Whether a worker of the view has ended its work."""
        return bool(self.left or self._ended)

    def _tell_left(self, message: WorkerLeft, but: NodeId, out: Effects) -> None:
        self.left[message.name] = message.asked
        for node in dict.fromkeys(self._near()):
            if node != but:
                out.append(Send(node, message))
        for number in list(self._sums):
            self._end_without(number, out)

    def _end_without(self, number: int, out: Effects) -> bool:
        """Fail an allreduce that a finished worker will never request."""
        gone = [name for name, asked in self.left.items() if number >= asked]
        if gone:
            error = RingBroken(f"{', '.join(gone)} has ended its work without this allreduce")
            self._end(number, out, error)
        return bool(gone)

    def cancel(self, request_id: int, out: Effects) -> None:
        """Cancel an allreduce; the other workers cannot finish it."""
        for number, one in list(self._sums.items()):
            if one.request_id == request_id:
                self._end(number, out, Cancelled("the caller withdrew it"))

    def close(self, error: ShoalError, out: Effects) -> None:
        """Fail all allreduces."""
        for number in list(self._sums):
            self._end(number, out, error)

    def deadline(self) -> float:
        return min((*(each.again_at for each in self._sums.values()), self._handshakes.at))

    def peer_lost(self, node: NodeId, now: float) -> None:
        """Greet a lost neighbour soon, to reconnect even without another message for it."""
        self._handshakes.lost(node, now)

    def tick(self, now: float, out: Effects) -> None:
        self._handshakes.tick(self._near(), now, out)
        for number, one in list(self._sums.items()):
            if not one.due(now):
                continue
            name = self._neighbours()[one.complete].name
            stalled = name in self._ended and one.wait_s >= PROBE_MAX_S  # its last message is lost
            if stalled and not one.complete:
                self._end(number, out, RingBroken(f"{name} has ended its work; pieces are lost"))
            elif stalled:
                one.take()
                self._look(number, one, out)
            else:
                self._probe(number, one, out)
            self._handshakes.greet(self._near(), out)

    def waiting(self) -> list[tuple[str, str]]:
        """Return (allreduce, reason) of every allreduce under way."""
        found = []
        for number, one in self._sums.items():
            before, after = self._neighbours()
            counts = f"{len(one.partial)} partial and {len(one.whole)} whole sums to come"
            waits = f"until {after.name} has it" if one.complete else f"for {before.name}: {counts}"
            found.append((f"allreduce #{number}", f"waits {waits}"))
        return found

    # ------------------------------------------------------------------ messages

    def arriving(self, sender: NodeId, message: Piece, nbytes: int) -> Arrival:
        one = self._sums.get(message.number) if self._knows(sender, message, 0) else None
        if one is None or message.piece not in (one.whole if message.whole else one.partial):
            return Discard("not asked for, or here already")
        view = one.view(message.piece)
        if nbytes != view.nbytes:
            return Discard(f"{nbytes} bytes for a piece of {view.nbytes}")
        if message.whole:
            return one.sink(message.piece, message)
        most = self._part_bytes
        scratch = self._scratch.pop() if self._scratch else mmap(-1, most)
        memory = memoryview(scratch)
        sizes = [min(most, nbytes - at) for at in range(0, nbytes, most)]
        return Sink([memory[:size] for size in sizes], scratch, True, len(sizes))

    def problem_of(self, sender: NodeId, message: Message) -> str:
        """Return why no worker of this ring may send a message; "" if one may."""
        if isinstance(message, WorkerLeft) and message.ring == self._name:
            here = [member.name for member in self._members]
            return "" if message.name in here else f"no worker {message.name!r} is in this ring"
        if isinstance(message, Piece) and message.ring == self._name:
            return "it is too far ahead" * (message.number > self._asked + AHEAD_MOST)
        if isinstance(message, MissingPieces):
            twice = any(len({*each}) != len(each) for each in (message.partial, message.whole))
            return "it misses a piece twice" * twice
        return ""

    def handle(self, event: Received, now: float, out: Effects) -> None:
        sender, message = event.sender, event.message
        if not isinstance(message, FromRing):
            return
        if not self._knows(sender, message, int(not isinstance(message, Piece | PieceProbe))):
            out.append(Unexpected(type(message).__name__))
            return
        self._meet(sender, message, out)
        if isinstance(message, Piece):
            self._piece(message, event.payload, now, out)
            return
        if isinstance(message, PieceProbe):
            for number in sorted(self._sums.keys() & {*message.failed}):
                name = self._neighbours()[0].name
                self._end(number, out, RingBroken(f"the allreduce has failed at {name}"))
            one = self._sums.get(message.number)
            if one is not None and not one.complete:
                self._miss(message.number, one.partial, one.whole, message.probe, out)
            elif message.number < self._asked:
                self._tell(out)
            return
        if isinstance(message, WorkerLeft):
            if message.name not in self.left:
                self._tell_left(message, sender, out)
            return
        if isinstance(message, SumAck):
            for number in [each for each in self._sums if each <= message.number]:
                self._sums[number].take()
                self._look(number, self._sums[number], out)
            return
        one = self._sums.get(message.number)
        if one is None or 0 < message.probe <= one.stale:  # of several answers the first counts
            return
        for pieces, whole in ((message.partial, False), (message.whole, True)):
            for piece in pieces:
                if 0 <= piece < len(one.edges) and one.has(piece, whole):
                    self._send(message.number, one, piece, whole, out)

    def _meet(self, neighbour: NodeId, message: Message, out: Effects) -> None:
        """Send the next worker the ready pieces when it is first heard of in this ring."""
        new = self._handshakes.heard(neighbour, message, out)
        if not new or neighbour != self._neighbours()[1].id:
            return
        for number, one in self._sums.items():
            if one.sent:  # the neighbour may have them
                self._probe(number, one, out)
            for piece, whole in () if one.sent else one.ready():
                self._send(number, one, piece, whole, out)

    def _knows(self, sender: NodeId, message: FromRing, side: int) -> bool:
        """Return whether a message is of this ring, from the worker before (0) or after (1).

        Messages other than pieces and their probes may come from either neighbour.
        """
        if message.ring != self._name or len(self._members) < 2:
            return False
        neighbours = self._neighbours()
        return sender in (neighbours[side].id, neighbours[0].id if side else "")

    def _near(self) -> list[NodeId]:
        return [member.id for member in self._neighbours()] if self._members else []

    def _neighbours(self) -> tuple[Member, Member]:
        members, index = self._members, self._index
        return members[index - 1], members[(index + 1) % len(members)]

    def _piece(self, message: Piece, payload: Sink | None, now: float, out: Effects) -> None:
        number, piece = message.number, message.piece
        one = self._sums.get(number)
        if one is None:
            if number < self._asked:  # the sender lacks the acknowledgement
                self._tell(out)
            else:
                early = self._early.setdefault(number, (set(), set()))[message.whole]
                if len(early) < LISTED_MAX:  # a probe will tell of the others
                    early.add(piece)
            return
        if message.total != one.total:
            error = InvalidValue(
                f"{self._neighbours()[0].name} sums {message.total} bytes where this worker sums "
                f"{one.total}: all have to ask for the same sums in the same order"
            )
            self._end(number, out, error)
            return
        one.heard(now)
        if payload is None or payload.revoked:
            if one.complete:
                self._tell(out)
            elif piece in (one.whole if message.whole else one.partial):
                # It began to arrive before the allreduce was requested, and was dropped.
                again = ((), (piece,)) if message.whole else ((piece,), ())
                self._miss(number, again[0], again[1], 0, out)
            return
        if message.whole:
            self._take_whole(number, one, piece, out)
        else:
            self._take_partial(number, one, piece, payload, out)
        self._look(number, one, out)

    def _take_partial(self, number: int, one: Sum, piece: int, payload: Sink, out: Effects) -> None:
        """Add the values that have arrived, unless they are duplicates."""
        landed = payload.views[payload.landed - 1]
        start = self._part_bytes * (payload.landed - 1)
        if one.add(piece, start, landed):
            self.bytes_received += landed.nbytes
            if one.added_up(piece):
                self._send(number, one, piece, one.ends_here(piece), out)
        if payload.whole:
            self._scratch.append(payload.context)

    def _take_whole(self, number: int, one: Sum, piece: int, out: Effects) -> None:
        if one.has_landed(piece):
            self.bytes_received += one.view(piece).nbytes
            if not one.comes_home(piece):
                self._send(number, one, piece, True, out)

    def _send(self, number: int, one: Sum, piece: int, whole: bool, out: Effects) -> None:
        neighbour = self._neighbours()[1].id
        if neighbour in self._handshakes:
            view = one.view(piece)
            message = Piece(self._name, number, piece, whole, one.total)
            out.append(Send(neighbour, message, (view,)))
            self.bytes_sent += view.nbytes
            one.send()

    def _probe(self, number: int, one: Sum, out: Effects) -> None:
        """Ask the next worker for its missing pieces, after all that were sent to it."""
        probe = PieceProbe(self._name, number, one.probe(), tuple(self._failed))
        out.append(Send(self._neighbours()[1].id, probe))

    def _miss(
        self, number: int, partial: Iterable[int], whole: Iterable[int], probe: int, out: Effects
    ) -> None:
        lists = tuple(sorted(partial)[:LISTED_MAX]), tuple(sorted(whole)[:LISTED_MAX])
        missing = MissingPieces(self._name, number, *lists, probe)
        out.append(Send(self._neighbours()[0].id, missing))

    def _look(self, number: int, one: Sum, out: Effects) -> None:
        """Acknowledge, resolve or end an allreduce, as far as it is complete."""
        if not one.complete:
            return
        if one.tell():
            if one.gathered:
                self._resolve(one, out, value=one.result())
            before = self._neighbours()[0].name
            large = one.values.nbytes > self._sizes[1]
            if not one.gathered or large or number % TOLD_EVERY == 0 or before in self.left:
                self._tell(out)
        if one.taken:
            self._end(number, out)

    def _tell(self, out: Effects) -> None:
        """Acknowledge the allreduces up to which all pieces have arrived."""
        end = min((n for n, one in self._sums.items() if not one.complete), default=self._asked)
        out.append(Send(self._neighbours()[0].id, SumAck(self._name, end - 1)))

    def _resolve(
        self, one: Sum, out: Effects, error: ShoalError | None = None, value: Any = None
    ) -> None:
        if request_id := one.resolve():
            out.append(Resolve(request_id, Outcome(error=error, value=value)))

    def _end(self, number: int, out: Effects, error: ShoalError | None = None) -> None:
        one = self._sums.pop(number)
        if error is not None:
            self._failed.append(number)
            out.append(Detach(self._neighbours()[1].id))
        for sink in one.sinks.values():
            sink.revoke()
        self._resolve(one, out, error)


def _alone(ask: Reduce | Gather) -> Any:
    """Return the result of a worker without others, or of nothing."""
    if isinstance(ask, Gather):
        return memoryview(bytes(ask.values))
    if ask.values.nbytes:
        ask.finish(ask.values, 1)
    return None
