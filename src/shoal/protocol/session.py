"""Session: a member's conversation with the scheduler: join, heartbeats, views, barriers, shutdown.

Every server and worker has a session, the part that their machines share. It appends its effects to
the list that its caller passes.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from types import MappingProxyType

import msgspec

from shoal.errors import (
    ClusterFull,
    DeclaredDead,
    Dropped,
    InvalidValue,
    JoinRefused,
    JoinTimeout,
    RangeLost,
    Refused,
    RunAborted,
    ShoalError,
)
from shoal.protocol.machine import Effects, HangUp, Note, Outcome, Resolve, Send, Stop, Unexpected
from shoal.protocol.messages.admin import CheckpointPlanned, CheckpointRefused, CheckpointRequest
from shoal.protocol.messages.base import SCHEDULER, Message
from shoal.protocol.messages.membership import (
    Abort,
    BarrierArrival,
    BarrierReleased,
    ConfirmRows,
    Declare,
    End,
    Finish,
    Finished,
    Group,
    Heartbeat,
    HeartbeatSeen,
    Join,
    Joined,
    Lease,
    Leased,
    LeaveRefused,
    NewView,
    NotDeclared,
    NotJoined,
    NotLeased,
    RowsConfirmed,
)
from shoal.protocol.messages.reasons import bounded
from shoal.protocol.namespaces import qualified, seen_from
from shoal.protocol.questions import Questions, Unanswered
from shoal.protocol.requests import (
    AbortRun,
    AwaitView,
    Cancel,
    DeclareTable,
    EnterBarrier,
    SaveCheckpoint,
    TakeLease,
)
from shoal.protocol.session_options import SessionOptions
from shoal.protocol.views import NO_VIEW, NodeId, Role, View, ViewId, gone, name_of
from shoal.tables.spec import TableSpec

HELD_UP_S = 0.5  # lateness of a machine's own timer: its process was not running
START_AGAIN = "it was declared dead; start it again so that it joins anew"


class Admitted(Note, frozen=True, tag="joined"):
    """The scheduler has admitted this member."""

    rank: int
    incarnation: int


class ViewAdopted(Note, frozen=True, tag="view"):
    """This member has adopted a view."""

    view: ViewId
    reason: str


class LeaveDenied(Note, frozen=True, tag="stays"):
    """The scheduler does not let this server leave yet."""

    reason: str


class Session:
    """A member's conversation with the scheduler."""

    def __init__(
        self,
        me: NodeId,
        role: Role,
        address: str = "",
        host: str = "",
        rank: int = -1,
        options: SessionOptions | None = None,
        launch: str = "",
    ) -> None:
        self.me = me
        self.role: Role = role
        self.options = options or SessionOptions()
        self.incarnation = 0
        self.rank = rank
        self.run = ""
        self.view: View | None = None
        self._roles: dict[NodeId, Role] = {}
        self.view_id: ViewId = NO_VIEW
        self._tables: tuple[TableSpec, ...] = ()  # with their names in the view
        self.ended = False
        self.group = self.options.group
        size = self.options.group_size if self.group else 0
        more = self.group, size, 0, self.options.memory
        self._join = Join(me, role, address, host, rank, launch, *more)
        self._join_by = inf
        self._again_at = -inf  # the next join or heartbeat
        self.ends_by = inf  # set once this server has received and confirmed the end
        self._heard_at = -inf
        self._held_up_s = 0.0  # the time since then in which this process did not run
        self.unanswered = Unanswered(self._listens_at)
        self._asked_for: ViewId = NO_VIEW
        self.cut_off = False  # the connection to the scheduler broke; it was not heard of since
        self._closed_at = inf  # when the scheduler's host closed the connection; inf if it did not
        self._due = -inf  # nothing is due before; it may be earlier than necessary
        self._generations: dict[str, int] = {}
        self._questions = Questions(self.options.resend_s)
        self._awaiting: list[int] = []  # requests for a view

    @property
    def name(self) -> str:
        return name_of(self.role, self.rank, self.group) if self.rank >= 0 else self.role

    def name_of(self, node: NodeId) -> str:
        """Return the name of another member; its node id if the view does not have it."""
        member = self.view.member(node) if self.view else None
        return member.name if member else node

    def role_of(self, node: NodeId) -> Role | None:
        """Return the role of another member; None if the view does not have it."""
        return self._roles.get(node)

    @property
    def launch(self) -> str:
        """The id of the start of this member's process."""
        return self._join.launch

    @property
    def heard_at(self) -> float:
        return self._heard_at  # the time of the scheduler's last message

    @property
    def address(self) -> str:
        """The address where this member listens."""
        return self._join.address

    def announce(self, address: str) -> None:
        """Set the address where this member listens, before it joins."""
        self._join = msgspec.structs.replace(self._join, address=address)

    # ------------------------------------------------------------------ questions

    def asked(self, request_id: int, request: object, clock: int, now: float, out: Effects) -> None:
        """Handle a request of a worker's caller to the scheduler, at the worker's clock."""
        match request:
            case DeclareTable(spec):
                self.declare(request_id, spec, now, out)
            case EnterBarrier(name, groups):
                self.enter_barrier(request_id, name, groups, now, out)
            case TakeLease(epochs, batches, patient):
                lease = Lease(self.incarnation, clock, epochs, batches, patient)
                self.ask("lease", request_id, lease, now, out)
            case SaveCheckpoint():
                question = CheckpointRequest(request_id, clock)
                self.ask(f"checkpoint {request_id}", request_id, question, now, out)
            case AbortRun(reason):
                self.ask("abort", request_id, Abort(bounded(reason)), now, out)
            case AwaitView():
                self._awaiting.append(request_id)
                self._show_view(out)
            case Cancel(target):
                self.forget(target)

    def enter_barrier(
        self, request_id: int, name: str, groups: tuple[Group, ...], now: float, out: Effects
    ) -> None:
        generation = self._generations.get(name, 0)
        self._generations[name] = generation + 1
        question = BarrierArrival(self.incarnation, name, generation, groups)
        self.ask(f"barrier {name} {generation}", request_id, question, now, out)

    def declare(self, request_id: int, spec: TableSpec, now: float, out: Effects) -> None:
        """Declare a table, which may be in the view already."""
        name = qualified(spec.name, self.options.namespace)
        try:
            spec = msgspec.structs.replace(spec, name=name)
        except InvalidValue as error:  # the name is too long with its namespace
            out.append(Resolve(request_id, Outcome(error=error)))
            return
        self.ask(f"table {spec.name}", request_id, Declare(self.incarnation, spec), now, out)
        self._questions.declared(self._tables, out)

    def _show_view(self, out: Effects) -> None:
        if self.view is not None:
            for request_id in self._awaiting:
                out.append(Resolve(request_id, Outcome(value=self.view)))
            self._awaiting.clear()

    def _leased(self, message: Leased, out: Effects) -> None:
        question = self._questions.message("lease")
        if isinstance(question, Lease) and question.clock == message.clock:
            self._questions.answered("lease", out, Outcome(value=message))

    def ask(self, key: str, request_id: int, question: Message, now: float, out: Effects) -> None:
        """Send a question and repeat it until `answered(key)`, which resolves all its requests."""
        again_at = self._questions.ask(key, request_id, question, now, out)
        self._due = min(self._due, again_at)

    def answered(self, key: str, out: Effects, outcome: Outcome | None = None) -> None:
        self._questions.answered(key, out, outcome)

    def questions(self) -> list[str]:
        """Return the keys of the unanswered questions, for time-out errors."""
        return self._questions.keys()

    def forget(self, request_id: int) -> None:
        """Drop a request whose caller no longer waits."""
        self._questions.forget(request_id)

    def finish(self, request_id: int, now: float, out: Effects) -> None:
        """Tell the scheduler that this worker's work is done, as far as its view knows."""
        self.ask("finish", request_id, Finish(self.incarnation, self.view_id), now, out)

    def withdraw_finish(self) -> list[int]:
        """Withdraw an unanswered `finish`; return the requests that wait for it."""
        return self._questions.withdraw("finish")

    # ------------------------------------------------------------------ events

    def tick(self, now: float, out: Effects) -> None:
        if now >= self._due and not self.ended:
            if now > self._due + HELD_UP_S and self._join_by < inf:
                self._held_up_s += now - self._due
                self._join_by += now - self._due
            self._tick(now, out)
            self._due = self._next_due()

    def _tick(self, now: float, out: Effects) -> None:
        if self._join_by == inf:
            self._join_by = now + self.options.join_timeout_s
            self._heard_at = now
        if self.view is None and now >= self._join_by:
            if self.group and self.incarnation:  # the group must not count on this worker
                out.append(Send(SCHEDULER, Finish(self.incarnation)))
            name = self.name if self.incarnation else self.role
            self.stop(out, JoinTimeout(self.options.too_late(name, self.incarnation > 0)))
            return
        if self.view is not None and now >= self.silent_since + self.options.scheduler_timeout_s:
            error = RunAborted(
                f"the scheduler has not answered for {self.options.scheduler_timeout_s:g} s"
            )
            self.stop(out, error)
            return
        if now >= self.ends_by:
            self.stop(out, None)
            return
        if now >= self._farewell_at:
            self.answered("finish", out)
        if now >= self._again_at:
            if self.view is None:
                self._again_at = now + self.options.resend_s
                join = msgspec.structs.replace(self._join, incarnation=self.incarnation)
                out.append(Send(SCHEDULER, join))
            else:
                self._again_at = now + self._pause
                self.tell_view(out)
            self.unanswered.asked(SCHEDULER, out)
        self._questions.repeat(now, out)

    def _listens_at(self, node: NodeId) -> str | None:
        if node == SCHEDULER:
            return ""
        member = self.view.member(node) if self.view is not None else None
        return (member.address or None) if member is not None else None

    @property
    def silent_since(self) -> float:
        """The time of the scheduler's last message, plus the time that this process was held up."""
        return self._heard_at + self._held_up_s

    @property
    def _farewell_at(self) -> float:
        """The time when `Finish` needs no answer any more: the scheduler seems to have ended."""
        gone = self.cut_off and "finish" in self._questions
        return self._closed_at + self.options.farewell_s if gone else inf

    @property
    def _pause(self) -> float:
        return self.options.recall_s if self.cut_off else self.options.heartbeat_s

    def peer_lost(self, node: NodeId, now: float, closed: bool) -> None:
        """Send a heartbeat soon, which reconnects: the scheduler never connects to members."""
        if node == SCHEDULER and self.view is not None and not self.ended:
            self.cut_off, self._closed_at = True, now if closed else inf
            self._again_at = min(self._again_at, now + self._pause)
            self._due = min(self._due, self._again_at)

    def deadline(self) -> float:
        return self._due

    def _next_due(self) -> float:
        if self.ended:
            return inf
        given_up_at = self.silent_since + self.options.scheduler_timeout_s
        limit = self._join_by if self.view is None else given_up_at
        return min(
            limit, self._again_at, self._questions.wakes_at(), self._farewell_at, self.ends_by
        )

    def handle(self, message: Message, now: float, out: Effects) -> View | None:
        """Handle a message of the scheduler; return the new view if the message has one."""
        self._heard_at, self._held_up_s, self.cut_off = now, 0.0, False
        self.unanswered.heard(SCHEDULER)
        match message:
            case Joined(incarnation, rank, run):
                anew = run != self.run  # another scheduler, which counts incarnations from 1
                if self.view is not None and incarnation > self.incarnation:
                    self.stop(out, DeclaredDead(f"{self.name} has a successor: {START_AGAIN}"))
                elif self.view is None and (incarnation > self.incarnation or anew):
                    self.incarnation, self.rank, self.run = incarnation, rank, run
                    out.append(Admitted(rank, incarnation))
            case NotJoined(reason, full):
                refused = ClusterFull if full else JoinRefused
                self.stop(out, refused(f"the scheduler refused this {self.role}: {reason}"))
            case NewView(view):
                return self.adopt(view, out)
            case NotDeclared(table, reason):
                self.answered(f"table {table}", out, Outcome(error=Refused(reason)))
            case BarrierReleased(name, generation):
                self.answered(f"barrier {name} {generation}", out)
            case Leased():
                self._leased(message, out)
            case NotLeased(reason):
                self.answered("lease", out, Outcome(error=Refused(reason)))
            case CheckpointPlanned(number):
                self.answered(f"checkpoint {number}", out, Outcome(value=message))
            case CheckpointRefused(number, reason):
                self.answered(f"checkpoint {number}", out, Outcome(error=Refused(reason)))
            case Finished() if self.ends_by < inf:
                self.stop(out, None)
            case Finished():
                self.answered("finish", out)
            case ConfirmRows(number):
                out.append(Send(SCHEDULER, RowsConfirmed(self.incarnation, number, self.view_id)))
            case End(error, kind):
                out.append(Send(SCHEDULER, Finish(self.incarnation)))
                if error or self.role == "worker":
                    self.stop(out, _ENDS[kind](error) if error else None)
                else:  # the scheduler repeats this until it has the answer
                    self.ends_by = min(self.ends_by, now + self.options.farewell_s)
            case LeaveRefused(reason):
                out.append(LeaveDenied(reason))
                self.answered("leave", out, Outcome(error=Refused(reason)))
            case _ if not isinstance(message, HeartbeatSeen):
                out.append(Unexpected(type(message).__name__))
        return None

    def ask_for_view(self, newer: ViewId, out: Effects) -> None:
        """Ask the scheduler for a view that others have, once; heartbeats repeat the question.

        On a slow link the view takes a while. If each message of that view asked again, and each
        answer was the view, they would fill the link.
        """
        if newer > self._asked_for:
            self._asked_for = newer
            self.tell_view(out)

    def tell_view(self, out: Effects) -> None:
        """Send a heartbeat with the id of this view: the scheduler answers with a newer view."""
        if self.view is not None:
            out.append(Send(SCHEDULER, Heartbeat(self.incarnation, self.view_id)))

    def adopt(self, view: View, out: Effects) -> View | None:
        """Adopt a view and return it; None if it is not newer or is without this member.

        A node that the view lacks may still run, in the view before. It must not read messages that
        are under way to it: because of the new view their buffers go back to their owners.
        """
        if view.id <= self.view_id:
            return None
        mine = view.member(self.me)
        if mine is not None and self.view is None and mine.incarnation < self.incarnation:
            return None  # it names a former self that was declared dead before its first view
        replaced = self.view is not None and mine and mine.incarnation != self.incarnation
        if mine is None or replaced:
            reason = f"view {view.term}.{view.number} ({view.reason}) is without this {self.name}"
            self.stop(out, DeclaredDead(f"{reason}: {START_AGAIN}"))
            return None
        if self.view is not None:
            out.extend(HangUp(node) for node in gone(self.view, view))
            self.unanswered.keep({SCHEDULER, *(m.id for m in (*view.servers, *view.workers))})
        self.incarnation, self.rank = mine.incarnation, mine.rank
        self._tables = view.tables
        self.view, self.view_id = seen_from(view, self.options.namespace), view.id
        self._roles = {m.id: m.role for m in (*self.view.servers, *self.view.workers)}
        out.append(ViewAdopted(view.id, view.reason))
        self._questions.declared(view.tables, out)
        self._show_view(out)
        return self.view

    def stop(self, out: Effects, error: ShoalError | None) -> None:
        """End this member: in order, or with an error."""
        self.ended = True
        self._due = inf
        if error is None:  # a run ends in order once all have finished: `Finish` has arrived
            self.answered("finish", out)
        ended = Outcome(error=error or RunAborted("the run has ended"))
        self._questions.end(ended, out)
        for request_id in self._awaiting:
            out.append(Resolve(request_id, ended))
        self._awaiting.clear()
        out.append(Stop(error))


_ENDS: Mapping[str, type[ShoalError]] = MappingProxyType(
    {"": RunAborted, "lost": RangeLost, "dropped": Dropped, "dead": DeclaredDead}
)
