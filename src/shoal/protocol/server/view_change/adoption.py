"""ViewAdoption: a server promises, refuses and adopts views."""

from __future__ import annotations

from collections.abc import Callable

from shoal.errors import ProcessDied, ShoalError
from shoal.protocol.consistency import Clocks
from shoal.protocol.machine import CopyOnWriteGuard, Effects, Send
from shoal.protocol.messages import SCHEDULER, Freeze, Frozen, NewView, RefuseView, ViewRefused
from shoal.protocol.server.admission import Admission
from shoal.protocol.server.checkpointing import Checkpointer
from shoal.protocol.server.executor import Executor
from shoal.protocol.server.replication.replicas import Replicas
from shoal.protocol.server.replication.replication import Replication
from shoal.protocol.server.request_handler import declined
from shoal.protocol.server.round_closing import RoundCloser
from shoal.protocol.server.view_change.thaw import Thaw
from shoal.protocol.server.wait_queue import WaitQueue
from shoal.protocol.session import Session
from shoal.protocol.views import Member, NodeId, View, ViewId


class ViewAdoption:
    """Brings what a view says to the parts of the server that go by it.

    workers:            the view's, by incarnation
    checkpoint_folder:  where this server's checkpoints are written; empty if nowhere
    """

    def __init__(
        self,
        session: Session,
        admission: Admission,
        thaw: Thaw,
        replicas: Replicas,
        replication: Replication,
        guard: CopyOnWriteGuard,
        wait_queue: WaitQueue,
        executor: Executor,
        round_closer: RoundCloser,
        clocks: Clocks,
        checkpointer: Checkpointer,
        workers: dict[int, Member],
        checkpoint_folder: Callable[[], str],
    ) -> None:
        self._session = session
        self._admission = admission
        self._thaw = thaw
        self._replicas = replicas
        self._replication = replication
        self._guard = guard
        self._wait_queue = wait_queue
        self._executor = executor
        self._round_closer = round_closer
        self._clocks = clocks
        self._checkpointer = checkpointer
        self._workers = workers
        self._checkpoint_folder = checkpoint_folder

    def refused(self, view: ViewId, out: Effects) -> bool:
        """Return whether this server has refused a newer view than its own; say so."""
        refused = self._session.view_id < view <= self._admission.refused
        if refused:
            out.append(Send(SCHEDULER, ViewRefused(view, self._session.view_id)))
        return refused

    def from_server(
        self, sender: NodeId, message: RefuseView | ViewRefused | NewView, out: Effects
    ) -> None:
        """Handle a message of another server about views."""
        if isinstance(message, RefuseView):
            self._thaw.asked(sender, message, out)
        elif isinstance(message, ViewRefused):
            self._thaw.answered(sender, message, out)
        elif self._names(sender, message.view):
            if message.view.id < self._admission.promised:
                self._thaw.keep(message.view)
                self._thaw.go_on(out)
            elif (view := self._session.adopt(message.view, out)) is not None:
                self.adopt(view, out)
        else:
            out.append(declined("unexpected", sender, "NewView"))
        self.thaw_if_agreed(out)

    def _names(self, sender: NodeId, view: View) -> bool:
        """Return whether a view has its sender, and this server: the scheduler ends one that left
        or was declared dead."""
        mine = view.member(self._session.me)
        here = mine is not None and mine.incarnation == self._session.incarnation
        return here and any(member.id == sender for member in view.servers)

    def thaw_if_agreed(self, out: Effects) -> None:
        """Continue in this view, or in a newer one that other servers have adopted."""
        view = self._thaw.thawed(out)
        if view is None:
            return
        self._admission.thaw()
        self._thaw.adopted()
        if self._session.adopt(view, out) is not None:
            self.adopt(view, out)
        self._executor.look(out)

    def freeze(self, message: Freeze, out: Effects) -> None:
        if message.view <= self._session.view_id or self.refused(message.view, out):
            return
        self._admission.promise(message.view)
        self._thaw.frozen()
        if message.view == self._admission.promised:
            groups = tuple(map(self._replication.progress, self._clocks.groups()))
            drained = self._replication.drained(message.view)
            mine = self._session.view if self._session.view_id > message.known else None
            clocks = tuple(self._clocks.items())
            folder = self._checkpoint_folder()
            promise = Frozen(message.view, clocks, groups, drained, mine, folder)
            out.append(Send(SCHEDULER, promise))

    def adopt(self, view: View, out: Effects) -> None:
        self._admission.adopt(view)
        self._thaw.adopted()
        self._session.tell_view(out)  # the scheduler waits for the first that has adopted it
        try:
            moved = self._replicas.adopt(view, self._session.rank)
        except ShoalError as error:  # it was not opened before: others go on without this server
            text = f"{self._session.name} cannot open its part of a view: {error.message}"
            self._session.stop(out, ProcessDied(text))
            return
        if moved.cut:
            self._guard.recall()
            self._admission.recut(moved.cut)
        self._admission.place(view.tables, self._replicas.replicas, moved.chains)
        self._replication.adopt(view, moved, out)
        if moved.chains:
            self._wait_queue.clear()
        self._admit(view, out)
        self._replication.take_over()
        for group, clock in moved.begin.items():
            self._clocks.of(group).reset(clock)  # workers advance it when they send again
        self._clocks.close_by(view.tables)
        for group in self._clocks.groups():
            self._clocks.look(group, self._replication.chains.time.now)
        self._checkpointer.adopt(view)
        for group in self._clocks.groups():
            self._round_closer.close(group, out)
        self._executor.look(out)
        self._replication.say_synced(out)

    def _admit(self, view: View, out: Effects) -> None:
        """Enter the view's workers, and remove all others."""
        here = {member.id for member in view.workers}
        for gone in [m.id for m in self._workers.values() if m.id not in here]:
            self._wait_queue.forget(gone)
        self._workers.clear()
        self._workers.update((m.incarnation, m) for m in view.workers)
        last_clocks = {m.incarnation: m.last_clock for m in view.departed}
        for worker, _ in list(self._clocks.items()):
            if worker not in self._workers:
                self._clocks.leave(worker)
                # its pushes count in the rounds below its last clock
                self._executor.rounds.drop(worker, last_clocks.get(worker, 0))
                self._wait_queue.drop(worker)
        self._clocks.keep(view.groups())
        self._executor.rounds.keep(view.groups())
        for replica in self._replicas.replicas.values():
            replica.shard.keep(self._workers)
        for worker, member in self._workers.items():
            if worker not in self._clocks:
                self._clocks.enter(worker, member.first_clock, member.group, member.rank)
