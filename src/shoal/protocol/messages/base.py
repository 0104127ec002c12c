"""Message, the base of all messages, and the parts that say which rows a message carries."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from shoal.protocol.limits import FRAGMENTS_TOLD_MAX, PARTS_MAX, SLOTS_MAX, Number
from shoal.protocol.views import NodeId, Role

PROTOCOL_VERSION = 20
SCHEDULER: NodeId = "scheduler"
SAME = -2
PARTS_SHOWN = 10  # parts of a request that a text names
TELLING = frozenset(("reason", "role", "rank", "name", "generation", "table", "error"))


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The base of all messages. A new message is a class in the module of its conversation.

    Its receiver handles it in `_received` of its machine (what the scheduler says to members: in
    `Session.handle`), and says in `arriving` where its payload goes if it has one. It needs an
    example in `testing.messages`, and another `PROTOCOL_VERSION` if earlier nodes may meet it.
    `transport.wire` finds it by itself.

    Attributes:
        senders: the roles that send it; () if nodes of every role do, also such as are no members.
    """

    senders: ClassVar[tuple[Role, ...]] = ()

    def problem(self) -> str:
        """Return why its content is invalid, beyond what the types of its fields refuse."""
        return ""

    def describe(self) -> str:
        """Return the message as one readable line, for errors, traces and transcripts."""
        told = [getattr(self, name) for name in self.__struct_fields__ if name in TELLING]
        return " ".join([type(self).__name__, *(f"{value}" for value in told if value != "")])


def misplaced(message: Message, sender: NodeId, role: Role | None) -> str:
    """Return why a sender may not send a message, or why it is invalid; empty if neither.

    A node that the receiver does not know may be in a view that the receiver has not adopted yet.
    Its messages pass here, and the handlers decline requests that it may not make.

    role: the role of the sender, as the receiver knows it; None for a node that is no member
    """
    if problem := message.problem():
        return problem
    known: Role | None = "scheduler" if sender == SCHEDULER else role
    roles = message.senders
    if not roles or known is None or known in roles:
        return ""
    return f"it comes from a {known}, and {' and '.join(roles)} nodes alone send it"


class Part(msgspec.Struct, frozen=True, array_like=True):
    """Rows `[start, stop)` of table number `table`.

    In a dense table the keys are int64 and strictly increasing; rows of the range without a key
    keep their values and take part in the clock. In a sparse table the range is one of hash slots,
    and the keys are distinct uint64 in any order; a pull without keys has all rows of the range.

    Attributes:
        keys: the number of keys, which precede their values; -1 for every row of the range; or
            SAME, in a pull, for the keys that the same request pushes to the table.
        slots: the number of slots of a dense table's access method, whose values for these rows
            follow those of the rows, slot by slot (the rows' whole state); 0 for the rows alone.
    """

    table: Annotated[int, Meta(ge=0, lt=1 << 31)]
    start: Number
    stop: Number
    keys: Annotated[int, Meta(ge=SAME, le=1 << 40)] = -1
    slots: Annotated[int, Meta(ge=0, le=SLOTS_MAX)] = 0

    def describe(self) -> str:
        """Return the part as text."""
        keys = f" {self.keys} keys" if self.keys >= 0 else ""
        return f"t{self.table}[{self.start}:{self.stop}){keys}"


class KeyList(msgspec.Struct, frozen=True, array_like=True):
    """How the keys of a part are sent.

    Attributes:
        digest: the digest of the keys (`keys.digest128`), by which later requests may name them;
            empty if they are not kept.
        nbytes: the bytes of the keys in the payload; 0 if the server has kept them, or there are
            none.
    """

    digest: Annotated[bytes, Meta(max_length=16)]
    nbytes: Number

    @property
    def named(self) -> bool:
        """Whether the server has to have the keys."""
        return bool(self.digest) and not self.nbytes


Lists = Annotated[tuple[KeyList, ...], Meta(max_length=2 * PARTS_MAX)]
Parts = Annotated[tuple[Part, ...], Meta(max_length=PARTS_MAX)]
# Of each part the bytes of its encoded fragments, none if it is not encoded; or nothing at all.
Sizes = Annotated[
    tuple[Annotated[tuple[Number, ...], Meta(max_length=FRAGMENTS_TOLD_MAX)], ...],
    Meta(max_length=PARTS_MAX),
]
