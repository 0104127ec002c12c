"""Which code of a server one exchange goes through: files, calls, and changes of file.

    python tests/tools/exchange_path.py

A scheduler, servers and a worker run in threads of this process, on real sockets. What is counted
is what servers do from a connection's receive to the effects: calls of functions of this package,
and how often a call is in another file than the one before it on the same server.
"""

import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from itertools import count, pairwise
from pathlib import Path
from types import FrameType

import numpy as np

import shoal
from shoal.node.node import Node
from shoal.protocol.machine import Asked, Effects, Event, Outcome, Ticked
from shoal.protocol.messages.base import Message
from shoal.protocol.messages.replication import Replicate, ReplicateAck
from shoal.protocol.messages.requests import Request
from shoal.protocol.requests import (
    AwaitView,
    DeclareTable,
    Exchange,
    FinishWork,
    PullOp,
    PushOp,
)
from shoal.protocol.scheduler.machine import SchedulerMachine
from shoal.protocol.scheduler.options import SchedulerOptions
from shoal.protocol.server.machine import ServerMachine
from shoal.protocol.session import Session
from shoal.protocol.worker.machine import WorkerMachine
from shoal.tables.consistency import Consistency, asp, bsp
from shoal.tables.opening import open_shard
from shoal.tables.spec import Access, TableSpec
from shoal.transport.base import Connection, Identity

ROOT = str(Path(shoal.__file__).parent)
ROWS = 8
Serve = Callable[[Connection, int], None]
Handle = Callable[[Event, float], Effects]
Perform = Callable[[Effects], None]


class Cluster:
    """All nodes of a run; the worker is driven by the caller."""

    def __init__(self, folder: Path, servers: int, rule: Consistency) -> None:
        self.calls: list[list[str]] = []  # of each server
        self._outcomes: dict[int, Outcome] = {}
        self._tickets = count()
        self._profiling = False
        self._serving: list[threading.Lock] = []  # held by each server during a call
        options = SchedulerOptions(servers, 1, replicas=servers)
        scheduler = Node(SchedulerMachine(options), Identity("scheduler", "scheduler", "path"))
        address = scheduler.listen(f"unix://{folder}/scheduler.sock")
        nodes = [scheduler]
        for rank in range(servers):
            session = Session(f"server-{rank}", "server", rank=rank)
            node = Node(
                ServerMachine(session, open_shard), Identity(session.me, "server", "path"), address
            )
            session.announce(node.listen(f"unix://{folder}/server-{rank}.sock"))
            self._profile(node)
            nodes.append(node)
        self._threads = [threading.Thread(target=node.run, daemon=True) for node in nodes]
        worker = WorkerMachine(Session("worker-0", "worker"))
        self._worker = Node(
            worker,
            Identity("worker-0", "worker", "path"),
            address,
            resolve=self._outcomes.__setitem__,
        )
        self._nodes = [*nodes, self._worker]
        for thread in self._threads:
            thread.start()
        self._worker.handle(Ticked())
        self.ask(AwaitView())
        spec = TableSpec("w", ROWS, consistency=rule, access=Access("sum"), merge="sum")
        self.ask(DeclareTable(spec.cut(servers)))

    def ask(self, request: object) -> Outcome:
        ticket = next(self._tickets)
        self._worker.handle(Asked(ticket, request))
        while ticket not in self._outcomes:
            self._worker.poll(0.1)
        return self._outcomes[ticket]

    def path(self, request: object) -> list[list[str]]:
        """The files of each server's calls for a request, which was asked for before.

        Of three times it is the shortest: a timer may be due within one.
        """
        for _ in range(3):
            self.ask(request)
        return min((self._path(request) for _ in range(3)), key=lambda calls: sum(map(len, calls)))

    def _path(self, request: object) -> list[list[str]]:
        for calls in self.calls:
            calls.clear()
        self._profiling = True
        outcome = self.ask(request)
        for serving in self._serving:  # an answer leaves before its server's call has returned
            with serving:
                pass
        self._profiling = False
        assert outcome.error is None, outcome.error
        return [[*calls] for calls in self.calls]

    def close(self) -> None:
        self.ask(FinishWork())
        for thread in self._threads:
            thread.join()
        for node in self._nodes:
            node.close()

    def _profile(self, node: Node) -> None:
        calls: list[str] = []
        self.calls.append(calls)
        serving = threading.Lock()
        self._serving.append(serving)
        data: list[Message] = []  # of the present call

        def called(frame: FrameType, event: str, arg: object) -> None:
            file = frame.f_code.co_filename
            if event == "call" and file.startswith(ROOT):
                calls.append(file.removeprefix(ROOT + "/"))

        def served(connection: Connection, mask: int, serve: Serve = node._serve) -> None:
            with serving:
                before = len(calls)
                sys.setprofile(called if self._profiling else None)
                try:
                    serve(connection, mask)
                finally:
                    sys.setprofile(None)
                if not data:  # a heartbeat's answer and the like
                    del calls[before:]
                data.clear()

        def handled(event: Event, now: float, handle: Handle = node.machine.handle) -> Effects:
            message = getattr(event, "message", None)
            if isinstance(message, Request | Replicate | ReplicateAck):
                data.append(message)
            return handle(event, now)

        def performed(effects: Effects, perform: Perform = node.perform) -> None:
            profile = sys.getprofile()
            sys.setprofile(None)
            perform(effects)
            sys.setprofile(profile)

        node._serve, node.machine.handle, node.perform = served, handled, performed


def exchanges() -> Iterator[tuple[str, int, Consistency, Exchange]]:
    """(name, servers, consistency, exchange) of each that is measured."""
    values, out = np.ones(ROWS, np.float32), np.zeros(ROWS, np.float32)
    rows = TableSpec("w", ROWS).keys
    push = (PushOp("w", rows, values.view(np.uint8).data),)
    pull = (PullOp("w", rows, out.view(np.uint8).data),)
    yield "push, asp", 1, asp(), Exchange(push)
    yield "push through a chain of two, asp", 2, asp(), Exchange(push)
    yield "push, advance and pull, bsp (sync)", 1, bsp(), Exchange(push, advance=True, pulls=pull)


def measure(show: bool = False) -> dict[str, tuple[int, int, int]]:
    """(files, calls, changes of file) of each exchange."""
    found = {}
    for name, servers, rule, exchange in exchanges():
        with tempfile.TemporaryDirectory(prefix="shoal-path-") as folder:
            cluster = Cluster(Path(folder), servers, rule)
            calls = cluster.path(exchange)
            cluster.close()
        changes = sum(one != other for each in calls for one, other in pairwise(each))
        flat = [file for each in calls for file in each]
        found[name] = len(set(flat)), len(flat), changes
        if show:
            print(name, *flat, sep="\n  ")
    return found


if __name__ == "__main__":
    for name, (files, calls, changes) in measure("--show" in sys.argv).items():
        print(f"{name}: {files} files, {calls} calls, {changes} changes of file")
