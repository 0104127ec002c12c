"""The fast path: the same effects and the same state as without it, and every condition needed."""

import inspect
import textwrap
from math import inf
from random import Random
from types import FunctionType
from unittest.mock import patch

import numpy as np
import pytest
import torch
from msgspec import Struct, structs

from shoal.errors import AccessFailed
from shoal.keys import KeyRange
from shoal.protocol.machine import (
    HasRoom,
    Offload,
    Offloaded,
    Received,
    Send,
    Sink,
    Ticked,
)
from shoal.protocol.messages.base import SCHEDULER, Message, Part
from shoal.protocol.messages.membership import Drain, Freeze, NewView
from shoal.protocol.messages.requests import Request
from shoal.protocol.server.machine import ServerMachine
from shoal.protocol.server.replication.transfer import Transfer
from shoal.protocol.server.requests.fast_path import FastPath
from shoal.protocol.server.requests.requests import RequestOptions
from shoal.protocol.server.state.replica import AppliedPart
from shoal.protocol.server.state.request_log import RequestLog
from shoal.protocol.session import Session
from shoal.protocol.views import View
from shoal.tables.consistency import Quorum, asp, bsp, ssp
from shoal.tables.dense.shard import DenseShard
from shoal.tables.opening import open_shard
from shoal.tables.spec import Access, TableSpec

SEEDS, EVENTS = (115, 191, *range(60)), 60  # the first ones have rare events
WORKERS = 3
ROWS = 8
NOT_COMPARED = {
    "_moved", "_wakes_at", "taken",  # how a server knows its deadline, which is compared
    "_senders", "_sender", "_seq", "handled", "_coroutine",  # of the last handler that might wait
}  # fmt: skip


# ---------------------------------------------------------------------------- what is compared


def seen(value, known):
    """A value as plain data: all that can be reached from it, each object once."""
    if isinstance(value, str | bytes | int | float | bool | type(None) | type):
        return value
    if isinstance(value, Message | View | TableSpec | KeyRange | Part):
        return value
    if isinstance(value, torch.Tensor | np.ndarray | memoryview | bytearray):
        return bytes(np.asarray(value).tobytes())
    if isinstance(value, FunctionType) or callable(value):
        return type(value).__name__
    if not is_value(value):
        if id(value) in known:
            return ("again", known[id(value)][0])
        known[id(value)] = len(known), value  # kept, so that its id is nobody else's
    if isinstance(value, dict):
        return {repr(seen(key, known)): seen(each, known) for key, each in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(repr(seen(each, known)) for each in value)
    if hasattr(value, "__iter__") and not isinstance(value, Struct):
        named = hasattr(value, "__dict__") or hasattr(type(value), "__slots__")
        if not named or isinstance(value, tuple | list):
            return [seen(each, known) for each in value] if hasattr(value, "__len__") else ""
    fields = {**getattr(value, "__dict__", {})}
    for cls in type(value).__mro__:
        names = getattr(cls, "__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            if hasattr(value, name):
                fields[name] = getattr(value, name)
    for name in structs.fields(value) if isinstance(value, Struct) else ():
        fields[name.name] = getattr(value, name.name)
    return type(value).__name__, {
        name: seen(each, known) for name, each in fields.items() if name not in NOT_COMPARED
    }


def is_value(value):
    """Whether it does not matter if two fields have one object, or two that are equal."""
    frozen = isinstance(value, Struct) and value.__struct_config__.frozen
    return frozen or isinstance(value, tuple | frozenset)


def difference(ours, theirs, path="machine"):
    """Where two states differ first, for the message of a failure."""
    if type(ours) is not type(theirs) or not isinstance(ours, dict | list | tuple):
        return "" if ours == theirs else f"{path}: {ours!r} and {theirs!r}"[:300]
    keys = range(max(len(ours), len(theirs)))
    if isinstance(ours, dict):
        keys = [*ours, *(key for key in theirs if key not in ours)]
    for key in keys:
        try:
            found = difference(ours[key], theirs[key], f"{path}.{key}")
        except (KeyError, IndexError):
            found = f"{path}.{key} is on one side"
        if found:
            return found
    return ""


def shown(effect):
    """An effect with the bytes that it lends."""
    if isinstance(effect, Send):
        return effect.to, effect.message, [bytes(each) for each in effect.buffers]
    return ("Offload", effect.ticket) if isinstance(effect, Offload) else seen(effect, {})


class Side:
    """A server, and what its shell has: answers that are not sent, and work that is under way."""

    def __init__(self, options):
        self.machine = ServerMachine(Session("server-0", "server"), open_shard, requests=options)
        self.unsent, self.works, self.sinks = [], [], {}

    def handle(self, event, now):
        effects = self.machine.handle(event, now)
        found = [shown(each) for each in effects]
        for effect in effects:
            if isinstance(effect, Offload):
                self.works.append(effect)
            elif isinstance(effect, Send) and effect.buffers:
                self.lend(effect)
        self.machine.check()
        return found, self.machine.deadline()

    def lend(self, effect):
        """Keep an answer unsent, as a full socket does: copied when its rows are recalled."""
        held = [list(effect.buffers)]
        self.unsent.append(held)
        if effect.guard is not None:
            effect.guard.keep(lambda: held.append([bytes(each) for each in held[-1]]))

    def sent(self):
        """Send what is unsent; returns its bytes."""
        found = [[bytes(each) for each in held[-1]] for held in self.unsent]
        self.unsent.clear()
        self.machine.requests.staging.guard.borrowers.clear()
        return found

    def arrive(self, at, sender, request, payload):
        sink = self.machine.arriving(sender, request, len(payload))
        if isinstance(sink, Sink):
            sink.fill(memoryview(payload))
            self.sinks[at] = sink
        return type(sink).__name__

    def state(self):
        return seen(self.machine, {})


# ---------------------------------------------------------------------------- what happens


class Course:
    """Random events for servers with the fast path and without it."""

    def __init__(self, seed, rigs):
        random = self.random = Random(seed)
        self.rigs, self.now, self.number = rigs, 0.0, 1
        self.calm = random.random() < 0.5  # no request waits for another worker, or for a view
        rule = random.choice([asp(), bsp(), ssp(1), bsp(closes=Quorum(2, 0.5))])
        common = {"access": Access("sum"), "merge": "sum", "fragment_rows": ROWS}
        self.tables = (
            TableSpec("free", ROWS, **common),
            TableSpec("ruled", ROWS, consistency=rule, **common),
        )
        options = RequestOptions(
            unread_bytes=random.choice([1 << 20, 1 << 20, 100]),
            long_bytes=random.choice([inf, inf, 32, 40]),
        )
        self.saves = random.random() < 0.2
        self.sides = [Side(options) for _ in range(2)]
        self.seqs, self.clocks = [0] * WORKERS, [0] * WORKERS
        self.said, self.arrived = [], []
        self.taken = 0
        self.both(Received(SCHEDULER, NewView(self.view())))

    def view(self):
        clocks = (min(self.clocks),) if self.saves and min(self.clocks) else ()
        return self.rigs.view_of(
            self.number, workers=WORKERS, tables=self.tables, checkpoint_clocks=clocks
        )

    def step(self):
        kinds = {
            self.ask: 12,
            self.end: 4,
            self.again: 2,
            self.send: 2,
            self.work: 3,
            self.tick: 2,
            self.room: 1,
            self.adopt: 0.5,
            self.move: 0.5,
            self.close: 0 if self.calm else 0.5,
            self.drain: 0 if self.calm else 0.3,
            self.freeze: 0 if self.calm else 0.3,
        }
        self.now += self.random.choice([0, 0, 0.3])
        self.random.choices(list(kinds), list(kinds.values()))[0]()

    def compare(self):
        assert not difference(*(side.state() for side in self.sides))

    def both(self, *events):
        """One event for each side, or the same for both: the same effects and deadline."""
        events = events * 2 if len(events) == 1 else events
        found = []
        for index, (side, event) in enumerate(zip(self.sides, events, strict=True)):
            with without() if index else counted(self):
                found.append(side.handle(event, self.now))
        assert found[0] == found[1]

    def ask(self):
        random = self.random
        rank = random.randrange(WORKERS)
        table = 0 if self.calm else random.choice([0, 1])
        part = Part(table, 0, ROWS) if random.random() < 0.8 else Part(table, 0, 4)
        pushes = (part,) * random.choice([0, 1, 1, 1, 1, 1, 2])
        pulls = (part,) * random.choice([0, 0, 1, 1, 1, 2])
        if table and random.random() < 0.7:
            pulls = ()  # a pull that waits keeps other requests from the fast path
        advances = not (pushes or pulls) or random.random() < 0.4
        self.say(
            rank,
            pushes,
            pulls,
            self.clocks[rank] + 1 if advances else -1,
            rates=(random.choice([None, 0.5]),) * len(pushes) if random.random() < 0.2 else (),
            assign=bool(pushes) and random.random() < 0.1,
            follows=(self.seqs[rank] - 1,) if self.seqs[rank] and random.random() < 0.2 else (),
        )

    def say(self, rank, pushes, pulls=(), advance=-1, **more):
        random, seq, clock = self.random, self.seqs[rank], self.clocks[rank]
        self.seqs[rank] += 1
        self.clocks[rank] = max(clock, advance)
        view = 1, self.number - (random.random() < 0.03)
        below = random.choice([0, seq, max(0, seq - 3)])
        request = Request(view, 11 + rank, seq, below, clock, pushes, advance, pulls, **more)
        values = [random.randrange(9) for _ in range(sum(p.stop - p.start for p in pushes))]
        payload = np.array(values, np.float32).tobytes()
        self.said.append((rank, request, payload))
        self.begin(rank, request, payload)

    def close(self):
        """All workers push to a round, and end it with requests for the other table."""
        for rank in range(WORKERS):
            self.say(rank, (Part(1, 0, ROWS),))
        last = max(self.clocks) + 1
        for rank in range(WORKERS):
            self.say(rank, (Part(0, 0, 4),), advance=last)

    def begin(self, rank, request, payload):
        """A request arrives; its payload may be whole later, after other events."""
        if payload:
            at = len(self.arrived)
            found = [side.arrive(at, f"worker-{rank}", request, payload) for side in self.sides]
            assert found[0] == found[1]
            self.arrived.append((rank, request))
            if self.random.random() < 0.7:
                self.end(at)
        else:
            self.both(Received(f"worker-{rank}", request))

    def end(self, at=None):
        waiting = [i for i, each in enumerate(self.arrived) if each is not None]
        if not waiting:
            return
        at = self.random.choice(waiting) if at is None else at
        rank, request = self.arrived[at]
        self.arrived[at] = None
        if self.random.random() < 0.05:
            for side in self.sides:
                if at in side.sinks:
                    side.sinks[at].revoke()
        events = [Received(f"worker-{rank}", request, side.sinks.get(at)) for side in self.sides]
        self.both(*events)

    def again(self):
        if self.said:
            self.begin(*self.random.choice(self.said[-6:]))

    def send(self):
        assert self.sides[0].sent() == self.sides[1].sent()

    def work(self):
        if self.sides[0].works:
            works = [side.works.pop() for side in self.sides]
            self.both(*(Offloaded(each.ticket, each.work()) for each in works))

    def tick(self):
        self.now += self.random.choice([0.1, 0.4, 1.0])
        self.both(Ticked())

    def room(self):
        self.both(HasRoom(f"worker-{self.random.randrange(WORKERS)}"))

    def move(self):
        """Rows have come from another server, with parts of a push that is sent here next."""
        rank, chains = self.random.randrange(WORKERS), self.random.random() < 0.5
        for side in self.sides:
            log = side.machine.requests.admission.logs[f"worker-{rank}"]
            replica = side.machine.state.replicas[0]
            if chains:
                log.placements_changed()
            else:
                log.apply(self.seqs[rank], [AppliedPart(Part(0, 0, 4), replica, replica.version)])

    def drain(self):
        self.both(Received(SCHEDULER, Drain((1, self.number + 1), 2.0)))

    def freeze(self):
        self.both(Received(SCHEDULER, Freeze((1, self.number + 1))))

    def adopt(self):
        self.number += 1
        self.both(Received(SCHEDULER, NewView(self.view())))


class counted:
    """Count the requests that take the fast path."""

    def __init__(self, course):
        right = FastPath.carry_out

        def carry_out(self, received, out):
            taken = right(self, received, out)
            course.taken += taken
            return taken

        self.patch = patch.object(FastPath, "carry_out", carry_out)

    def __enter__(self):
        self.patch.start()

    def __exit__(self, *_):
        self.patch.stop()


def without():
    """Send all requests to the executor."""
    return patch.object(FastPath, "carry_out", lambda self, received, out: False)


def failing(right):
    """An access method that refuses some pushes, as a user's may."""

    def apply(self, staged, lr):
        if float(staged.values[0]) == 5:
            raise AccessFailed("a five")
        right(self, staged, lr)

    return apply


def run(seed, rigs):
    course = Course(seed, rigs)
    with patch.object(DenseShard, "apply", failing(DenseShard.apply)):
        for number in range(EVENTS):
            course.step()
            if number % 12 == 11:
                course.compare()
    return course.taken


def test_the_fast_path_has_the_effects_and_the_state_of_the_executor(rigs):
    taken = [run(seed, rigs) for seed in SEEDS]
    assert sum(taken) > 200
    assert sum(each > 0 for each in taken) > len(SEEDS) / 2


# ---------------------------------------------------------------------------- planted


def conditions():
    """The lines of `_recognised` that begin with `or`: each is a reason to take the other path."""
    lines = inspect.getsource(FastPath._recognised).splitlines()
    return [line.strip() for line in lines if line.strip().startswith("or ")]


def lacking(function, line):
    """A function without one of its lines."""
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(line) == 1
    made = {}
    source = source.replace(line, "" if line.startswith(("or ", "and ")) else "pass")
    exec(compile(source, "lacking", "exec"), function.__globals__, made)
    return made[function.__name__]


def caught(rigs):
    for seed in SEEDS:
        try:
            run(seed, rigs)
        except Exception:
            return True
    return False


@pytest.mark.parametrize("line", conditions())
def test_no_condition_of_the_fast_path_can_be_left_out(rigs, line):
    with patch.object(FastPath, "_recognised", lacking(FastPath._recognised, line)):
        assert caught(rigs)


@pytest.mark.parametrize(
    ("owner", "name", "line"),
    [
        (ServerMachine, "handle", "and not self._interim.kept"),  # a kept message is overtaken
        (FastPath, "carry_out", "self._guard.recall()"),  # rows are lent and not recalled
        (FastPath, "carry_out", "log.finish(request.seq, parts)"),
        (RequestLog, "finish", "self.parts[seq] = [*parts]"),  # a part is not recorded
        (FastPath, "carry_out", "log.refuse(request.seq, replica.number)"),
        (FastPath, "carry_out", "self._executor.forget(log, request.forget_below)"),
        (FastPath, "carry_out", "log.forget(request.forget_below)"),
        (FastPath, "_answer", "self._wait_queue.answered(admitted.sender, nbytes, out)"),
    ],
)
def test_no_step_of_the_fast_path_can_be_left_out(rigs, owner, name, line):
    with patch.object(owner, name, lacking(getattr(owner, name), line)):
        assert caught(rigs)


def test_rows_that_move_keep_requests_from_the_fast_path(rigs, monkeypatch):
    """The executor's way sends their next chunk after each request."""
    server, part = rigs.ServerRig(rigs.table()), Part(0, 0, 4)
    taken = []
    monkeypatch.setattr(FastPath, "carry_out", lambda *_: taken.append(1))
    assert server.ask(0, 0, rigs.as_bytes(1, 2, 3, 4), pushes=(part,)) == ["applied"]
    assert taken == [1]
    sending = server.machine.replication.state_transfer.sending
    sending[0] = Transfer(server.machine.state.replicas[0], 1, ended=True)
    assert server.ask(0, 1, rigs.as_bytes(1, 2, 3, 4), pushes=(part,)) == ["applied"]
    assert taken == [1]
