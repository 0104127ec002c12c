"""The time of a small exchange in each of its stages, in one process and without waiting.

Worker and server are machines here, with a connection between them and nothing else. A measured
exchange takes longer than the sum of these stages: the rest is spent in the client's layers, in the
nodes, and waiting.
"""

from __future__ import annotations

import socket
from itertools import pairwise
from statistics import median
from time import perf_counter

import torch

from shoal.keys import KeyRange
from shoal.protocol.machine import Asked, Effects, Received, Send, Sink
from shoal.protocol.messages.base import SCHEDULER, Message
from shoal.protocol.messages.membership import NewView
from shoal.protocol.requests import Exchange, PullOp, PushOp
from shoal.protocol.scheduler.rows.placement import place
from shoal.protocol.server.machine import ServerMachine
from shoal.protocol.session import Session
from shoal.protocol.views import Member, NodeId, View
from shoal.protocol.worker.machine import WorkerMachine
from shoal.tables.opening import open_shard
from shoal.tables.spec import TableSpec
from shoal.transport import Identity
from shoal.transport.stream import StreamConnection

WARM_UP = 500
CALLS = 2000
ROOMS = (
    "worker's machine, asking",
    "sending the request",
    "receiving it, arriving",
    "server's machine and table",
    "sending the answer",
    "receiving it",
    "worker's machine, answered",
)


def rooms(nbytes: int) -> dict[str, float]:
    """Return the median microseconds of each stage of a push_pull of a table of `nbytes`."""
    cluster = _Cluster(nbytes)
    try:
        for _ in range(WARM_UP):
            cluster.exchange()
        laps = [cluster.exchange() for _ in range(CALLS)]
    finally:
        cluster.close()
    return {room: median(lap[at] for lap in laps) * 1e6 for at, room in enumerate(ROOMS)}


class _Cluster:
    """A worker's and a server's machine, and a socket between them."""

    def __init__(self, nbytes: int) -> None:
        spec = TableSpec("bench", nbytes // 4, merge="sum").cut(1)
        servers, workers = (Member("s", "server", 0, 1),), (Member("w", "worker", 0, 2),)
        view = View(1, 1, servers, workers, (spec,), (place(spec, servers, 1, 0),))
        self._server = ServerMachine(Session("s", "server"), open_shard)
        self._worker = WorkerMachine(Session("w", "worker"))
        for machine in (self._server, self._worker):
            machine.handle(Received(SCHEDULER, NewView(view)), 0.0)
        ours, theirs = socket.socketpair()
        self._here = StreamConnection(ours, Identity("w", "worker"), "s")
        self._there = StreamConnection(theirs, Identity("s", "server"), "w")
        values, out = torch.ones(spec.rows), torch.empty(spec.rows)
        rows = KeyRange(0, spec.rows)
        self._ask = Exchange(
            (PushOp("bench", rows, values.view(torch.uint8).numpy().data),),
            pulls=(PullOp("bench", rows, out.view(torch.uint8).numpy().data),),
        )
        self._number = 0
        self._came: list[Received] = []

    def exchange(self) -> list[float]:
        """Make one push_pull, and return the seconds in each stage."""
        self._number += 1
        times = [perf_counter()]
        effects = self._worker.handle(Asked(self._number, self._ask), 1.0)
        times.append(perf_counter())
        _send(self._here, effects)
        times.append(perf_counter())
        self._there.receive(self._server.arriving, self._deliver, _malformed)
        times.append(perf_counter())
        effects = self._server.handle(self._came.pop(), 1.0)
        times.append(perf_counter())
        _send(self._there, effects)
        times.append(perf_counter())
        self._here.receive(self._worker.arriving, self._deliver, _malformed)
        times.append(perf_counter())
        self._worker.handle(self._came.pop(), 1.0)
        times.append(perf_counter())
        return [after - before for before, after in pairwise(times)]

    def _deliver(self, sender: NodeId, message: Message, payload: Sink | None) -> None:
        self._came.append(Received(sender, message, payload))

    def close(self) -> None:
        self._here.close()
        self._there.close()


def _send(connection: StreamConnection, effects: Effects) -> None:
    for effect in effects:
        if isinstance(effect, Send):
            connection.send(effect.message, effect.buffers, effect.guard)


def _malformed(sender: NodeId, error: Exception) -> None:
    raise error
