"""The programs of simulated workers, whose results can be checked.

Table `ledger` has a key for each push, which adds 1 to it; in some seeds the table is sparse. A
push to table `stamp` adds one number to every element, so that a torn or half-applied push shows.
With simple requests there is nothing else, and each request pushes or pulls one table.
Some seeds also have a custom table (workloads.custom), a bounded table (workloads.bounded), whole
states that are assigned (workloads.state), leased batches (workloads.leases) or a table with a
codec of pushes (workloads.encoded) or of pulls (workloads.pulled), or one whose lists of keys are
kept (workloads.listed). Half of them have a table with optimizer state (workloads.optimizer).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from random import Random
from typing import Any

import msgspec
import numpy as np

from shoal.keys import KeyRange
from shoal.protocol.machine import Outcome
from shoal.protocol.requests import (
    AwaitView,
    Cancel,
    DeclareTable,
    EnterBarrier,
    Exchange,
    FinishWork,
    PullOp,
    PushOp,
    Start,
    Wait,
)
from shoal.protocol.views import NodeId
from shoal.protocol.worker.machine import WorkerMachine
from shoal.simulation.checkers.history import Ledger, check_canary, check_not_refused, check_untorn
from shoal.simulation.node import Program, Sleep
from shoal.simulation.plan import GUESTS, STAMP_FRAGMENT, STAMP_ROWS, Plan
from shoal.simulation.workloads.bounded import BoundedWorkload
from shoal.simulation.workloads.checkpoints import CheckpointWorkload
from shoal.simulation.workloads.custom import Calls
from shoal.simulation.workloads.encoded import PACKED, EncodedWorkload
from shoal.simulation.workloads.extras import NO_EXTRAS, Extras
from shoal.simulation.workloads.leases import LeaseWorkload
from shoal.simulation.workloads.listed import ListedWorkload
from shoal.simulation.workloads.optimizer import OptimizerWorkload
from shoal.simulation.workloads.pulled import AGAIN, PulledWorkload
from shoal.simulation.workloads.scans import SCANS, scanned
from shoal.simulation.workloads.state import StateWorkload
from shoal.simulation.world import World
from shoal.tables.spec import Access, TableSpec

CANARY = -7.0
SPOILED = b"\xa5"  # the bytes of buffers after their request is resolved
SPARSE, CUSTOM, OPTIMIZED, ASSIGNED, ENCODED = 0.25, 0.25, 0.5, 0.3, 0.2  # of the seeds
PULLED, LISTED = 0.2, 0.2  # of the seeds
CANCELS_OFTEN = 0.25  # of the seeds
SPARSE_WIDTH = 3
PUSHED_MOST, PULLED_MOST = 110, 210  # keys of a sparse ledger: links have bounded bytes
TIMEOUT_S = 0.3  # of some requests
STYLES = ("together", "apart", "overlapped", "after", "push and pull", "two pushes")
STREAMED = 0.4  # share of the clocks in which a whole push goes alone, to be applied as it comes in


class Workload:
    """The programs of a group's workers, and the record of their pushes and reads.

    host:  the first group's workload, if another group also reads its tables
    """

    def __init__(self, world: World, plan: Plan, host: Workload | None = None) -> None:
        rule, draws = plan.consistency, world.draws
        group = self._group = "" if host is None else GUESTS
        self.clocks = plan.clocks
        self.keys = plan.incarnations * plan.clocks
        self.ledger = Ledger(rule, plan.clocks, plan.incarnations)
        self.done: dict[NodeId, None] = {}
        self._simple, more = plan.simple, not plan.simple
        self.sparse = more and draws.happens(("sparse", group), SPARSE)
        self.calls = Calls() if more and draws.happens(("custom", group), CUSTOM) else None
        bounded = draws["bounded table", group]
        self.bounded = BoundedWorkload(rule, bounded) if plan.bounded else None
        self.leased = LeaseWorkload(rule) if plan.leased else None
        self.checkpoints = CheckpointWorkload(draws)
        optimized = more and draws.happens(("optimized", group), OPTIMIZED)
        model = draws["optimizer table", group]
        self.optimizer = OptimizerWorkload(rule, model) if optimized else None
        assigned = more and draws.happens(("assigned", group), ASSIGNED)
        self.state = StateWorkload(rule, lambda: world.now) if assigned else None
        encoded = more and draws.happens(("encoded", group), ENCODED)
        packed = encoded and draws.happens(("packed", group), PACKED)
        self.encoded = EncodedWorkload(rule, packed) if encoded else None
        pulled = more and draws.happens(("pulled", group), PULLED)
        self.pulled = PulledWorkload(rule) if pulled else None
        listed = more and draws.happens(("listed", group), LISTED)
        lists = draws["lists", group]
        self.listed = ListedWorkload(rule, lists) if listed else None
        often = draws.happens(("cancels often", group), CANCELS_OFTEN)
        self._cancels = 0.4 if often else 0.1  # share of pulls that are cancelled
        self._styles = STYLES if rule.closes is None else [s for s in STYLES if s != "two pushes"]
        self._width = SPARSE_WIDTH if self.sparse else 1
        self._world = world
        self.may_end: Callable[[], bool] = lambda: True
        self._given_up: dict[NodeId, list[np.ndarray]] = {}  # buffers whose pull has failed
        self._pushing: dict[NodeId, tuple[int, Extras]] = {}  # requests whose outcome is not read
        self._host = host

    def tables(self) -> list[TableSpec]:
        rows, rule = self.keys, self.ledger.consistency
        common: dict[str, Any] = {"access": Access("sum"), "consistency": rule, "merge": "sum"}
        ledger = TableSpec("ledger", rows, fragment_rows=rows // 6, **common)
        stamp = TableSpec("stamp", STAMP_ROWS, fragment_rows=STAMP_FRAGMENT, **common)
        if self.sparse:
            ledger = TableSpec("ledger", 0, (SPARSE_WIDTH,), kind="sparse", **common)
        if self._simple:  # one fragment: a push of several is streamed
            ledger = TableSpec("ledger", rows, fragment_rows=rows, **common)
            stamp = TableSpec("stamp", STAMP_ROWS, fragment_rows=STAMP_ROWS, **common)
        others = (
            *(self.calls, self.bounded, self.leased, self.optimizer, self.state),
            *(self.encoded, self.pulled, self.listed),
        )
        return [ledger, stamp, *(each.spec for each in others if each is not None)]

    def crashed(self, node: NodeId) -> None:
        """Record the outcome of a push that a crashed worker's program had not looked at."""
        ticket, extras = self._pushing.pop(node, (0, NO_EXTRAS))
        outcome = self._world.nodes[node].outcomes.get(ticket)
        if outcome is not None:
            extras.pushed(outcome)

    def check_buffers(self, node: NodeId) -> None:
        """Check that no rows have arrived in buffers of pulls that were abandoned."""
        for buffer in self._given_up.get(node, ()):
            check_canary(buffer, CANARY)

    # ------------------------------------------------------------------ programs

    def program(self, node: NodeId, machine: WorkerMachine) -> Program:
        """Run one worker from its first view to the end."""
        session = machine.session
        first = (AwaitView(), *map(DeclareTable, self.tables()), EnterBarrier("start"))
        for request in first:
            outcome = yield request
            if outcome.error is not None:
                return
        if machine.clock > 0:
            self._world.coverage["join during training"] += 1
        random = self._world.draws["worker", self._group, session.incarnation]
        clock = self._simple_clock if self._simple else self._clock
        while machine.clock < self.clocks and not session.ended:
            yield from clock(node, machine, random)
            if self.state is not None and not session.ended:
                yield from self.state.visit(random)
            if self.sparse and not session.ended and random.random() < SCANS:
                yield from scanned(self.ledger, machine, self.keys, random)
            if self._host is None and not session.ended:
                yield from self.checkpoints.ask(machine)
            if self._host is not None and not session.ended and random.random() < 0.5:
                yield from self._host.visit(machine, random)
            yield Sleep(random.choice([0.0, 0.01, 0.05, 0.3]) * random.random())
        while not session.ended:
            outcome = yield Exchange(advance=True, last=True)
            if outcome.error is None:
                break
        if self.leased is not None:
            self.leased.leave(session.incarnation)
        while not session.ended and not self.may_end():
            yield Sleep(0.1)
        if not session.ended and (self.leased is None or not self.leased.patient):
            yield EnterBarrier("end")  # others may wait for batches leased by this worker
        if not session.ended:
            yield FinishWork()
        self.done[node] = None

    def _clock(self, node: NodeId, machine: WorkerMachine, random: Random) -> Program:
        """Do one clock: push to both tables, advance and read them back, in a random style."""
        clock, incarnation = machine.clock, machine.session.incarnation
        key = self.ledger.key(incarnation, clock)
        self.ledger.intended[key] = clock
        style = random.choice(self._styles)
        whole = random.random() < 0.5
        if self.ledger.consistency.apply_at == "arrival" and random.random() < STREAMED:
            style, whole = "two pushes", True
        pushes = self._pushes(key, clock, whole)
        keys = self._some_keys(random) if random.random() < 0.3 else self._all_keys(random)
        if pushes[0].keys is not None and random.random() < 0.3:
            keys = pushes[0].keys  # sent once
        ledger, stamp, pulls = self._pulls(keys)
        extras = yield from self._extras(node, machine, key, random)
        pushes, pulls = (*pushes, *extras.pushes), (*pulls, *extras.pulls)
        how = {"timeout_s": random.choice([None, None, None, TIMEOUT_S]), **extras.how}
        if style != "push and pull":
            yield from self._call(machine, key, random)
        if style == "together":
            outcome = yield Exchange(pushes, advance=True, pulls=pulls, **how)
            self._pushed(key, outcome, extras)
            read_at = machine.clock
        elif style == "push and pull":
            read_at = clock
            ticket = yield Start(Exchange(pushes, pulls=pulls, **how))
            self._pushing[node] = ticket, extras
            yield from self._call(machine, key, random)  # while an earlier request is under way
            advanced = yield Start(Exchange(advance=True))
            outcome = yield Wait(ticket)
            self._pushed(key, outcome, extras)
            yield Wait(advanced)
        else:
            others = 0
            if style == "two pushes":
                if self.optimizer is not None:
                    self.optimizer.split(clock)
                ticket = yield Start(Exchange(pushes[:1]))
                others = yield Start(Exchange(pushes[1:], **how))
            else:
                ticket = yield Start(Exchange(pushes, **how))
            self._pushing[node] = others or ticket, extras
            if style in ("apart", "two pushes"):
                advanced = yield Start(Exchange((), True, pulls, timeout_s=how["timeout_s"]))
                read_at = machine.clock  # the round of its push may have closed before
                yield from self._perhaps_cancel(advanced, random)
                outcome = yield Wait(advanced)
                pushed = yield Wait(ticket)
                self._pushed(key, pushed, NO_EXTRAS if others else extras)
                if others:
                    extras.pushed((yield Wait(others)))
            else:
                advanced = yield Start(Exchange(advance=True))
                after = (ticket, advanced) if style == "after" else ()
                pulled = yield Start(Exchange((), False, pulls, after, how["timeout_s"]))
                read_at = machine.clock
                yield from self._perhaps_cancel(pulled, random)
                outcome = yield Wait(pulled)
                self._pushed(key, (yield Wait(ticket)), extras)
                yield Wait(advanced)
        self._pushing.pop(node, None)
        _spoil(pushes)
        if machine.session.ended:
            return
        if outcome.error is not None:
            self._give_up(node, outcome, (ledger, stamp))
            if random.random() < 0.5:
                yield from self._insist(machine, random)
            return
        self._check_read(machine, read_at, ledger, stamp, keys)
        extras.read(read_at, outcome, style == "push and pull")

    def _simple_clock(self, node: NodeId, machine: WorkerMachine, random: Random) -> Program:
        """Do one clock with requests that push or pull one table, some of them under way at once.

        One table is pushed and pulled by the same request.
        """
        clock, incarnation = machine.clock, machine.session.incarnation
        key = self.ledger.key(incarnation, clock)
        self.ledger.intended[key] = clock
        one, stamp_push = pushes = self._pushes(key, clock, whole=True)
        ledger, stamp, (of_ledger, of_stamp) = self._pulls(None)
        timeout_s = random.choice([None, None, None, TIMEOUT_S])
        ticket = yield Start(Exchange((one,), timeout_s=timeout_s))
        self._pushing[node] = ticket, NO_EXTRAS
        if random.random() < 0.5:
            self._pushed(key, (yield Wait(ticket)), NO_EXTRAS)
            self._pushing.pop(node)
        stamped = yield Start(Exchange((stamp_push,), True, (of_stamp,)))
        read_at = machine.clock
        pulled = yield Start(Exchange(pulls=(of_ledger,), timeout_s=timeout_s))
        yield from self._perhaps_cancel(pulled, random)
        outcome = yield Wait(pulled)
        others = yield Wait(stamped)
        if node in self._pushing:
            self._pushed(key, (yield Wait(ticket)), NO_EXTRAS)
            self._pushing.pop(node)
        _spoil(pushes)
        if machine.session.ended:
            return
        if outcome.error is not None or others.error is not None:
            self._give_up(node, outcome if outcome.error is not None else others, (ledger, stamp))
            return
        self._check_read(machine, read_at, ledger, stamp, None)

    def visit(self, machine: WorkerMachine, random: Random) -> Program:
        """Read this group's tables from a worker of another group, without waiting for clocks.

        `freshness`: pushes that were acknowledged before are there. Under `asp` it also pushes.
        """
        if machine.number_of("/ledger") is None:
            return  # not declared yet
        incarnation, rule = machine.session.incarnation, self.ledger.consistency
        pushes: tuple[PushOp, ...] = ()
        key = self.ledger.key(incarnation, machine.clock % self.clocks)
        if rule.name == "asp" and key not in self.ledger.intended:
            self.ledger.intended[key] = machine.clock
            pushes = self._pushes(key, machine.clock, whole=False)
            pushes = (PushOp("/ledger", *msgspec.structs.astuple(pushes[0])[1:]),)
        known = set(self.ledger.acknowledged)
        keys = self._some_keys(random) if random.random() < 0.7 else self._all_keys(random)
        rows = self._ledger_buffer(keys)
        pulls = [PullOp("/ledger", self.tables()[0].keys, rows.view(np.uint8).data, keys)]
        stamp = np.full(STAMP_ROWS, CANARY, np.float32)
        if keys is not None and random.random() < 0.5:  # also of its own table, which may wait
            pulls.append(PullOp("stamp", KeyRange(0, STAMP_ROWS), stamp.view(np.uint8).data))
        outcome = yield Exchange(pushes, pulls=tuple(pulls))
        if pushes:
            (self.ledger.failed if outcome.error else self.ledger.acknowledged).add(key)
        if outcome.error is not None:
            check_not_refused(outcome)
            return
        check_untorn(rows, self._width)
        named = np.arange(self.keys) if keys is None else np.asarray(keys)
        values = rows[:: self._width].tolist()
        self.ledger.check_visit(dict(zip(named.tolist(), values, strict=True)), known)
        self._world.coverage["guest read"] += 1

    def _extras(
        self, node: NodeId, machine: WorkerMachine, key: int, random: Random
    ) -> Generator[Any, Any, Extras]:
        """Return the pushes and pulls of tables that only some seeds have."""
        extras = Extras()
        if (bounded := self.bounded) is not None:
            push, (pull, rows) = bounded.push(random), bounded.pull(random)
            extras.pushes.append(push)
            extras.pulls.append(pull)
            extras.readers.append(lambda *_: bounded.check_read(pull, rows))
        if (leased := self.leased) is not None:
            batch = yield from leased.push(machine)
            if batch is not None:
                extras.pushes.append(batch)
                extras.pushers.append(lambda outcome: leased.pushed(batch, outcome))
        if (encoded := self.encoded) is not None and (door := self._world.nodes[node].door):
            push, sent = encoded.push(door, random)
            extras.pushes.append(push)
            extras.pushers.append(lambda outcome: encoded.acknowledged(sent, outcome))
        if (listed := self.listed) is not None:
            by_list, by_list_sent = listed.push(random)
            of_list, listed_rows = listed.pull(by_list, random)
            extras.pushes.append(by_list)
            extras.pulls.append(of_list)
            named = np.asarray(of_list.keys).copy()
            extras.pushers.append(lambda outcome: listed.acknowledged(by_list_sent, outcome))
            extras.readers.append(lambda *_: listed.check_read(named, listed_rows))
        if self.pulled is not None:
            self._encoded_pulls(self.pulled, node, random, extras)
        if (optimizer := self.optimizer) is not None:
            push, how = optimizer.push(key, machine.session.rank, machine.clock, random)
            of_model, model = optimizer.pull()
            extras.pushes.append(push)
            extras.pulls.append(of_model)
            extras.how = {"weight": how.weight}
            extras.pushers.append(lambda outcome: optimizer.acknowledged(key, outcome))
            extras.readers.append(
                lambda at, got, more: optimizer.read(at, model, got.round_weight, more)
            )
        return extras

    def _encoded_pulls(
        self, pulled: PulledWorkload, node: NodeId, random: Random, extras: Extras
    ) -> None:
        """Add a push of the table whose rows are pulled encoded, and pulls of them."""
        sim = self._world.nodes[node]
        pulls, into = pulled.pulls(random)
        before = sim.notes[AGAIN]
        extras.pushes.append(pulled.push(random))
        extras.pulls += pulls
        extras.readers.append(
            lambda _, __, ahead: pulled.check(into, sim.notes[AGAIN] > before, ahead)
        )

    def _perhaps_cancel(self, ticket: int, random: Random) -> Program:
        if random.random() < self._cancels:
            yield Sleep(0.004 * random.random())
            yield Cancel(ticket)

    def _call(self, machine: WorkerMachine, key: int, random: Random) -> Program:
        if self.calls is not None:
            yield from self.calls.push(machine, key, random.choice([None, TIMEOUT_S]))

    def _give_up(self, node: NodeId, outcome: Outcome, buffers: Sequence[np.ndarray]) -> None:
        """Record a pull that has failed, and watch its buffers."""
        check_not_refused(outcome)
        self._world.coverage[f"failed {type(outcome.error).__name__}"] += 1
        for buffer in buffers:
            buffer.fill(CANARY)
            self._given_up.setdefault(node, []).append(buffer)

    def _insist(self, machine: WorkerMachine, random: Random) -> Program:
        """Repeat a read until it is answered."""
        while not machine.session.ended:
            keys = self._all_keys(random)
            ledger, stamp, pulls = self._pulls(keys)
            outcome = yield Exchange(pulls=pulls)
            check_not_refused(outcome)
            if outcome.error is None:
                self._world.coverage["insisted"] += 1
                return self._check_read(machine, machine.clock, ledger, stamp, keys)

    def _check_read(
        self,
        machine: WorkerMachine,
        read_at: int,
        ledger: np.ndarray,
        stamp: np.ndarray,
        keys: memoryview | None,
    ) -> None:
        check_untorn(ledger, self._width)
        ledger = ledger[:: self._width]
        if keys is not None:
            whole = np.full(self.keys, CANARY, np.float32)
            whole[np.asarray(keys)] = ledger
            ledger = whole
        self.ledger.check_read(machine.session.incarnation, read_at, ledger)
        check_untorn(stamp, STAMP_FRAGMENT)

    def _pulls(self, keys: memoryview | None) -> tuple[np.ndarray, np.ndarray, tuple[PullOp, ...]]:
        """Return buffers for rows of the ledger and for the stamp, and the pulls into them."""
        ledger, stamp = self._ledger_buffer(keys), np.full(STAMP_ROWS, CANARY, np.float32)
        of_ledger = PullOp("ledger", self.tables()[0].keys, ledger.view(np.uint8).data, keys)
        of_stamp = PullOp("stamp", KeyRange(0, STAMP_ROWS), stamp.view(np.uint8).data)
        return ledger, stamp, (of_ledger, of_stamp)

    def _pushed(self, key: int, outcome: Outcome, extras: Extras) -> None:
        extras.pushed(outcome)
        (self.ledger.failed if outcome.error else self.ledger.acknowledged).add(key)

    def _pushes(self, key: int, clock: int, whole: bool) -> tuple[PushOp, ...]:
        """Return a push of 1 to a key of the ledger, alone or with zeros, and one to the stamp."""
        keys = None
        if not whole:
            keys = self._named([key])
        elif self.sparse:
            others = sorted(self.ledger.intended)[-PUSHED_MOST:]
            keys = self._named([each for each in others if each != key] + [key])
        one = self._ledger_buffer(keys)
        one.fill(0)
        row = key if keys is None else keys.tolist().index(key)
        one[row * self._width : (row + 1) * self._width] = 1
        stamps = np.full(STAMP_ROWS, clock + 1, np.float32).view(np.uint8).data
        return (
            PushOp("ledger", self.tables()[0].keys, one.view(np.uint8).data, keys),
            PushOp("stamp", KeyRange(0, STAMP_ROWS), stamps),
        )

    def _ledger_buffer(self, keys: memoryview | None) -> np.ndarray:
        rows = self.keys if keys is None else len(keys)
        return np.full(rows * self._width, CANARY, np.float32)

    def _all_keys(self, random: Random) -> memoryview | None:
        """Return the keys that name the whole ledger (None), or most of a sparse one."""
        return self._some_keys(random, PULLED_MOST) if self.sparse else None

    def _some_keys(self, random: Random, most: int = 8) -> memoryview:
        known = list(self.ledger.intended)
        return self._named(random.sample(known, min(most, len(known))))

    def _named(self, keys: list[int]) -> memoryview:
        """Return keys as an operation names them: sorted, or in any order for a sparse table."""
        return (np.array(keys, np.uint64) if self.sparse else np.array(sorted(keys))).data


def _spoil(pushes: Sequence[PushOp]) -> None:
    """Write to the buffers of resolved pushes to ledger and stamp."""
    for push in pushes[:2]:
        push.values[:] = SPOILED * push.values.nbytes
