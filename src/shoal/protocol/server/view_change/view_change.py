"""ViewChange: the part of a server that handles views and its own departure."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from shoal.protocol.machine import Effects, Offloaded
from shoal.protocol.messages.membership import Freeze, NewView, OpenShards, RefuseView, ViewRefused
from shoal.protocol.server.replication.replication import Replication
from shoal.protocol.server.requests.requests import Requests
from shoal.protocol.server.state.shard_store import OpenStore
from shoal.protocol.server.state.state import ServerState
from shoal.protocol.server.view_change.adoption import ViewAdoption
from shoal.protocol.server.view_change.departure import Departure
from shoal.protocol.server.view_change.opening import ShardOpening
from shoal.protocol.server.view_change.thaw import Thaw
from shoal.protocol.views import NodeId


class ViewChange:
    """Opens the shards of the next view, promises, refuses and adopts views, and leaves."""

    def __init__(
        self,
        state: ServerState,
        requests: Requests,
        replication: Replication,
        open_shard: OpenStore,
        tickets: Iterator[int],
        checkpoint_folder: Callable[[], str],
    ) -> None:
        """Make the parts of a view change.

        tickets:            the numbers of `Offload` effects
        checkpoint_folder:  a function that returns the folder of this server's checkpoints, or ""
        """
        self._time = state.time
        self._opening = ShardOpening(state.session, open_shard, requests.memory, tickets)
        self._departure = Departure(state.session)
        self._thaw = Thaw(state.session, requests.admission, state.time)
        self._adoption = ViewAdoption(
            state, requests, replication, self._thaw, self._opening.take, checkpoint_folder
        )

    def problem_of(self, message: OpenShards) -> str:
        """Return the problem of a scheduler's list of shards; empty if it has none."""
        return self._opening.problem_of(message)

    def from_server(
        self, sender: NodeId, message: RefuseView | ViewRefused | NewView, out: Effects
    ) -> None:
        """Handle a message of another server about views."""
        self._adoption.from_server(sender, message, out)

    def from_scheduler(self, message: OpenShards | Freeze | NewView, out: Effects) -> None:
        """Open the shards of the next view, promise it, or adopt it."""
        if isinstance(message, OpenShards):
            self._opening.asked(message, out)
        elif isinstance(message, Freeze):
            self._adoption.freeze(message, out)
        else:
            self._adoption.offered(message, self._time.now, out)

    def opened(self, event: Offloaded, out: Effects) -> None:
        """Record a shard that was opened outside of the loop, or could not be."""
        self._opening.done(event, out)

    def leave(self, request_id: int, out: Effects) -> None:
        """Ask the scheduler to move this server's rows and to end it."""
        self._departure.ask(request_id, self._time.now, out)

    def tick(self, out: Effects) -> None:
        """Do the work that is due."""
        self._departure.look(self._time.now, out)
        self._thaw.go_on(out)
        self._adoption.thaw_if_agreed(out)

    def wakes_at(self) -> float:
        return min(self._departure.wakes_at(), self._thaw.wakes_at())

    @property
    def asks_servers(self) -> bool:
        """Whether this server needs the answers of all other servers of its view."""
        return self._thaw.asks
