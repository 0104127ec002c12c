"""Thaw: frozen servers continue in their view while the scheduler is away.

A server that has promised a view applies and answers nothing until it comes. The scheduler may die
before that. Once it is silent for `SessionOptions.thaw_s`, a frozen server asks the other servers
of its view to *refuse* the promised one: not to adopt it from the scheduler any more. When all have
refused it, no member has adopted it, because a view is offered to the servers of the view before it
first; and nobody will. So the server continues in its view.

A server that has adopted a newer view hands it over instead. A silent server may have adopted the
promised view, so that the others stay frozen until the scheduler is back. Time begins the questions
and decides nothing (decision 0027).
"""

from __future__ import annotations

from math import inf

from shoal.protocol.machine import Effects, EventTime, Send
from shoal.protocol.messages.membership import NewView, RefuseView, ViewRefused
from shoal.protocol.server.notes import Thawed
from shoal.protocol.server.requests.admission import Admission
from shoal.protocol.session import Session
from shoal.protocol.views import NO_VIEW, NodeId, View, ViewId


class Thaw:
    """A frozen server's questions to the servers of its view, and its answers to theirs."""

    def __init__(self, session: Session, admission: Admission, time: EventTime) -> None:
        self._session = session
        self._admission = admission
        self._time = time
        self._frozen_at = inf
        self._again_at = -inf
        self._asked: ViewId = NO_VIEW  # the view that the servers are asked to refuse
        self._refused_by: set[NodeId] = set()
        self._newer: View | None = None  # adopted by another server, older than the promised one

    @property
    def _view(self) -> View | None:
        """The newest view that is known to be adopted."""
        return self._newer or self._session.view

    @property
    def asks(self) -> bool:
        """Whether this server needs the answers of other servers."""
        return self._admission.frozen and self._asked == self._admission.promised

    def frozen(self) -> None:
        """Record the time of the first promise since the latest view."""
        if self._frozen_at == inf:
            self._frozen_at = self._time.now

    def adopted(self) -> None:
        """Forget the promise and all answers: the server has adopted a view, or thawed."""
        self._frozen_at, self._again_at, self._newer = inf, -inf, None
        self._refused_by.clear()

    def wakes_at(self) -> float:
        if not self._admission.frozen or self._view is None:
            return inf
        silent_since = max(self._frozen_at, self._session.heard_at)
        return max(silent_since + self._session.options.thaw_s, self._again_at)

    def go_on(self, out: Effects) -> None:
        """Refuse the promised view, and ask the other servers to refuse it, if that is due."""
        view, promised = self._view, self._admission.promised
        if view is None or self._time.now < self.wakes_at():
            return
        self._again_at = self._time.now + self._session.options.resend_s
        if self._asked != promised:
            self._asked = promised
            self._refused_by.clear()
        self._admission.refuse(promised)
        question = RefuseView(promised, view.id)
        for node in self._awaited(view):
            out.append(Send(node, question))
            self._session.unanswered.asked(node, out)

    def _awaited(self, view: View) -> list[NodeId]:
        me = self._session.me
        return [m.id for m in view.servers if m.id != me and m.id not in self._refused_by]

    def thawed(self, out: Effects) -> View | None:
        """Return the view in which to continue, once all its servers have refused the promised one.

        It may be newer than this server's.
        """
        view = self._view
        if view is None or not self.asks or self._awaited(view):
            return None
        out.append(Thawed(view.id, self._asked))
        return view

    # ------------------------------------------------------------------ messages

    def asked(self, sender: NodeId, message: RefuseView, out: Effects) -> None:
        """Refuse a view, unless this server has adopted it; hand over a newer view.

        A sender that is no server of the view known here is told only which view this server has:
        if the sender's is newer, it hands that over, and asks again.
        """
        here = self._session.view_id
        known = self._view.servers if self._view is not None else ()
        if not any(member.id == sender for member in known):
            out.append(Send(sender, ViewRefused(NO_VIEW, here)))
            return
        if self._session.view is not None and here > message.adopted:
            out.append(Send(sender, NewView(self._session.view)))
        if here < message.view:
            self._admission.refuse(message.view)
            out.append(Send(sender, ViewRefused(message.view, here)))

    def answered(self, sender: NodeId, message: ViewRefused, out: Effects) -> None:
        """Count a server that has refused the promised view; hand over a newer view."""
        view = self._view
        if view is None or message.adopted > view.id or message.view not in (self._asked, NO_VIEW):
            return
        if message.view == self._asked:
            self._refused_by.add(sender)
        if message.adopted < view.id:
            out.append(Send(sender, NewView(view)))

    def keep(self, view: View) -> None:
        """Keep a view that another server has adopted, and that is older than the promised one."""
        if self._view is None or view.id > self._view.id:
            self._newer = view
            self._refused_by.clear()
            self._again_at = -inf
