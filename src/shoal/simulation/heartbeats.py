"""The heartbeats of the members' processes, which threads send even while the loops are busy."""

from __future__ import annotations

from functools import partial

from shoal.protocol.machine import Received
from shoal.protocol.messages.base import SCHEDULER
from shoal.protocol.messages.membership import ProcessHeartbeat
from shoal.protocol.scheduler.machine import SchedulerMachine
from shoal.protocol.session import Session
from shoal.protocol.views import NodeId
from shoal.simulation.node import SimNode
from shoal.simulation.world import World
from shoal.transport.wire import encode

EVERY_S = 1.0


class ProcessHeartbeats:
    """Sends heartbeats, on separate connections, and knows when the scheduler had the last one."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._heard_at: dict[NodeId, float] = {}  # of members, at their present incarnation

    def begin(self, sim: SimNode, session: Session) -> None:
        """Send the heartbeats of a node that has started."""
        self._later(sim, session, -1)

    def unheard_s(self, node: NodeId) -> float:
        """Return the seconds since the scheduler had a member's last heartbeat."""
        return self._world.now - self._heard_at.get(node, -1e9)

    def _later(self, sim: SimNode, session: Session, turns: int) -> None:
        self._world.at(self._world.now + EVERY_S, partial(self._beat, sim, session, turns))

    def _beat(self, sim: SimNode, session: Session, turns: int) -> None:
        world = self._world
        if not sim.alive or sim.stopped:
            return
        if world.now < sim.stopped_until:
            world.at(sim.stopped_until, partial(self._beat, sim, session, turns))
            return
        self._later(sim, session, sim.turns)
        if session.incarnation:
            at = "its busy loop" if sim.turns == turns else ""
            beat = ProcessHeartbeat(sim.node, session.incarnation, sim.turns, at)
            arrivals, _ = world.network.send(
                world.now, sim.node, SCHEDULER, len(encode(beat)), type(beat).__name__, "heartbeats"
            )
            for when in arrivals:
                world.at(when, partial(self._arrive, beat))

    def _arrive(self, beat: ProcessHeartbeat) -> None:
        scheduler = self._world.nodes[SCHEDULER]
        if self._world.now < scheduler.paused_until:
            self._world.at(scheduler.paused_until, partial(self._arrive, beat))
            return
        machine = scheduler.machine
        assert isinstance(machine, SchedulerMachine)
        member = machine.members.by_id.get(beat.node)
        here = member is not None and member.incarnation == beat.incarnation
        # a scheduler at work may read it only after the look at which it declares the member dead
        if scheduler.alive and here and self._world.now >= scheduler.works_until:
            self._heard_at[beat.node] = self._world.now
        self._world.handle(scheduler, Received(f"{beat.node}-heartbeat", beat))
