"""A flood of strangers beside a training run: what it costs the run.

    python -m tests.tools.stranger_flood --connections 5000

A scheduler, two servers and a worker that pushes, advances and pulls 4 MB a step. Its median step,
and the latency of a 64-byte exchange, are measured before the flood and during it: connections that
say nothing, say rubbish, greet by half, or greet with a wrong token. A process of its own opens so
many a second, and keeps thousands of them open if the nodes do.
"""

import argparse
import json
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random

import torch

from shoal.client.client import Client
from shoal.client.options import ClientOptions
from shoal.engines.cluster import start_cluster
from shoal.engines.processes import Processes
from shoal.protocol.messages.base import PROTOCOL_VERSION
from shoal.protocol.messages.handshake import Hello
from shoal.storage.run_folder import RunFolder
from shoal.tables.consistency import asp, bsp
from shoal.tables.spec import TableSpec
from shoal.transport.wire import encode

TOKEN = "the token of the flooded cluster"
OPEN = 4000  # connections that the strangers keep, the oldest of which they close
BAR = 1.5


def flood(addresses: list[str], connections: int, per_second: float) -> None:
    """Open connections to these addresses, in a process of its own; prints how many were refused.

    It keeps as many open as it may; nodes hang up on the oldest unauthenticated connection.
    """
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    random, kept, refused = Random(0), list[socket.socket](), 0
    began = time.monotonic()
    for made in range(connections):
        time.sleep(max(0.0, began + made / per_second - time.monotonic()))  # the rate
        family, to = _endpoint(random.choice(addresses))
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.settimeout(2.0)
        try:
            sock.connect(to)
            sock.sendall(_greeting(random))
        except OSError:
            refused += 1
        kept.append(sock)
        if len(kept) > min(OPEN, most - 64):
            kept.pop(0).close()
    print(json.dumps({"refused": refused, "seconds": time.monotonic() - began}))


def _endpoint(address: str) -> tuple[int, object]:
    if address.startswith("unix://"):
        return socket.AF_UNIX, address.removeprefix("unix://")
    host, port = address.removeprefix("tcp://").rsplit(":", 1)
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


def measure(folder: Path, connections: int, per_second: float, seconds: float) -> dict[str, object]:
    """Median step and small exchange before a flood and during it."""
    with Processes(RunFolder.create(folder, "flood")) as processes:
        scheduler = start_cluster(processes, 2, 1, token=TOKEN)
        client = Client(scheduler, ClientOptions(token=TOKEN))
        values = torch.ones(1 << 20)
        client.create_table(TableSpec("model", 1 << 20, consistency=bsp()))
        client.create_table(TableSpec("small", 16, consistency=asp()))
        steps(client, time.monotonic() + 1.0, values)
        before = steps(client, time.monotonic() + seconds, values)
        small_before = exchanges(client, time.monotonic() + seconds)
        names = ["scheduler", "server-0", "server-1"]
        asked = [
            *(processes.address(name) for name in names),
            str(connections // 2),
            str(per_second),
        ]
        floods, during = [], []
        for small in (False, True):
            command = [sys.executable, "-m", "tests.tools.stranger_flood", "--flood", *asked]
            strangers = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            took = exchanges(client, strangers) if small else steps(client, strangers, values)
            during.append(took)
            floods.append(json.loads(strangers.communicate()[0]))
        ended = processes.exits(0.1)
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
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=5000)
    parser.add_argument("--per-second", type=float, default=500.0)
    parser.add_argument("--flood", nargs="+", help="addresses, connections, per second: be them")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement before")
    asked = parser.parse_args(arguments)
    if asked.flood:
        *addresses, connections, rate = asked.flood
        flood(addresses, int(connections), float(rate))
        return 0
    with tempfile.TemporaryDirectory(prefix="shoal-flood-") as folder:
        report = measure(Path(folder), asked.connections, asked.per_second, asked.seconds)
    print(json.dumps(report, indent=1))
    ratio = report["ratio"]
    assert isinstance(ratio, float)
    return 0 if ratio < BAR and not report["ended"] else 1


if __name__ == "__main__":
    sys.exit(main())
