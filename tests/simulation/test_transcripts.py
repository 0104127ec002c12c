"""Conversations of small clusters that a person can read, compared line by line.

`pytest --rewrite-transcripts` writes them anew; whoever does has to explain the difference.
"""

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from shoal.keys import KeyRange
from shoal.protocol.messages.base import SCHEDULER
from shoal.protocol.messages.membership import Heartbeat, HeartbeatSeen
from shoal.protocol.messages.requests import Reply, Request
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
from shoal.simulation.network import NetworkOptions
from shoal.simulation.node import Sleep
from shoal.simulation.world import World
from shoal.tables.consistency import asp, bsp, ssp
from shoal.tables.dense.shard import DenseShard
from shoal.tables.spec import TableSpec

FOLDER = Path(__file__).parent.parent / "transcripts"
QUIET = NetworkOptions(delay_s=0.001, jitter_s=0.0)
SESSION = SessionOptions(join_timeout_s=3.0, heartbeat_s=5.0, resend_s=1.0)
ONES = np.ones(4, np.float32).view(np.uint8).data


class Cluster:
    def __init__(self, servers=1, workers=2, rule=None, elastic=False, sync_timeout_s=10.0):
        self.world = World(0, QUIET, keep_lines=True)
        self.table = TableSpec("w", 4, merge="sum", fragment_rows=2, consistency=rule or asp())
        self.options = WorkerOptions(sync_timeout_s=sync_timeout_s, probe_s=0.2)
        options = SchedulerOptions(
            servers,
            workers,
            elastic=elastic,
            failure_timeout_s=12.0,
            broken_s=0.05,
            join_timeout_s=2.0,
        )
        self.world.add(SCHEDULER, SchedulerMachine(options))
        for rank in range(servers):
            session = Session(f"server-{rank}", "server", rank=rank, options=SESSION)
            self.world.add(session.me, ServerMachine(session, DenseShard))

    def worker(self, rank, script, named=None, group=""):
        options = replace(SESSION, group=group, namespace=group)
        session = Session(named or f"worker-{rank}", "worker", rank=rank, options=options)
        machine = WorkerMachine(session, self.options)
        self.world.add(session.me, machine, self.program(script))
        return machine

    def program(self, script):
        outcome = yield AwaitView()
        if outcome.error is None:
            yield DeclareTable(self.table)
            yield from script
            yield Exchange(advance=True, last=True)
            yield FinishWork()

    def push(self, **more):
        return Exchange((PushOp("w", KeyRange(0, 4), ONES),), **more)


def pull(out, **more):
    return Exchange(pulls=(PullOp("w", KeyRange(0, 4), out.view(np.uint8).data),), **more)


def rows():
    return np.full(4, -1, np.float32)


def fast_worker_waits_under_ssp():
    """Under SSP(1) worker-0 may read at clock 1 and at clock 2 only once worker-1 has reached 1:
    its second pull is waiting at the server until worker-1's first advance arrives."""
    cluster = Cluster(rule=ssp(1))

    def fast():
        for _ in range(2):
            yield cluster.push(advance=True)
            yield pull(rows())

    def slow():
        yield Sleep(0.5)
        yield cluster.push(advance=True)

    cluster.worker(0, fast())
    cluster.worker(1, slow())
    return cluster


def barrier_with_a_late_worker():
    """Nobody is released before the last has entered."""
    cluster = Cluster()

    def enters(after_s):
        yield Sleep(after_s)
        yield EnterBarrier("epoch 1")

    cluster.worker(0, enters(0.0))
    cluster.worker(1, enters(0.3))
    return cluster


def lost_acknowledgement():
    """The server's answer to a push is lost. The worker asks what became of it, in a probe without
    the payload, and hears that it was applied: the push itself is not sent twice."""
    cluster = Cluster(workers=1)
    lost = []

    def drop(source, to, message):
        if isinstance(message, Reply) and not lost:
            lost.append(message)
            return True
        return False

    cluster.world.drop = drop

    def script():
        yield cluster.push()

    cluster.worker(0, script())
    return cluster


def lost_push():
    """The push itself is lost: the probe is answered `missing`, and the push is sent again."""
    cluster = Cluster(workers=1)
    lost = []

    def drop(source, to, message):
        if isinstance(message, Request) and message.pushes and not lost:
            lost.append(message)
            return True
        return False

    cluster.world.drop = drop

    def script():
        yield cluster.push()

    cluster.worker(0, script())
    return cluster


def late_pull_after_its_time_out():
    """worker-0's pull gives up after twice 0.1 s. When its answer can come at last, nobody waits
    for it, and the buffer, which is the caller's again, keeps what the caller wrote."""
    cluster = Cluster(rule=bsp())
    out = rows()

    def impatient():
        yield Start(cluster.push(advance=True))
        outcome = yield pull(out, timeout_s=0.1)
        cluster.world.note_line(f"worker-0's program hears: {outcome.error.message}")
        out.fill(7)
        yield Sleep(0.5)
        cluster.world.note_line(f"worker-0's buffer holds {out.tolist()}")

    def slow():
        yield Sleep(0.4)
        yield cluster.push(advance=True)

    cluster.worker(0, impatient())
    cluster.worker(1, slow())
    return cluster


def worker_dies_in_mid_round():
    """worker-1 dies when server-0 has heard of its advance and server-1 has not. Both hold its
    push, so the next view lets it count in round 0 on both: the rows end as 2 everywhere."""
    cluster = Cluster(servers=2, rule=bsp(), elastic=True)
    out = rows()

    def survivor():
        yield Sleep(0.1)
        yield cluster.push(advance=True)
        yield pull(out)
        cluster.world.note_line(f"worker-0 reads {out.tolist()}")

    def victim():
        yield cluster.push(advance=True)

    def drop(source, to, message):
        lost = isinstance(message, Request) and message.advance > 0 and source == "worker-1"
        if lost and to == "server-1":
            cluster.world.at(cluster.world.now + 0.01, lambda: cluster.world.crash("worker-1"))
            return True
        return False

    cluster.world.drop = drop
    cluster.worker(0, survivor())
    cluster.worker(1, victim())
    return cluster


def join_during_training():
    """worker-1 joins while worker-0 trains. The servers freeze and tell their clocks, so that its
    first round is one that no server has closed."""
    cluster = Cluster(workers=1, rule=bsp(), elastic=True)

    def trains():
        for _ in range(4):
            yield cluster.push(advance=True)
            yield pull(rows())
            yield Sleep(0.02)

    def joins():
        yield cluster.push(advance=True)
        yield pull(rows())

    cluster.worker(0, trains())
    cluster.world.at(0.05, lambda: cluster.worker(1, joins()))
    return cluster


def scheduler_never_answers():
    """A worker asks to join every second, and gives up when its patience ends."""
    cluster = Cluster(workers=1)
    cluster.world.crash(SCHEDULER, tell=False)
    cluster.world.crash("server-0", tell=False)
    cluster.worker(0, iter(()))
    return cluster


def scheduler_restarts():
    """The scheduler dies and comes back with its journal: it begins a new term with a new view,
    and training goes on."""
    cluster = Cluster(workers=1)

    def trains():
        yield Sleep(1.5)  # members call the scheduler, and do so with their next heartbeat
        yield cluster.push(advance=True)

    def restart():
        options = SchedulerOptions(1, 1, failure_timeout_s=12.0)
        disk = cluster.world.nodes[SCHEDULER].disk
        cluster.world.add(SCHEDULER, SchedulerMachine(options, disk.record))

    cluster.worker(0, trains())
    cluster.world.at(0.1, lambda: cluster.world.crash(SCHEDULER, tell=False))
    cluster.world.at(0.2, restart)
    return cluster


def group_beside_another():
    """A worker of the group `eval` has a table `w` of its own, in whose rounds nobody else is. It
    reads the first group's, `/w`, before that has pushed and after it. The first group finishes,
    which a view says, and the run ends with the other."""
    cluster = Cluster(workers=1, rule=bsp())
    before, after = rows(), rows()

    def trains():
        yield Sleep(0.1)
        yield cluster.push(advance=True)

    def reads(out, when):
        yield Exchange(pulls=(PullOp("/w", KeyRange(0, 4), out.view(np.uint8).data),))
        cluster.world.note_line(f"guest reads {out.tolist()} {when}")

    def bounded():
        yield from reads(before, "before")
        yield cluster.push(advance=True)
        yield Sleep(0.2)
        yield from reads(after, "after")

    cluster.worker(0, trains())
    cluster.world.at(0.05, lambda: cluster.worker(0, bounded(), "guest", "eval") and None)
    return cluster


STORIES = [
    fast_worker_waits_under_ssp,
    barrier_with_a_late_worker,
    lost_acknowledgement,
    lost_push,
    late_pull_after_its_time_out,
    worker_dies_in_mid_round,
    join_during_training,
    scheduler_never_answers,
    scheduler_restarts,
    group_beside_another,
]


@pytest.mark.parametrize("trace", STORIES, ids=lambda trace: trace.__name__)
def test_transcript(trace, request):
    cluster = trace()
    cluster.world.run(until=60)
    prose = "\n".join(line.strip() for line in trace.__doc__.splitlines())
    beats = (Heartbeat.__name__, HeartbeatSeen.__name__)
    told = [line for line in cluster.world.trace.lines if not any(beat in line for beat in beats)]
    text = f"{prose}\n\n" + "\n".join(told) + "\n"
    path = FOLDER / f"{trace.__name__}.txt"
    if request.config.getoption("--rewrite-transcripts"):
        path.write_text(text)
    assert text == path.read_text()
