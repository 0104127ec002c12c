"""Authenticated frames in one process: machines of simulated clusters get mutated messages.

A simulated cluster runs for a while without being disturbed. Then each of its machines is sent
mutated messages of its own traffic, as from its scheduler, its neighbours, its workers and nodes
that it does not know; payloads come whole, of another size, or not at all.

No message may make a machine raise an error: in `handle` that would end its
process, in `arriving` and `problem_of` the net would catch it, which has to stay empty.
"""

import time
import traceback
from collections import Counter
from random import Random

import msgspec

from shoal.errors import BadMessage, ShoalError
from shoal.protocol.machine import Received, Send, Sink, Stop, Ticked
from shoal.protocol.messages.admin import DeathReport
from shoal.protocol.messages.base import SCHEDULER, Message
from shoal.protocol.messages.membership import (
    Abort,
    Declare,
    Drain,
    End,
    Finish,
    Freeze,
    Join,
    Joined,
    Leave,
    NewView,
    NotJoined,
    RefuseView,
)
from shoal.protocol.messages.replication import Replicate, StateChunk
from shoal.protocol.messages.requests import Request
from shoal.protocol.scheduler.machine import SchedulerMachine
from shoal.protocol.server.chains.validation import problem_of
from shoal.protocol.server.machine import ServerMachine
from shoal.simulation.node import SimNode
from shoal.simulation.scenario import Scenario
from shoal.simulation.workloads.all_reduce import RingScenario
from shoal.simulation.workloads.neighbours import NeighboursScenario
from shoal.transport.wire import decode
from tests.tools.mutations import Mutator

# Lawful messages of these types have an effect by design: they end the run or a member, add a table
# or a member, or stop a server until the scheduler goes on.
DOES_WHAT_IT_SAYS = (Abort, DeathReport, Declare, End, Finish, Joined, Leave, NewView, NotJoined)
SELDOM = (Freeze, RefuseView, Drain, Join)
WEIGHTS = {
    **{each.__name__: 0.2 for each in (*DOES_WHAT_IT_SAYS, *SELDOM)},
    "Request": 12.0,
    "Replicate": 12.0,
    "StateChunk": 5.0,
    "Reply": 4.0,
    "ReplicateAck": 3.0,
}
FRAMES_A_CLUSTER = 800
SCENARIOS = (Scenario, Scenario, Scenario, Scenario, RingScenario, NeighboursScenario)
SLOW_S = 0.5  # of an idle core, for one message
SIZES = (1, 7, 8, 64, 4096, 1 << 16, 1 << 33, (1 << 40) - 1)


class Cluster:
    """A simulated cluster at some moment, what it has said, and what is found wrong."""

    def __init__(self, seed: int, report: "Report") -> None:
        self.random = random = Random(seed)
        self.report = report
        self.mutator = Mutator(random)
        self.said: dict[tuple[str, str, str], list[Message]] = {}
        self.scenario = random.choice(SCENARIOS)(seed)
        world = self.scenario.world
        world.on_send = self._learn
        self.now = random.choice((0.3, 0.8, 1.2, 2.0))
        try:
            world.run(until=self.now, most_events=20_000)
        except ShoalError as error:  # of the simulator's own faults: another tool's business
            report.skipped[type(error).__name__] += 1
        living = [sim for sim in world.nodes.values() if sim.alive and not sim.stopped]
        self.sims = [sim for sim in living if not sim.node.startswith("engine")]
        self.senders = [*(sim.node for sim in self.sims), SCHEDULER, "nobody", "server-99"]

    def _learn(self, sim: SimNode, target: str, message: Message) -> None:
        if self.random.random() < 0.3:
            self.mutator.learn(message)
        said = self.said.setdefault((sim.node, target, type(message).__name__), [])
        said.append(message)
        del said[:-6]

    def attack(self, frames: int) -> None:
        """Send that many frames to its machines."""
        for _ in range(frames):
            if not self.sims:
                return
            sim, sender, header = self._frame()
            self.report.frames += 1
            try:
                message = decode(header)
            except BadMessage:
                self.report.counted["refused when decoded"] += 1
                continue
            exempt = self._is_exempt(message) or self._diverges(sim, sender, message)
            if sender == sim.node or exempt:
                self.report.counted["exempt"] += 1
                continue
            began = time.perf_counter()
            try:
                self._deliver(sim, sender, message)
                if self.random.random() < 0.01:
                    self._tick(sim)
            except Exception as error:
                self.report.found("handle", sim, sender, message, error)
                self.sims.remove(sim)
            took = time.perf_counter() - began
            self.report.slowest = max(self.report.slowest, (took, str(message)[:200]))
            if took > SLOW_S:
                slow = TimeoutError(f"{took:.1f} s")
                self.report.found("slow", sim, sender, message, slow)

    def _frame(self) -> tuple[SimNode, str, bytes]:
        """(whom, of whom, header): anything from anyone, or what a sender says, in its place."""
        random = self.random
        here = {sim.node: sim for sim in self.sims}
        said = [key for key in self.said if key[1] in here]
        if not said or random.random() < 0.3:
            return random.choice(self.sims), random.choice(self.senders), self.mutator.header()
        kinds = sorted({key[2] for key in said})
        kind = random.choices(kinds, [WEIGHTS.get(each, 1.0) for each in kinds])[0]
        source, target, _ = key = random.choice([key for key in said if key[2] == kind])
        message, sim = random.choice(self.said[key]), here[target]
        if random.random() < 0.8:
            message = self._brought_up(message, source, sim)
        sender = source if random.random() < 0.9 else random.choice(self.senders)
        return sim, sender, self.mutator.header(message)

    def _brought_up(self, message: Message, source: str, sim: SimNode) -> Message:
        """The message as its sender would say it now: of this view, and the next in order."""
        known, now, machine = message.__struct_fields__, {}, sim.machine
        if isinstance(machine, ServerMachine):
            if known[:1] == ("view",):
                now["view"] = machine.session.view_id
            if known[:2] == ("view", "number"):
                now["number"] = machine.chains.expected(source)
            log = machine.requests.admission.logs.get(source)
            if log is not None and "incarnation" in known:
                now["incarnation"] = log.incarnation
            if log is not None and isinstance(message, Request):
                highest = max((*log.outcomes, log.forget_below))
                now["seq"] = highest + self.random.choice((0, 1, 1, 1, 2))
                now["forget_below"] = log.forget_below + self.random.choice((0, 0, 0, 1))
                now["follows"] = ()
            if isinstance(message, Replicate) and message.what != "check":
                found = machine.chains._found(source, _in_view(message, now)) or ()
                now["versions"] = tuple(replica.version + 1 for replica in found)
        elif isinstance(machine, SchedulerMachine) and "incarnation" in known:
            member = machine.members.by_id.get(source)
            now["incarnation"] = member.incarnation if member is not None else 1
        return msgspec.structs.replace(message, **now)

    def _is_exempt(self, message: Message) -> bool:
        if isinstance(message, SELDOM):
            return self.random.random() > 0.02
        return isinstance(message, DOES_WHAT_IT_SAYS)

    def _diverges(self, sim: SimNode, sender: str, message: Message) -> bool:
        """Whether the server before a server says that it has other versions: then that one stops,
        as it is to be started and synced again."""
        if not isinstance(message, Replicate) or not isinstance(sim.machine, ServerMachine):
            return False
        chains = sim.machine.chains
        found = chains._found(sender, message)
        if found is None or len(found) != len(message.versions) or message.what == "check":
            return False
        late = message.number != chains.expected(sender)
        return late or any(v > r.version + 1 for r, v in zip(found, message.versions, strict=True))

    def _deliver(self, sim: SimNode, sender: str, message: Message) -> None:
        """What `Node` does with a frame."""
        machine, sink, nbytes = sim.machine, None, self._size(sim, message)
        if nbytes:
            try:
                arrival = machine.arriving(sender, message, nbytes)
            except Exception as error:
                self.report.found("net", sim, sender, message, error)
                return
            if isinstance(arrival, Sink):
                if nbytes > 1 << 28 or self.random.random() < 0.1:
                    self.report.counted["payload that never came"] += 1
                    return
                sink = arrival
        if sink is not None and sink.by_view:
            for view in list(sink.views):
                self._fill(view)
                sink.landed += 1
                self._handle(sim, Received(sender, message, sink))
            return
        if sink is not None:
            for view in sink.views:
                self._fill(view)
        self._handle(sim, Received(sender, message, sink))

    def _size(self, sim: SimNode, message: Message) -> int:
        random = self.random
        if random.random() < 0.1:
            return random.choice(SIZES)
        if isinstance(message, Request) and isinstance(sim.machine, ServerMachine):
            footprint = sim.machine.requests.admission.footprint(message)
            return footprint.nbytes if footprint is not None else random.choice((0, 64))
        between = isinstance(message, Replicate | StateChunk) and message.parts
        if between and isinstance(sim.machine, ServerMachine):
            return self._size_of_parts(sim.machine, message)
        return 0 if random.random() < 0.5 else random.choice((8, 64))

    def _size_of_parts(self, machine: ServerMachine, message: Replicate | StateChunk) -> int:
        """The bytes that a message between servers needs, if the machine would take it."""
        chains = machine.chains
        for sender in self.senders:
            found = chains._found(sender, message)
            if found and not problem_of(message, found, message.number):
                room = machine.replication._replayer.stage(message)
                if max(part.keys for part in message.parts) > 1 << 22:
                    break
                loads = [
                    room(replica, part) for replica, part in zip(found, message.parts, strict=True)
                ]
                return sum(view.nbytes for load in loads for view in load.views)
        return 64

    def _fill(self, view: memoryview) -> None:
        random = self.random
        if view.nbytes > 1 << 20:
            return
        if random.random() < 0.5:  # small numbers: keys and counts
            data = b"".join(
                random.choice((0, 1, 5, 9, 100, 4095)).to_bytes(8, "little")
                for _ in range(-(-view.nbytes // 8))
            )
        else:
            data = random.randbytes(view.nbytes)
        view.cast("B")[:] = data[: view.nbytes]

    def _handle(self, sim: SimNode, received: Received) -> None:
        try:
            problem = sim.machine.problem_of(received)
        except Exception as error:
            self.report.found("net", sim, received.sender, received.message, error)
            return
        if problem:
            self.report.counted["refused when looked at"] += 1
            return
        self.report.counted["handled"] += 1
        self._perform(sim, received, sim.machine.handle(received, self.now))

    def _tick(self, sim: SimNode) -> None:
        self.now += 0.001
        self._perform(sim, None, sim.machine.handle(Ticked(), self.now))

    def _perform(self, sim: SimNode, received: Received | None, effects: list) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                for buffer in effect.buffers:
                    self.report.answered += buffer.nbytes
            if isinstance(effect, Stop) and received is not None:
                error = effect.error or ShoalError("it stopped")
                self.report.found("stop", sim, received.sender, received.message, error)
                self.sims.remove(sim)
                return


def _in_view(message: Replicate, now: dict[str, object]) -> Replicate:
    return msgspec.structs.replace(message, view=now["view"])


class Report(msgspec.Struct):
    """What was sent, what became of it, and what was found wrong (by place, with an example)."""

    frames: int = 0
    answered: int = 0
    slowest: tuple[float, str] = (0.0, "")  # seconds, and of which message
    counted: Counter = msgspec.field(default_factory=Counter)
    skipped: Counter = msgspec.field(default_factory=Counter)
    problems: dict[str, str] = {}
    times: Counter = msgspec.field(default_factory=Counter)

    def found(
        self, how: str, sim: SimNode, sender: str, message: Message, error: Exception
    ) -> None:
        """Count a problem by the place where it was raised."""
        frame = traceback.extract_tb(error.__traceback__)[-1:] or [None]
        at = f"{frame[0].filename.split('/src/')[-1]}:{frame[0].lineno}" if frame[0] else ""
        role = type(sim.machine).__name__
        key = f"{how} {role} {type(message).__name__} {type(error).__name__} {at}"
        self.times[key] += 1
        if key not in self.problems:
            text = "".join(traceback.format_exception(error))
            self.problems[key] = f"from {sender} to {sim.node}: {str(message)[:600]}\n{text}"


def fuzz(frames: int, seed: int = 0) -> Report:
    """Send that many frames to machines of one cluster after the other."""
    report = Report()
    while report.frames < frames:
        cluster = Cluster(seed, report)
        cluster.attack(min(FRAMES_A_CLUSTER, frames - report.frames))
        seed += 1
    return report
