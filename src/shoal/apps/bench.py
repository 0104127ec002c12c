"""`shoal bench`: Shoal beside its ceilings, measured in one run on one machine.

Every row has the median over several batches, the latencies' p50 and p99, and the ceiling: the
same exchange over a bare socket between two processes, in the same run, its batches taken by turns
with ours, so that a busy moment of the machine meets both.

The ceiling's two processes have a core each, as those have that compute. A ping-pong that does
nothing else is faster when both share one core, where nobody has to be woken up on another: that
is `together`, beside the small exchanges.
"""

from __future__ import annotations

import os
import platform
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from shoal.engines.base import Task
from shoal.engines.joining import start_cluster
from shoal.engines.local import LocalEngine
from shoal.runtime.client import Client, ClientOptions
from shoal.runtime.folder import RunFolder
from shoal.tables.spec import TableSpec

SMALL = 64
LARGE = 1 << 20
CALLS = {SMALL: 400, LARGE: 50}  # a batch
WARM_UP = 50

Row = dict[str, Any]


def run_suite(suite: str, rounds: int, console: Console) -> dict[str, Any]:
    """Measure a suite; returns the object that `--json` prints."""
    torch.set_num_threads(1)
    rows: list[Row] = []
    steps = [(scheme, index) for scheme in ("unix", "tcp") for index in range(3)]
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as path:
        folder = RunFolder.create(Path(path), suite)
        for scheme, index in track(steps, f"bench {suite}", console=console):
            rows.append(_wire_row(folder, scheme, index, rounds))
    return {"suite": suite, "machine": machine(), "rows": rows}


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "cpu": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "system": f"{platform.system()} {platform.release()}",
    }


def _wire_row(folder: RunFolder, scheme: str, index: int, rounds: int) -> Row:
    """One row: a fresh cluster of one server, and echo processes for the ceiling."""
    name, nbytes, reply = [
        (f"push_pull 64 B {scheme}", SMALL, SMALL),
        (f"push 1 MiB {scheme}", LARGE, 1),
        (f"pull 1 MiB {scheme}", 1, LARGE),
    ][index]
    size = max(nbytes, reply)
    cores = os.sched_getaffinity(0)
    one = {min(cores)}
    with LocalEngine(folder) as engine:
        tcp = scheme == "tcp"
        server = "tcp://127.0.0.1:0" if tcp else ""
        scheduler = start_cluster(engine, 1, 1, server_listen=server)
        apart = _Echo(engine, "echo-apart", tcp, nbytes, reply, cores - one or cores)
        together = _Echo(engine, "echo-together", tcp, nbytes, reply, one)
        client = Client(scheduler, ClientOptions())
        try:
            client.create_table(TableSpec("bench", size // 4, merge="sum"))
            sides = [(_call(client, index, size), cores), (apart.call, one), (together.call, one)]
            batches = _by_turns(sides, CALLS[size], rounds)
        finally:
            apart.close()
            together.close()
            client.close()
        engine.finish()
    return _row(name, size, *batches)


def _call(client: Client, index: int, size: int) -> Callable[[], object]:
    values = torch.ones(size // 4)
    out = torch.empty(size // 4)
    if index == 0:
        return lambda: client.blocking.push_pull("bench", values, out=out)
    if index == 1:
        return lambda: client.blocking.push("bench", values)
    return lambda: client.blocking.pull("bench", out=out)


Side = tuple[Callable[[], object], set[int]]  # what is measured, and the cores that its caller has
Batches = list[list[float]]  # seconds of each call, batch by batch


def _by_turns(sides: list[Side], count: int, rounds: int) -> list[Batches]:
    measured: list[Batches] = [[] for _ in sides]
    for call, _ in sides:
        for _ in range(WARM_UP):
            call()
    for _ in range(rounds):
        for (call, cores), batches in zip(sides, measured, strict=True):
            with _on(cores):
                batches.append(_batch(call, count))
    return measured


def _batch(call: Callable[[], object], count: int) -> list[float]:
    batch = []
    for _ in range(count):
        begin = perf_counter()
        call()
        batch.append(perf_counter() - begin)
    return batch


@contextmanager
def _on(cores: set[int]) -> Iterator[None]:
    """This thread runs on one of `cores`."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _row(name: str, size: int, ours: Batches, bare: Batches, together: Batches) -> Row:
    """Microseconds for small exchanges (lower is better), GB/s for large ones."""
    latencies = sorted(second * 1e6 for batch in ours for second in batch)
    cuts = quantiles(latencies, n=100)
    if size == SMALL:
        value, ceiling = _microseconds(ours), _microseconds(bare)
        unit, better = "us", "lower"
    else:
        value, ceiling = (
            median(size * len(batch) / sum(batch) for batch in side) / 1e9 for side in (ours, bare)
        )
        unit, better = "GB/s", "higher"
    return {
        "name": name,
        "value": value,
        "unit": unit,
        "better": better,
        "p50": cuts[49],
        "p99": cuts[98],
        "ceiling": ceiling,
        "ratio": value / ceiling,
        "together": _microseconds(together) if size == SMALL else None,
        "peer": None,
        "peer_ratio": None,
    }


def _microseconds(batches: Batches) -> float:
    return median(median(batch) for batch in batches) * 1e6


class _Echo:
    """A bare socket to a process that answers `nbytes` with `reply` bytes: the ceiling.

    cores:  those that the process may use
    """

    def __init__(
        self,
        engine: LocalEngine,
        name: str,
        tcp: bool,
        nbytes: int,
        reply: int,
        cores: set[int],
    ) -> None:
        self._sent = memoryview(bytearray(nbytes))
        self._reply = memoryview(bytearray(reply))
        listener = socket.socket(socket.AF_INET if tcp else socket.AF_UNIX)
        path = str(engine.sockets / f"{name}.sock")
        listener.bind(("127.0.0.1", 0) if tcp else path)
        listener.listen(1)
        address = list(listener.getsockname()) if tcp else path
        engine.start(
            Task(
                name,
                "shoal.apps.bench:echo",
                {"address": address, "nbytes": nbytes, "reply": reply, "cores": sorted(cores)},
                preload=False,
            )
        )
        self._socket, _ = listener.accept()
        if tcp:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.close()

    def call(self) -> None:
        _send(self._socket, self._sent)
        _receive(self._socket, self._reply)

    def close(self) -> None:
        self._socket.close()


def echo(address: Any, nbytes: int, reply: int, cores: list[int]) -> None:
    """The other side of the ceiling, in a process of its own."""
    os.sched_setaffinity(0, cores)
    tcp = isinstance(address, list)
    sock = socket.socket(socket.AF_INET if tcp else socket.AF_UNIX)
    sock.connect(tuple(address) if tcp else address)
    if tcp:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    incoming, answer = memoryview(bytearray(nbytes)), memoryview(bytearray(reply))
    while _receive(sock, incoming):
        _send(sock, answer)


def _send(sock: socket.socket, data: memoryview) -> None:
    sent = 0
    while sent < len(data):
        sent += sock.send(data[sent:])


def _receive(sock: socket.socket, into: memoryview) -> bool:
    got = 0
    while got < len(into):
        count = sock.recv_into(into[got:])
        if not count:
            return False
        got += count
    return True


def show_rows(console: Console, report: dict[str, Any]) -> None:
    """The rows as a table."""
    table = Table(
        "row",
        "value",
        "p50 us",
        "p99 us",
        "ceiling",
        "ratio",
        "together",
        box=None,
        header_style="bold",
    )
    for row in report["rows"]:
        table.add_row(
            row["name"],
            f"{row['value']:.2f} {row['unit']}",
            f"{row['p50']:.0f}",
            f"{row['p99']:.0f}",
            f"{row['ceiling']:.2f} {row['unit']}",
            f"{row['ratio']:.2f}",
            f"{row['together']:.2f} {row['unit']}" if row["together"] else "",
        )
    console.print(table)
    box = report["machine"]
    console.print(f"{box['cores']} cores, Python {box['python']}, torch {box['torch']}")
