"""Questions of a member to the scheduler: each is repeated until it is answered.

`Unanswered` counts the messages that a member repeats to any peer (probes, resends, heartbeats)
while the peer is silent. A host on the way may acknowledge bytes that it never delivers, as a proxy
does that has lost its peer. The connection then looks healthy: only the peer's silence shows the
fault, and a new connection is tried.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from math import inf

import msgspec

from shoal.protocol.machine import Effects, Outcome, Redial, Resolve, Send
from shoal.protocol.messages.base import SCHEDULER, Message
from shoal.protocol.messages.membership import Declare
from shoal.tables.spec import TableSpec

REDIAL_AFTER = 3  # questions in a row without any message from the peer


class _Question(msgspec.Struct):
    """An unanswered question, and the requests of the member's caller that wait for the answer."""

    request_ids: list[int]
    message: Message
    again_at: float


class Questions:
    """The unanswered questions of a member, by key.

    Args:
        resend_s: the seconds between repetitions.
    """

    def __init__(self, resend_s: float) -> None:
        self._resend_s = resend_s
        self._open: dict[str, _Question] = {}

    def ask(self, key: str, request_id: int, message: Message, now: float, out: Effects) -> float:
        """Send a question and repeat it until `answered(key)`, which resolves all its requests.

        Returns:
            The time when the question is due again.
        """
        asked = self._open[key].request_ids if key in self._open else []
        again_at = now + self._resend_s
        self._open[key] = _Question([*asked, request_id], message, again_at)
        out.append(Send(SCHEDULER, message))
        return again_at

    def message(self, key: str) -> Message | None:
        """Return the message of an unanswered question; None if there is none with this key."""
        return self._open[key].message if key in self._open else None

    def declared(self, tables: Sequence[TableSpec], out: Effects) -> None:
        """Answer the declarations that these tables match.

        The scheduler refuses a declaration that differs from the table of its name.
        """
        for spec in tables:
            asked = self.message(key := f"table {spec.name}")
            if isinstance(asked, Declare) and spec.is_cut_of(asked.spec):
                self.answered(key, out)

    def answered(self, key: str, out: Effects, outcome: Outcome | None = None) -> None:
        question = self._open.pop(key, None)
        for request_id in question.request_ids if question is not None else ():
            out.append(Resolve(request_id, outcome or Outcome()))

    def withdraw(self, key: str) -> list[int]:
        """Ask a question no more; return the requests that wait for its answer."""
        question = self._open.pop(key, None)
        return question.request_ids if question is not None else []

    def end(self, outcome: Outcome, out: Effects) -> None:
        """Answer all questions with this outcome."""
        for key in list(self._open):
            self.answered(key, out, outcome)

    def keys(self) -> list[str]:
        """Return the keys of the unanswered questions, for time-out errors."""
        return sorted(self._open)

    def forget(self, request_id: int) -> None:
        """Drop a request whose caller no longer waits."""
        for key, question in list(self._open.items()):
            if request_id in question.request_ids:
                question.request_ids.remove(request_id)
                if not question.request_ids:
                    del self._open[key]

    def repeat(self, now: float, out: Effects) -> None:
        """Send the due questions again."""
        for question in self._open.values():
            if now >= question.again_at:
                question.again_at = now + self._resend_s
                out.append(Send(SCHEDULER, question.message))

    def wakes_at(self) -> float:
        return min((each.again_at for each in self._open.values()), default=inf)

    def __contains__(self, key: object) -> bool:
        return key in self._open


class Unanswered:
    """The number of questions to each peer since its last message.

    address_of:  the address where a peer listens; empty for the scheduler, None for nowhere
    counts:      the number of questions by peer
    """

    def __init__(self, address_of: Callable[[str], str | None]) -> None:
        self.counts: dict[str, int] = {}
        self._address_of = address_of

    def asked(self, to: str, out: Effects) -> None:
        """Count a question to a peer; redial the peer after every `REDIAL_AFTER` of them."""
        count = self.counts[to] = self.counts.get(to, 0) + 1
        if count % REDIAL_AFTER == 0 and (address := self._address_of(to)) is not None:
            out.append(Redial(to, address))

    def heard(self, sender: str) -> None:
        """Note that a message from a peer has arrived."""
        self.counts.pop(sender, None)

    def keep(self, peers: Collection[str]) -> None:
        """Forget the counts of all other peers.

        A peer that stays is as silent as before: views may follow each other faster than questions
        are repeated.
        """
        self.counts = {peer: count for peer, count in self.counts.items() if peer in peers}
