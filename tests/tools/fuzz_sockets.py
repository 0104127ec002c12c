"""Authenticated frames on sockets: a cluster with a token, an honest worker, and somebody else.

The other one has the token. It is a worker of a group of its own, or a joiner of any role that is
no member; it sends mutated messages to the scheduler, to the servers and to the worker.
"""

import re
import select
import time
from contextlib import suppress
from pathlib import Path
from random import Random

import torch

from shoal.client.client import Client
from shoal.client.options import ClientOptions
from shoal.engines.base import Task
from shoal.engines.cluster import start_cluster
from shoal.engines.processes import Processes
from shoal.errors import BadMessage, ShoalError
from shoal.protocol.limits import KEYS_MAX
from shoal.protocol.machine import Discard
from shoal.protocol.messages.admin import DeathReport
from shoal.protocol.messages.base import SAME, Message, Part
from shoal.protocol.messages.membership import (
    Abort,
    Declare,
    Finish,
    Heartbeat,
    Join,
    Joined,
    NewView,
    RefuseView,
)
from shoal.protocol.messages.requests import Probe, Request
from shoal.protocol.views import View
from shoal.storage.run_folder import RunFolder
from shoal.tables.consistency import asp, bsp
from shoal.tables.spec import Access, TableSpec
from shoal.transport import Connection, Identity, transport_for
from shoal.transport.wire import PREFIX, decode, encode
from tests.tools.mutations import Mutator

TOKEN = "the token of the fuzzed cluster"
DOES_WHAT_IT_SAYS = (Abort, DeathReport, Declare, Finish, Join, RefuseView)
FRAMES_A_CONNECTION = 40


def honest(scheduler: str, token: str, folder: str) -> None:
    """Push, advance and pull until the file `over` is in `folder`; count the steps in `steps`."""
    with Client(scheduler, ClientOptions(token=token, sync_timeout_s=60.0)) as client:
        client.create_table(TableSpec("w", 1000, merge="sum", access=Access("sum")))
        client.create_table(TableSpec("rounds", 64, consistency=bsp()))
        client.create_table(TableSpec("rare", row_shape=(4,), kind="sparse", consistency=asp()))
        keys, steps = torch.tensor([1, 5, 900]), 0
        while not (Path(folder) / "over").exists():
            client.push("w", torch.ones(1000)).wait()
            client.push("rare", torch.ones(3, 4), keys=keys).wait()
            pushed = client.push("rounds", torch.ones(64))
            client.advance()
            pushed.wait()
            client.pull("rounds").wait()
            steps += 1
            (Path(folder) / "steps.new").write_text(str(steps))
            (Path(folder) / "steps.new").rename(Path(folder) / "steps")
            time.sleep(0.002)  # the rate of a small training step


class Stranger:
    """Somebody with the token, who sends mutated messages."""

    def __init__(self, scheduler: str, seed: int) -> None:
        self.random = Random(seed)
        self.mutator = Mutator(self.random)
        self.scheduler = scheduler
        self.view: View | None = None
        self.incarnation = self.sent = self.heard_at = 0
        self.node = ""
        self._names = 0

    # ------------------------------------------------------------------ as a member

    def keep_up(self) -> None:
        """Be a member: join if it is none, and say that it lives."""
        if not self.node:
            self._names += 1
            self.node = f"fuzz-{self._names}"
        connection = self._connect(self.scheduler, self.node, "worker")
        if connection is None:
            return
        join = Join(self.node, "worker", "", "", group="fuzz", group_size=1)
        connection.send(join if not self.incarnation else self._heartbeat(), ())
        until = time.monotonic() + 3.0
        heard: list[Message] = []
        while time.monotonic() < until and not (heard and self.view is not None):
            alive = connection.receive(
                lambda *_: Discard(""), lambda _, message, payload: heard.append(message), print
            )
            for message in heard:
                self._hear(message)
            if not alive:
                self.node, self.incarnation = "", 0
                break
            time.sleep(0.01)  # polls another process: there is no event to wait for
        connection.close()

    def _heartbeat(self) -> Heartbeat:
        return Heartbeat(self.incarnation, self.view.id if self.view is not None else (0, 0))

    def _hear(self, message: Message) -> None:
        if isinstance(message, Joined):
            self.incarnation = message.incarnation
        elif isinstance(message, NewView):
            self.view = message.view
        elif type(message).__name__ == "End":  # it was declared dead meanwhile
            self.node, self.incarnation = "", 0
        self.mutator.learn(message)

    def _connect(self, address: str, node: str, role: str) -> Connection | None:
        with suppress(ShoalError, OSError):
            me = Identity(node, role, token=TOKEN)  # type: ignore[arg-type]
            return transport_for(address).connect(address, me, 5.0)
        return None

    # ------------------------------------------------------------------ frames

    def attack(self, frames: int) -> None:
        """Send that many frames, some on each connection."""
        until, member_until = self.sent + frames, 0.0
        while self.sent < until:
            if time.monotonic() > member_until:
                self.keep_up()
                member_until = time.monotonic() + 1.0
            assert self.view is not None
            members = (*self.view.servers, *self.view.workers)
            addresses = [self.scheduler, *(m.address for m in members if m.address)]
            address = self.random.choice(addresses)
            node, role = self.node or "nobody", "worker"
            if self.random.random() < 0.3:
                role = self.random.choice(("worker", "server"))
                node = f"joiner-{self.random.randrange(50)}"
            connection = self._connect(address, node, role)
            if connection is not None:
                self._speak(connection, address == self.scheduler)
                connection.close()

    def _speak(self, connection: Connection, to_scheduler: bool) -> None:
        sock = connection._sock  # type: ignore[attr-defined]
        sock.setblocking(True)
        sock.settimeout(5.0)
        for _ in range(self.random.randrange(1, FRAMES_A_CONNECTION)):
            frame = self._frame(to_scheduler)
            if frame is None:
                continue
            self.sent += 1
            try:
                sock.sendall(frame)
                if self.random.random() < 0.2 and select.select([sock], [], [], 0)[0]:
                    sock.recv(1 << 20)  # some of the answers
            except OSError:  # it has hung up
                return

    def _frame(self, to_scheduler: bool) -> bytes | None:
        random = self.random
        message = self._request() if not to_scheduler and random.random() < 0.6 else None
        header = self.mutator.header(message)
        with suppress(BadMessage):
            decoded = decode(header)
            if isinstance(decoded, DOES_WHAT_IT_SAYS):
                return None
            if isinstance(decoded, Request) and len(decoded.pushes) + len(decoded.pulls) > 16:
                message = decoded  # of many parts, with the payload that they need
        announced = self._size(message)
        magic, version, kind, *_ = PREFIX.unpack(encode(Probe((0, 0), 0, 0))[: PREFIX.size])
        payload = random.randbytes(min(announced, 1 << 16)) if random.random() < 0.97 else b""
        prefix = PREFIX.pack(magic, version, kind, 0, len(header), announced)
        return prefix + header + payload

    def _size(self, message: Message | None) -> int:
        random = self.random
        if random.random() < 0.03:
            return random.choice((1, 1 << 20, 1 << 33, (1 << 40) - 1, 1 << 40))
        if isinstance(message, Request) and self.view is not None:
            known = len(self.view.tables)
            sizes = [self.view.tables[p.table % known].row_bytes for p in message.pushes]
            return min(
                1 << 16,
                abs(
                    sum(
                        size * (part.stop - part.start) if part.keys < 0 else part.keys * (8 + size)
                        for size, part in zip(sizes, message.pushes, strict=True)
                    )
                ),
            )
        return random.choice((0, 0, 0, 8, 64))

    def _request(self) -> Request:
        """A request that a member may make, or nearly."""
        random, view = self.random, self.view
        assert view is not None
        if not view.tables:
            return Request(view.id, self.incarnation, 0, 0, 0)
        table = random.randrange(len(view.tables))
        rows = random.choice(view.placements[table]).rows
        keys = random.choice((-1, 0, 1, 3, SAME, KEYS_MAX))
        part = Part(table, rows.start, rows.stop, keys)
        pushes = (part,) * random.choice((0, 1, 1, 2, 9))
        pulls = (Part(table, rows.start, rows.stop, random.choice((-1, SAME, 2))),)
        seq = random.choice((self.sent % 10_000, random.randrange(20_000)))
        weight = random.choice((1.0, 0.0, float("nan")))
        advance = random.choice((-1, 1, 5))
        return Request(view.id, self.incarnation, seq, 0, 0, pushes, advance, pulls, weight)


# ---------------------------------------------------------------------------- the cluster


def memory_of(processes: Processes) -> dict[str, int]:
    """KiB of memory that each process has."""
    found = {}
    for name in list(processes.running):
        status = Path(f"/proc/{processes.pid(name)}/status").read_text()
        found[name] = int(status.split("VmRSS:")[1].split()[0])
    return found


def steps_of(folder: Path) -> int:
    path = folder / "steps"
    return int(path.read_text()) if path.exists() else 0


def siege(folder: Path, frames: int, seed: int = 0) -> dict[str, object]:
    """Send that many frames to a cluster; what became of it."""
    with Processes(RunFolder.create(folder, "frames")) as processes:
        scheduler = start_cluster(processes, 2, 1, token=TOKEN, replicas=2)
        fields = {"scheduler": scheduler, "token": TOKEN, "folder": str(folder)}
        processes.start(Task("worker-0", "tests.tools.fuzz_sockets:honest", fields))
        names = sorted(processes.running)
        until = time.monotonic() + 60.0
        while steps_of(folder) < 20:
            assert time.monotonic() < until, "the honest worker does not get on"
            time.sleep(0.05)  # polls another process: there is no event to wait for
        stranger = Stranger(scheduler, seed)
        stranger.attack(max(frames // 20, 200))  # what grows at first, as in any run
        before, began, steps = memory_of(processes), time.monotonic(), steps_of(folder)
        slowest, at = 0.0, time.monotonic()
        while stranger.sent < frames:
            stranger.attack(min(500, frames - stranger.sent))
            if steps_of(folder) > steps:
                slowest = max(slowest, time.monotonic() - at)
                steps, at = steps_of(folder), time.monotonic()
        slowest = max(slowest, time.monotonic() - at)
        seconds = time.monotonic() - began
        last = steps_of(folder)
        time.sleep(1.0)  # the time over which the rate of steps is measured
        after, ended = memory_of(processes), processes.exits(0.1)
        logs = "".join(processes.folder.log(name).read_text() for name in names)
        report = {
            "frames": stranger.sent,
            "seconds": round(seconds, 1),
            "ended": [str(each) for each in ended] + sorted(set(names) - set(processes.running)),
            "growth_kib": {name: after[name] - before[name] for name in after},
            "steps_of_the_worker": last,
            "steps_after": steps_of(folder) - last,
            "slowest_s": round(slowest, 2),
            "counted": sorted(set(re.findall(r"(\w+) x\d+ from", logs))),
            "net": [line for line in logs.splitlines() if "PeerFault x" in line][:5],
        }
        (folder / "over").touch()
        processes.finish()
    return report
