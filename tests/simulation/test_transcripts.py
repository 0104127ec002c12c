"""Conversations of small clusters that a person can read, compared line by line.

A file of tests/transcripts/ has a paragraph, the commands of its cluster, and what they lead to.
CONTRIBUTING.md explains the commands. `pytest --rewrite-transcripts` writes the last part anew;
explain each difference in the commit.
"""

import re
from functools import partial
from pathlib import Path
from random import Random

import numpy as np
import pytest
from msgspec.structs import replace

from shoal.keys import KeyRange
from shoal.protocol.messages.base import SCHEDULER
from shoal.protocol.messages.membership import Heartbeat, HeartbeatSeen
from shoal.protocol.requests import (
    AwaitView,
    DeclareTable,
    EnterBarrier,
    Exchange,
    FinishWork,
    PullOp,
    PushOp,
    Start,
)
from shoal.protocol.scheduler.machine import SchedulerMachine
from shoal.protocol.scheduler.options import SchedulerOptions
from shoal.protocol.server.machine import ServerMachine
from shoal.protocol.session import Session
from shoal.protocol.session_options import SessionOptions
from shoal.protocol.worker.machine import WorkerMachine
from shoal.protocol.worker.options import WorkerOptions
from shoal.simulation.draws import Draws
from shoal.simulation.network import NetworkOptions
from shoal.simulation.node import Sleep
from shoal.simulation.world import World
from shoal.tables.consistency import asp, bsp, ssp
from shoal.tables.dense.shard import DenseShard
from shoal.tables.spec import TableSpec

FOLDER = Path(__file__).parent.parent / "transcripts"
RULE = "-" * 40
QUIET = NetworkOptions(delay_s=0.001, jitter_s=0.0)
SESSION = SessionOptions(join_timeout_s=3.0, heartbeat_s=5.0, resend_s=1.0)
WORKER = WorkerOptions(probe_s=0.2)
ONES = np.ones(4, np.float32).view(np.uint8).data
VERBS = {  # with the words that may follow; None: a number or a name
    "push": {"advance", "unawaited"},
    "pull": {"timeout"},
    "look": set(),
    **dict.fromkeys(("sleep", "barrier", "overwrite")),
}
LOSS = {"times", "message", "with", "from", "to", "crash"}
RULES = {"asp": asp, "bsp": bsp, "ssp": ssp}


class Even(Draws):
    """Draws without chance: work takes half of its usual bound, whatever it is drawn for."""

    def __missing__(self, concern):
        self[concern] = made = Random(0)
        made.random = lambda: 0.5
        return made


class Story:
    """A cluster that does what the commands of a transcript say."""

    def __init__(self, commands: list[str]) -> None:
        self.world = World(Even(0), QUIET, keep_lines=True)
        self.world.drop = self._drops
        self._losses: list[dict[str, str]] = []
        programs: list[tuple[list[str], list[str]]] = []
        for line in commands:
            verb, *words = line.split()
            if line.startswith(" "):
                assert verb in VERBS, f"no command of a worker: {line}"
                if (known := VERBS[verb]) is not None:
                    assert {*words[verb == "pull" :: 1 + (verb == "pull")]} <= known, line
                programs[-1][1].append(line.strip())
            elif verb == "cluster":
                self._cluster(options_of(words))
            elif verb == "lose":
                loss = {"times": words[0], "message": words[1], **pairs_of(words[2:])}
                assert loss.keys() <= LOSS, f"lose first|each MESSAGE with|from|to|crash X: {line}"
                self._losses.append(loss)
            elif verb in ("crash", "restart"):
                self._at(float(pairs_of(words)["at"]), partial(getattr(self, verb), words[0]))
            else:
                assert verb.startswith(("worker-", "guest")), f"no command: {line}"
                programs.append((line.split(), []))
        for (name, *words), program in programs:
            start = pairs_of(words)
            assert start.keys() <= {"from", "group"}, f"from S, group NAME: {words}"
            self._at(float(start.get("from", 0)), partial(self._worker, name, start, program))

    def _at(self, when, what):
        if when:
            self.world.at(when, what)
        else:
            what()

    def _cluster(self, options):
        rule, _, bound = options.pop("rule", "asp").partition(":")
        consistency = RULES[rule](*[int(bound)] if bound else [])
        self.table = TableSpec("w", 4, merge="sum", fragment_rows=2, consistency=consistency)
        assert options.keys() <= {"servers", "workers", "elastic"}, f"no option: {options}"
        servers = int(options.pop("servers", 1))
        self.scheduler = SchedulerOptions(
            servers,
            int(options.pop("workers", 2)),
            elastic="elastic" in options,
            failure_timeout_s=12.0,
            broken_s=0.05,
            join_timeout_s=2.0,
        )
        self.world.add(SCHEDULER, SchedulerMachine(self.scheduler))
        for rank in range(servers):
            session = Session(f"server-{rank}", "server", rank=rank, options=SESSION)
            self.world.add(session.me, ServerMachine(session, DenseShard))

    def _worker(self, name, start, program):
        group = start.get("group", "")
        options = replace(SESSION, group=group, namespace=group)
        rank = int(name.rpartition("-")[2]) if "-" in name else 0
        session = Session(name, "worker", rank=rank, options=options)
        self.world.add(name, WorkerMachine(session, WORKER), self._program(name, program))

    def crash(self, node):
        self.world.crash(node, tell=node.startswith("worker"))

    def restart(self, node):
        disk = self.world.nodes[node].disk
        self.world.add(node, SchedulerMachine(self.scheduler, disk.record))

    def _drops(self, source, to, message):
        for loss in self._losses:
            fits = type(message).__name__ == loss["message"]
            fits = fits and source == loss.get("from", source) and to == loss.get("to", to)
            if fits and (not (what := loss.get("with")) or has(message, what)):
                if loss["times"] == "first":
                    self._losses.remove(loss)
                if victim := loss.get("crash"):
                    self.world.at(self.world.now + 0.01, partial(self.world.crash, victim))
                return True
        return False

    def _program(self, name, commands):
        outcome = yield AwaitView()
        if outcome.error is not None:
            return
        yield DeclareTable(self.table)
        buffer = np.full(4, -1, np.float32)
        for command in commands:
            verb, *words = command.split()
            if verb == "push":
                asked = Exchange((PushOp("w", KeyRange(0, 4), ONES),), advance="advance" in words)
                yield Start(asked) if "unawaited" in words else asked
            elif verb == "pull":
                given = pairs_of(words[1:])
                buffer = np.full(4, -1, np.float32)
                into = buffer.view(np.uint8).data
                timeout_s = float(given["timeout"]) if given else None
                pulls = (PullOp(words[0], KeyRange(0, 4), into),)
                outcome = yield Exchange(pulls=pulls, timeout_s=timeout_s)
                error = outcome.error
                told = f"hears: {error.message}" if error else f"reads {buffer.tolist()}"
                self.world.note_line(f"{name} {told}")
            elif verb == "sleep":
                yield Sleep(float(words[0]))
            elif verb == "barrier":
                yield EnterBarrier(" ".join(words))
            elif verb == "overwrite":
                buffer.fill(float(words[0]))
            else:  # look
                self.world.note_line(f"{name} has {buffer.tolist()}")
        yield Exchange(advance=True, last=True)
        yield FinishWork()


def has(message, field):
    """Whether a message has parts, or a positive number, in a field."""
    value = getattr(message, field)
    return value > 0 if isinstance(value, int) else bool(value)


def options_of(words):
    """`workers=1 elastic` as a dict."""
    return {name: value for name, _, value in (each.partition("=") for each in words)}


def pairs_of(words):
    """`from 0.05 group eval` as a dict; a word before the first pair names its subject."""
    words = words[len(words) % 2 :]
    return dict(zip(words[::2], words[1::2], strict=True))


def parts_of(text):
    """The paragraph, the commands, and what they lead to."""
    prose, commands, *told = re.split(rf"^{RULE}\n", text, flags=re.M)
    return prose, commands, "".join(told)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.txt")), ids=lambda path: path.stem)
def test_transcript(path, request):
    prose, commands, told = parts_of(path.read_text())
    story = Story(commands.splitlines())
    story.world.run(until=60)
    beats = (Heartbeat.__name__, HeartbeatSeen.__name__)
    lines = [line for line in story.world.trace.lines if not any(beat in line for beat in beats)]
    found = "\n".join(lines) + "\n"
    if request.config.getoption("--rewrite-transcripts"):
        path.write_text(f"{prose}{RULE}\n{commands}{RULE}\n{found}")
        return
    assert found == told


@pytest.mark.parametrize(
    "line",
    [
        *("  dance", "  push advanced", "  pull w timeot 1", "  look there", "x=1"),
        *("lose first Reply of x", "cluster workrs=3", "worker-1 form 0.5"),
    ],
)
def test_commands_that_do_not_exist_are_refused(line):
    with pytest.raises(AssertionError, match=line.split()[-1].partition("=")[0]):
        Story(["cluster", "worker-0", line])
