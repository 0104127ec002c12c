"""Questions of a member to the scheduler: each is repeated until it is answered.

And what a member repeats to any peer (probes, resends, heartbeats) while nothing is heard of it. A
host on the way may acknowledge what it never delivers, as a proxy does that has lost its peer. That
connection seems well: only the peer's silence tells, and then another one is tried.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from math import inf

import msgspec

from shoal.protocol.machine import Effects, Outcome, Redial, Resolve, Send
from shoal.protocol.messages import SCHEDULER, Declare, Message
from shoal.tables.spec import TableSpec

REDIAL_AFTER = 3  # questions in a row without any message of the peer


class _Question(msgspec.Struct):
    """An unanswered question, and the requests of the member's caller that wait for the answer."""

    request_ids: list[int]
    message: Message
    again_at: float


class Questions:
    """The unanswered questions of a member, by key.

    Args:
        resend_s: seconds between repetitions.
    """

    def __init__(self, resend_s: float) -> None:
        self._resend_s = resend_s
        self._open: dict[str, _Question] = {}

    def ask(self, key: str, request_id: int, message: Message, now: float, out: Effects) -> float:
        """Send a question and repeat it until `answered(key)`, for all of its requests.

        Returns:
            When it is due again.
        """
        asked = self._open[key].request_ids if key in self._open else []
        again_at = now + self._resend_s
        self._open[key] = _Question([*asked, request_id], message, again_at)
        out.append(Send(SCHEDULER, message))
        return again_at

    def message(self, key: str) -> Message | None:
        """An unanswered question."""
        return self._open[key].message if key in self._open else None

    def declared(self, tables: Sequence[TableSpec], out: Effects) -> None:
        """Answer the declarations of these tables; another table of a name will be refused."""
        for spec in tables:
            asked = self.message(key := f"table {spec.name}")
            if isinstance(asked, Declare) and spec.is_cut_of(asked.spec):
                self.answered(key, out)

    def answered(self, key: str, out: Effects, outcome: Outcome | None = None) -> None:
        question = self._open.pop(key, None)
        for request_id in question.request_ids if question is not None else ():
            out.append(Resolve(request_id, outcome or Outcome()))

    def end(self, outcome: Outcome, out: Effects) -> None:
        """Answer all of them."""
        for key in list(self._open):
            self.answered(key, out, outcome)

    def keys(self) -> list[str]:
        """The unanswered questions, for time-out errors."""
        return sorted(self._open)

    def forget(self, request_id: int) -> None:
        """Drop a request whose caller no longer waits."""
        for key, question in list(self._open.items()):
            if request_id in question.request_ids:
                question.request_ids.remove(request_id)
                if not question.request_ids:
                    del self._open[key]

    def repeat(self, now: float, out: Effects) -> None:
        """Send those again that are due."""
        for question in self._open.values():
            if now >= question.again_at:
                question.again_at = now + self._resend_s
                out.append(Send(SCHEDULER, question.message))

    def wakes_at(self) -> float:
        return min((each.again_at for each in self._open.values()), default=inf)

    def __contains__(self, key: object) -> bool:
        return key in self._open


class Unanswered:
    """The questions that each peer was asked since it was last heard of.

    address_of:  where a peer listens; empty for the scheduler, None for nowhere
    counts:      questions by peer
    """

    def __init__(self, address_of: Callable[[str], str | None]) -> None:
        self.counts: dict[str, int] = {}
        self._address_of = address_of

    def asked(self, to: str, out: Effects) -> None:
        """Count a question; after several of them have the peer dialled anew."""
        count = self.counts[to] = self.counts.get(to, 0) + 1
        if count % REDIAL_AFTER == 0 and (address := self._address_of(to)) is not None:
            out.append(Redial(to, address))

    def heard(self, sender: str) -> None:
        """Note that a message of a peer has come."""
        self.counts.pop(sender, None)

    def keep(self, peers: Collection[str]) -> None:
        """Forget all other peers.

        A peer that stays is as silent as before: views may follow each other faster than questions
        are repeated.
        """
        self.counts = {peer: count for peer, count in self.counts.items() if peer in peers}
