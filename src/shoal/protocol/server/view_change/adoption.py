"""ViewAdoption: a server promises, refuses and adopts views."""

from __future__ import annotations

from collections.abc import Callable

from shoal.errors import ProcessDied, ShoalError
from shoal.protocol.machine import Effects, Send
from shoal.protocol.messages.base import SCHEDULER
from shoal.protocol.messages.membership import Freeze, Frozen, NewView, RefuseView, ViewRefused
from shoal.protocol.server.notes import Declined
from shoal.protocol.server.replication.replication import Replication
from shoal.protocol.server.requests.requests import Requests
from shoal.protocol.server.state.replicas import Take
from shoal.protocol.server.state.state import ServerState
from shoal.protocol.server.view_change.thaw import Thaw
from shoal.protocol.views import NodeId, View, ViewId


class ViewAdoption:
    """Promises, refuses and adopts views, and passes them to the parts of the server."""

    def __init__(
        self,
        state: ServerState,
        requests: Requests,
        replication: Replication,
        thaw: Thaw,
        open_shard: Take,
        checkpoint_folder: Callable[[], str],
    ) -> None:
        """Take the parts of the server.

        open_shard:         a function that returns an opened shard
        checkpoint_folder:  a function that returns the folder of this server's checkpoints, or ""
        """
        self._session = state.session
        self._state = state
        self._requests = requests
        self._admission = requests.admission
        self._replication = replication
        self._thaw = thaw
        self._open_shard = open_shard
        self._checkpoint_folder = checkpoint_folder

    def refused(self, view: ViewId, out: Effects) -> bool:
        """Return whether this server has refused a newer view than its own; if so, reply that."""
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
            out.append(Declined("unexpected", sender, "NewView"))
        self.thaw_if_agreed(out)

    def _names(self, sender: NodeId, view: View) -> bool:
        """Return whether a view contains its sender and this server.

        The scheduler ends a server that left or was declared dead.
        """
        mine = view.member(self._session.me)
        here = mine is not None and mine.incarnation == self._session.incarnation
        return here and any(member.id == sender for member in view.servers)

    def thaw_if_agreed(self, out: Effects) -> None:
        """Continue in this view or a newer one, if all its servers refused the promised one."""
        view = self._thaw.thawed(out)
        if view is None:
            return
        self._admission.thaw()
        self._thaw.adopted()
        if self._session.adopt(view, out) is not None:
            self.adopt(view, out)
        self._requests.executor.look(out)

    def freeze(self, message: Freeze, out: Effects) -> None:
        if message.view <= self._session.view_id or self.refused(message.view, out):
            return
        self._admission.promise(message.view)
        self._thaw.frozen()
        if message.view == self._admission.promised:
            groups = tuple(map(self._replication.progress, self._state.clocks.groups()))
            drained = self._replication.drained(message.view)
            mine = self._session.view if self._session.view_id > message.known else None
            clocks = tuple(self._state.clocks.items())
            folder = self._checkpoint_folder()
            promise = Frozen(message.view, clocks, groups, drained, mine, folder)
            out.append(Send(SCHEDULER, promise))

    def offered(self, message: NewView, now: float, out: Effects) -> None:
        """Adopt a view of the scheduler, unless it was refused or a newer one was promised."""
        view = message.view.id
        if self.refused(view, out):
            out.append(Declined("refused view", SCHEDULER, "NewView"))
        elif view < self._admission.promised:
            out.append(Declined("older view", SCHEDULER, "NewView"))
        elif (adopted := self._session.handle(message, now, out)) is not None:
            self.adopt(adopted, out)

    def adopt(self, view: View, out: Effects) -> None:
        self._admission.adopt(view)
        self._thaw.adopted()
        self._session.tell_view(out)  # the scheduler waits for the first server with it
        try:
            moved = self._state.placed.adopt(view, self._session.rank, self._open_shard)
        except ShoalError as error:  # the shard was not on the list: others go on
            text = f"{self._session.name} cannot open its part of a view: {error.message}"
            self._session.stop(out, ProcessDied(text))
            return
        if moved.cut:
            self._requests.staging.guard.recall()
            self._admission.recut(moved.cut)
        self._admission.place(view.tables, self._state.replicas, moved.chains)
        self._replication.adopt(view, moved, out)
        if moved.chains:
            self._requests.wait_queue.clear()
        self._admit(view, out)
        self._replication.take_over()
        for group, clock in moved.begin.items():
            self._state.clocks.of(group).reset(clock)  # workers advance it when they send again
        self._state.clocks.close_by(view.tables)
        for group in self._state.clocks.groups():
            self._state.clocks.look(group, self._state.time.now)
        self._requests.checkpointer.adopt(view)
        for group in self._state.clocks.groups():
            self._requests.round_closer.close(group, out)
        self._requests.executor.look(out)
        self._replication.say_synced(out)

    def _admit(self, view: View, out: Effects) -> None:
        """Enter the view's workers, and remove all others."""
        for gone in self._state.enter_workers(view):
            self._requests.wait_queue.forget(gone.id)
        last_clocks = {m.incarnation: m.last_clock for m in view.departed}
        for worker, _ in list(self._state.clocks.items()):
            if worker not in self._state.workers:
                self._state.clocks.leave(worker)
                # its pushes count in the rounds below its last clock
                self._state.rounds.drop(worker, last_clocks.get(worker, 0))
                self._requests.wait_queue.drop(worker)
        self._state.clocks.keep(view.groups())
        self._state.rounds.keep(view.groups())
        for replica in self._state.replicas.values():
            replica.shard.keep(self._state.workers)
        for worker, member in self._state.workers.items():
            if worker not in self._state.clocks:
                self._state.clocks.enter(worker, member.first_clock, member.group, member.rank)
