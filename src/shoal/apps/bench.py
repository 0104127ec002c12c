"""`shoal bench`: Shoal beside its ceilings, measured in one run on one machine.

Every row has the median over several batches, the latencies' p50 and p99, and the ceiling: the
same exchange over a bare socket between two processes, in the same run, its batches taken by turns
with ours, so that a busy moment of the machine meets both.
"""

from __future__ import annotations

import os
import platform
import socket
import tempfile
from collections.abc import Callable
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
    """One row: a fresh cluster of one server, and an echo process for the ceiling."""
    name, nbytes, reply = [
        (f"push_pull 64 B {scheme}", SMALL, SMALL),
        (f"push 1 MiB {scheme}", LARGE, 1),
        (f"pull 1 MiB {scheme}", 1, LARGE),
    ][index]
    size = max(nbytes, reply)
    with LocalEngine(folder) as engine:
        tcp = scheme == "tcp"
        server = "tcp://127.0.0.1:0" if tcp else ""
        scheduler = start_cluster(engine, 1, 1, server_listen=server)
        raw = _Echo(engine, tcp, nbytes, reply)
        client = Client(scheduler, ClientOptions())
        try:
            client.create_table(TableSpec("bench", size // 4, merge="sum"))
            call = _call(client, index, size)
            ours, bare = _by_turns(call, raw.call, CALLS[size], rounds)
        finally:
            raw.close()
            client.close()
        engine.finish()
    return _row(name, nbytes + reply, size, ours, bare)


def _call(client: Client, index: int, size: int) -> Callable[[], object]:
    values = torch.ones(size // 4)
    out = torch.empty(size // 4)
    if index == 0:
        return lambda: client.blocking.push_pull("bench", values, out=out)
    if index == 1:
        return lambda: client.blocking.push("bench", values)
    return lambda: client.blocking.pull("bench", out=out)


Batches = list[list[float]]  # seconds of each call, batch by batch


def _by_turns(
    ours: Callable[[], object], bare: Callable[[], object], calls: int, rounds: int
) -> tuple[Batches, Batches]:
    measured: tuple[Batches, Batches] = ([], [])
    for call in (ours, bare):
        for _ in range(WARM_UP):
            call()
    for _ in range(rounds):
        for call, batches in zip((ours, bare), measured, strict=True):
            batch = []
            for _ in range(calls):
                begin = perf_counter()
                call()
                batch.append(perf_counter() - begin)
            batches.append(batch)
    return measured


def _row(name: str, exchanged: int, size: int, ours: Batches, bare: Batches) -> Row:
    """Microseconds for small exchanges (lower is better), GB/s for large ones."""
    latencies = sorted(second * 1e6 for batch in ours for second in batch)
    cuts = quantiles(latencies, n=100)
    if size == SMALL:
        value, ceiling = (median(median(b) for b in side) * 1e6 for side in (ours, bare))
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
        "peer": None,
        "peer_ratio": None,
    }


class _Echo:
    """A bare socket to a process that answers `nbytes` with `reply` bytes: the ceiling."""

    def __init__(self, engine: LocalEngine, tcp: bool, nbytes: int, reply: int) -> None:
        self._sent = memoryview(bytearray(nbytes))
        self._reply = memoryview(bytearray(reply))
        listener = socket.socket(socket.AF_INET if tcp else socket.AF_UNIX)
        path = str(engine.sockets / "echo.sock")
        listener.bind(("127.0.0.1", 0) if tcp else path)
        listener.listen(1)
        address = list(listener.getsockname()) if tcp else path
        engine.start(
            Task(
                "echo",
                "shoal.apps.bench:echo",
                {"address": address, "nbytes": nbytes, "reply": reply},
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


def echo(address: Any, nbytes: int, reply: int) -> None:
    """The other side of the ceiling, in a process of its own."""
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
        "row", "value", "p50 us", "p99 us", "ceiling", "ratio", box=None, header_style="bold"
    )
    for row in report["rows"]:
        table.add_row(
            row["name"],
            f"{row['value']:.2f} {row['unit']}",
            f"{row['p50']:.0f}",
            f"{row['p99']:.0f}",
            f"{row['ceiling']:.2f} {row['unit']}",
            f"{row['ratio']:.2f}",
        )
    console.print(table)
    box = report["machine"]
    console.print(f"{box['cores']} cores, Python {box['python']}, torch {box['torch']}")
