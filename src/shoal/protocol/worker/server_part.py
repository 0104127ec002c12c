"""Server parts: the part of an exchange for one server, and the destination of its answer."""

from __future__ import annotations

import msgspec

from shoal.protocol.layout import SIZE_BYTES, count_of
from shoal.protocol.messages.base import SAME, Part
from shoal.protocol.requests import Answer
from shoal.protocol.views import NodeId


class ServerPart(msgspec.Struct, frozen=True):
    """One server's part of a sub-request.

    Attributes:
        buffers: the pushed keys and values, then the keys of keyed pulls.
        outs: the destinations of pulled rows.
        nbytes: the bytes that the server needs for `buffers`: of encoded rows, those of the rows.
        nbytes_out: the bytes of `outs`, or -1 with `answers`.
        answers: the destinations of answers of any size, in place of `outs`.
        rates: the learning rate of each part of the push; none at all if no part has one.
        sizes: of each part of the push, the bytes of its encoded fragments; none at all if no part
            is encoded.
        pulled: the same of the pulled rows.
        lists: of each part that names keys, the digest of these; empty if servers do not keep them;
            none at all if they keep none.
    """

    server: NodeId
    pushes: tuple[Part, ...]
    pulls: tuple[Part, ...]
    buffers: tuple[memoryview, ...]
    outs: list[memoryview]
    nbytes: int
    nbytes_out: int
    answers: tuple[Answer, ...] = ()
    rates: tuple[float | None, ...] = ()
    sizes: tuple[tuple[int, ...], ...] = ()
    pulled: tuple[tuple[int, ...], ...] = ()
    lists: tuple[bytes, ...] = ()

    @property
    def payload_bytes(self) -> int:
        """The bytes of `buffers`: of a part without encoded rows these are `nbytes`."""
        return sum(buffer.nbytes for buffer in self.buffers)

    def without_push(self) -> ServerPart:
        """Return the same pulls of the same keys, without the pushes."""
        sent, digests, pushed, pulls = iter(self.buffers), iter(self.lists), {}, []
        for part in self.pushes:
            if part.keys >= 0:
                pushed[part.table, part.start, part.stop] = next(sent), next(digests, b"")
            for _ in range(1 + part.slots):
                next(sent)
        keys, lists = [], []
        for part in self.pulls:
            if part.keys == SAME:
                same, digest = pushed[part.table, part.start, part.stop]
                part = msgspec.structs.replace(part, keys=count_of(same))
            elif part.keys >= 0:
                same, digest = next(sent), next(digests, b"")
            pulls.append(part)
            if part.keys >= 0:
                keys.append(same)
                lists.append(digest)
        # `nbytes` stays: it is the credit that is returned with the answer
        return msgspec.structs.replace(
            self,
            pushes=(),
            pulls=tuple(pulls),
            buffers=tuple(keys),
            rates=(),
            sizes=(),
            lists=tuple(lists) if self.lists else (),
        )

    def key_buffers(self) -> list[int]:
        """Return which of the buffers are keys, in order."""
        found, at = [], 0
        for part in self.pushes:
            if part.keys >= 0:
                found.append(at)
                at += 1
            at += 1 + part.slots
        return [*found, *range(at, len(self.buffers))]

    def destination(self, nbytes: int) -> list[memoryview]:
        """Return the destination of an answer of `nbytes` bytes."""
        return [memoryview(bytearray(nbytes))] if self.answers else self.outs

    def answered(self, views: list[memoryview]) -> None:
        """Split an arrived answer among `answers`; each of several follows its size."""
        start, several = 0, len(self.answers) > 1
        for answer in self.answers:
            stop = views[0].nbytes
            if several:
                start += SIZE_BYTES
                stop = start + int.from_bytes(views[0][start - SIZE_BYTES : start], "little")
            answer.take(views[0][start:stop])
            start = stop

    def emptied(self) -> ServerPart:
        """Return a part for the same server that pushes and pulls nothing."""
        return ServerPart(self.server, (), (), (), [], 0, 0)

    def without_caller(self, copied: bool) -> ServerPart:
        """Return the same part without destinations of pulls, and with copied bytes if `copied`."""
        buffers = self.buffers
        if copied:
            buffers = tuple(memoryview(bytes(each)) for each in buffers)
        return msgspec.structs.replace(self, buffers=buffers, outs=[], nbytes_out=0, answers=())


class SubRequestPlan(msgspec.Struct, frozen=True):
    """The part of an exchange that is sent together, at most one message per server.

    Attributes:
        pushed: the tables that it pushes to.
        pulled: the tables that it pulls from.
        closing: whether one of the pushes is applied at the end of its round.
        advances: whether it ends the worker's clock.
    """

    pushed: tuple[int, ...]
    pulled: tuple[int, ...]
    closing: bool
    advances: bool
    server_parts: list[ServerPart]
