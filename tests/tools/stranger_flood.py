"""A flood of strangers beside a training run: what it costs the run.

    python -m tests.tools.stranger_flood --connections 5000 [--tls]

A scheduler, two servers and a worker that pushes, advances and pulls 4 MB a step. Its median step,
and the latency of a 64-byte exchange, are measured before the flood and during it: connections that
say nothing, say rubbish, greet by half, or greet with a wrong token. A process of its own opens so
many a second, and keeps thousands of them open if the nodes do. With --tls all of it is over TLS:
the strangers speak plainly, are silent or cut off, or have a certificate of another authority, an
expired or a self-signed one, none at all, or the right one and a wrong token. The nodes count them.
"""

import argparse
import ast
import json
import os
import re
import resource
import select
import shutil
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from random import Random

import torch

from shoal.apps import keys
from shoal.apps.keys import add_certificate, make_authority
from shoal.client.client import Client
from shoal.client.options import ClientOptions
from shoal.engines.cluster import start_cluster
from shoal.engines.processes import Processes
from shoal.protocol.messages.base import PROTOCOL_VERSION
from shoal.protocol.messages.handshake import Hello
from shoal.storage.run_folder import RunFolder
from shoal.tables.consistency import asp, bsp
from shoal.tables.spec import TableSpec
from shoal.transport.credentials import AUTHORITY, CERTIFICATE, KEY, set_default
from shoal.transport.shortcut import without_shortcut
from shoal.transport.wire import encode

TOKEN = "the token of the flooded cluster"
OPEN = 4000  # connections that the strangers keep, the oldest of which they close
BAR = 1.5


def flood(addresses: list[str], connections: int, per_second: float, keys: str) -> None:
    """Open connections to these addresses, in a process of its own; prints how many were refused.

    It keeps as many open as it may; nodes hang up on the oldest unauthenticated connection.

    keys:  the folder with the strangers' certificates; "" for connections without TLS
    """
    os.nice(19)  # on hosts of their own, they would take nothing of this one's processors
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    random, kept, refused = Random(0), list[socket.socket](), 0
    shaking = Shaking(Path(keys)) if keys else None
    began = time.monotonic()
    for made in range(connections):
        time.sleep(max(0.0, began + made / per_second - time.monotonic()))  # the rate
        family, to = _endpoint(random.choice(addresses))
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.settimeout(2.0)
        try:
            sock.connect(to)
            if shaking is None:
                sock.sendall(_greeting(random))
            else:
                sock = shaking.begin(sock, random)
        except OSError:
            refused += 1
        if shaking is not None:
            shaking.go_on()
        kept.append(sock)
        if len(kept) > min(OPEN, most - 64):
            kept.pop(0).close()
    print(json.dumps({"refused": refused, "seconds": time.monotonic() - began}))


class Shaking:
    """Strangers that speak TLS, or do not, each as far as it gets."""

    def __init__(self, keys: Path) -> None:
        self._contexts = {}
        for name in ("other", "expired", "self-signed", "none", "own"):
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            if name != "none":
                certificate, key = (keys / name / each for each in (CERTIFICATE, KEY))
                context.load_cert_chain(certificate, key)
            self._contexts[name] = context
        self._epoll = select.epoll()
        self._open: dict[int, ssl.SSLSocket] = {}
        self._hello = encode(
            Hello(PROTOCOL_VERSION, "", "stranger", "worker", bytes(16), bytes(32))
        )

    def begin(self, sock: socket.socket, random: Random) -> socket.socket:
        """Have a connection be one kind of stranger."""
        kind = random.choice(("plain", "silent", "cut off", *self._contexts))
        if kind == "plain":
            sock.sendall(self._hello)
        elif kind == "cut off":
            sock.sendall(b"\x16\x03\x01")
            sock.shutdown(socket.SHUT_WR)
        if kind not in self._contexts:
            return sock
        sock.setblocking(False)
        tls = self._contexts[kind].wrap_socket(sock, do_handshake_on_connect=False)
        self._open[tls.fileno()] = tls
        self._epoll.register(tls.fileno(), select.EPOLLIN)
        self._step(tls)
        return tls

    def go_on(self) -> None:
        for fileno, _ in self._epoll.poll(0):
            self._step(self._open[fileno])

    def _step(self, tls: ssl.SSLSocket) -> None:
        try:
            tls.do_handshake()
            tls.send(self._hello)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        except OSError:
            pass
        del self._open[tls.fileno()]
        self._epoll.unregister(tls.fileno())


def certificates(folder: Path) -> None:
    """Make those of the cluster and of the strangers."""
    make_authority(folder / "ours")
    make_authority(folder / "theirs")
    add_certificate(folder / "ours", "node")
    add_certificate(folder / "theirs", "other").rename(folder / "other")
    shutil.copytree(folder / "ours" / "node", folder / "own")
    (folder / "self-signed").mkdir()
    shutil.copy(folder / "theirs" / AUTHORITY, folder / "self-signed" / CERTIFICATE)
    shutil.copy(folder / "theirs" / keys.AUTHORITY_KEY, folder / "self-signed" / KEY)
    usual, keys.EARLIER = keys.EARLIER, timedelta(days=9)
    add_certificate(folder / "ours", "expired", days=-1).rename(folder / "expired")
    keys.EARLIER = usual


def counted(logs: Path) -> dict[str, int]:
    """How many callers the nodes have refused, by reason, as their logs say at their end."""
    found: Counter[str] = Counter()
    for log in logs.glob("*.log"):
        for words in re.findall(r"counters: (\{.*\})", log.read_text()):
            told = ast.literal_eval(words)
            found.update({name: n for name, n in told.items() if "Handshake" in name})
    return dict(found)


def _endpoint(address: str) -> tuple[int, object]:
    if address.startswith("unix://"):
        return socket.AF_UNIX, address.removeprefix("unix://")
    host, port = address.partition("://")[2].rsplit(":", 1)
    return socket.AF_INET, (host, int(port))


def _greeting(random: Random) -> bytes:
    """Nothing, rubbish, half a greeting, or one with a wrong token."""
    hello = Hello(PROTOCOL_VERSION, "", "stranger", "worker", random.randbytes(16), bytes(32))
    whole = encode(hello)
    return random.choice((b"", random.randbytes(200), whole[: len(whole) // 2], whole))


def _goes_on(until: float | subprocess.Popen[str]) -> bool:
    return time.monotonic() < until if isinstance(until, float) else until.poll() is None


def steps(
    client: Client, until: float | subprocess.Popen[str], values: torch.Tensor
) -> list[float]:
    """Train until a time, or until a process ends; the seconds of each step."""
    found = []
    while _goes_on(until):
        began = time.perf_counter()
        client.push("model", values)
        client.advance()
        client.pull("model").wait()
        found.append(time.perf_counter() - began)
    return found


def exchanges(client: Client, until: float | subprocess.Popen[str]) -> list[float]:
    small, found = torch.ones(16), list[float]()
    while _goes_on(until):
        began = time.perf_counter()
        client.push("small", small).wait()
        client.pull("small").wait()
        found.append((time.perf_counter() - began) / 2)
    return found


def measure(
    folder: Path, connections: int, per_second: float, seconds: float, tls: bool
) -> dict[str, object]:
    """Median step and small exchange before a flood and during it."""
    own, reach = folder / "keys", {}
    if tls:
        certificates(own)
        set_default(str(own / "own"))
        reach = {"listen": "tls://127.0.0.1:0", "server_listen": "tls://127.0.0.1:0"}
    run = RunFolder.create(folder, "flood")
    with Processes(run) as processes, without_shortcut() if tls else nullcontext():
        scheduler = start_cluster(processes, 2, 1, token=TOKEN, **reach)
        client = Client(scheduler, ClientOptions(token=TOKEN))
        values = torch.ones(1 << 20)
        client.create_table(TableSpec("model", 1 << 20, consistency=bsp()))
        client.create_table(TableSpec("small", 16, consistency=asp()))
        steps(client, time.monotonic() + 1.0, values)
        before = steps(client, time.monotonic() + seconds, values)
        small_before = exchanges(client, time.monotonic() + seconds)
        asked = [
            scheduler,
            *(server.address for server in client.view.servers),
            str(connections // 2),
            str(per_second),
        ]
        floods, during = [], []
        for small in (False, True):
            command = [sys.executable, "-m", "tests.tools.stranger_flood", "--flood", *asked]
            command += ["--keys", str(own) if tls else ""]
            strangers = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            took = exchanges(client, strangers) if small else steps(client, strangers, values)
            during.append(took)
            floods.append(json.loads(strangers.communicate()[0]))
        ended = processes.exits(0.1)
        members = len(client.view.workers) + len(client.view.servers)
        client.close()
        processes.finish()
    median = statistics.median
    return {
        "connections": connections,
        "refused": sum(each["refused"] for each in floods),
        "connections_per_s": round(connections / sum(each["seconds"] for each in floods)),
        "step_before_ms": round(1e3 * median(before), 3),
        "step_during_ms": round(1e3 * median(during[0]), 3),
        "steps_during": len(during[0]),
        "ratio": round(median(during[0]) / median(before), 3),
        "exchange_64b_before_us": round(1e6 * median(small_before), 1),
        "exchange_64b_during_us": round(1e6 * median(during[1]), 1),
        "exchange_64b_ratio": round(median(during[1]) / median(small_before), 3),
        "ended": [str(each) for each in ended],
        "members": members,
        "counted": counted(run.path / "logs"),
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=5000)
    parser.add_argument("--per-second", type=float, default=500.0)
    parser.add_argument("--flood", nargs="+", help="addresses, connections, per second: be them")
    parser.add_argument("--tls", action="store_true", help="all of it over TLS")
    parser.add_argument("--keys", default="", help="with --flood: the strangers' certificates")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement before")
    asked = parser.parse_args(arguments)
    if asked.flood:
        *addresses, connections, rate = asked.flood
        flood(addresses, int(connections), float(rate), asked.keys)
        return 0
    with tempfile.TemporaryDirectory(prefix="shoal-flood-") as folder:
        how = asked.connections, asked.per_second, asked.seconds, asked.tls
        report = measure(Path(folder), *how)
    print(json.dumps(report, indent=1))
    ratio = report["ratio"]
    assert isinstance(ratio, float)
    return 0 if ratio < BAR and not report["ended"] else 1


if __name__ == "__main__":
    sys.exit(main())
