"""The suites by name, and how their rows are shown."""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from shoal.apps.bench.breakdown import rooms
from shoal.apps.bench.rows import Row
from shoal.apps.bench.suites import SUITES
from shoal.apps.keys import add_certificate, make_authority
from shoal.errors import UsageError
from shoal.node.memory import keep_memory
from shoal.storage.run_folder import RunFolder
from shoal.transport.credentials import default_folder, set_default

PROCESSOR_TIMES = {
    "server_cpu": "server's CPU",
    "bare_cpu": "bare server's",
    "cpu": "CPU of all",
    "peer_cpu": "peer's CPU",
}  # headings of columns, by field; in microseconds of a call


def run_suite(
    suite: str,
    rounds: int | None,
    console: Console,
    data_dirs: Sequence[Path] = (),
    replicas: int = 1,
    transport: str | None = None,
    link: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Measure a suite, and return the object that `--json` prints.

    replicas:   the number of replicas, for `dense`, which measures several beside one, and `moving`
    transport:  what `wire` and `dense` measure alone: unix, tcp or tls; None for unix and tcp
    rounds:     the number of batches; None for the suite's own number
    data_dirs:  the folders in which a suite looks for text, clicks and images
    link:       of `codecs`: the `link`, `model` and `data` for which codecs are compared; None for
                the speed of codecs
    """
    torch.set_num_threads(1)
    keep_memory()
    if replicas > 1 and suite not in ("dense", "moving"):
        raise UsageError(f"replicas are measured by `shoal bench dense` and `moving`, not {suite}")
    if link and suite != "codecs":
        raise UsageError(f"--link, --model and --data are of `shoal bench codecs`, not {suite}")
    name = "chains" if replicas > 1 and suite == "dense" else SUITES[suite]
    name = "links" if link else name
    chosen = import_module(f"shoal.apps.bench.suites.{name}")
    known: dict[str, Any] = {"data_dirs": data_dirs, "replicas": replicas, **(link or {})}
    if transport:
        known["transports"] = (transport,)
    takes = signature(chosen.rows).parameters
    if transport and "transports" not in takes:
        raise UsageError(f"--transport is measured by `shoal bench wire` and `dense`, not {suite}")
    given = {key: known[key] for key in known if key in takes}
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as path, ExitStack() as stack:
        if transport == "tls" and not default_folder():
            stack.callback(set_default(_own_keys(Path(path, "keys"))))
        folder = RunFolder.create(Path(path), suite)
        measured = chosen.rows(folder, rounds or getattr(chosen, "ROUNDS", 25), **given)
        total = None if transport else chosen.COUNT
        rows = list(track(measured, f"bench {suite}", total=total, console=console))
    report = {"suite": suite, "machine": machine(), "rows": rows}
    if suite == "wire" and not transport:
        report["rooms"] = rooms(chosen.SMALL)
    if link:
        report["advice"] = chosen.advice(rows)
    return report


def _own_keys(folder: Path) -> str:
    """Make a certificate of this measurement, and return its folder."""
    make_authority(folder)
    return str(add_certificate(folder, "bench", days=1))


def machine() -> dict[str, Any]:
    """Return a description of this machine, on which the figures are measured."""
    return {
        "cpu": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "system": f"{platform.system()} {platform.release()}",
    }


def show_rows(console: Console, report: dict[str, Any]) -> None:
    """Print the rows as a table."""
    rows = report["rows"]
    more: dict[str, Callable[[Row], str]] = {
        "together": lambda row: f"{figure(row['together'])} {row['unit']}",
        "peer": lambda row: f"{with_error(row['peer'], row.get('peer_error'))} {row['unit']}",
        "peer_ratio": lambda row: f"{row['peer_ratio']:.2f}",
        **{key: partial(_microseconds, key=key) for key in PROCESSOR_TIMES},
    }
    shown = [key for key in more if any(row.get(key) is not None for row in rows)]
    timed = [each for each in ("p50", "p99") if any(row[each] is not None for row in rows)]
    columns = ["row", "value", *(f"{each} us" for each in timed), "ceiling", "ratio"]
    peers = sorted({row["peer_name"] for row in rows if row.get("peer") is not None})
    named = {"peer": ", ".join(peers), "peer_ratio": "ratio"}
    named |= PROCESSOR_TIMES
    headings = [named.get(key, key) for key in shown]
    table = Table(*columns, *headings, box=None, header_style="bold")
    for row in rows:
        table.add_row(
            row["name"],
            f"{with_error(row['value'], row.get('error'))} {row['unit']}",
            *("" if row[each] is None else f"{row[each]:.0f}" for each in timed),
            f"{figure(row['ceiling'])} {row['unit']}",
            f"{row['ratio']:.2f}",
            *(more[key](row) if row.get(key) is not None else "" for key in shown),
        )
    console.print(table)
    if "rooms" in report:
        show_rooms(console, report["rooms"])
    box = report["machine"]
    console.print(f"{box['cores']} cores, Python {box['python']}, torch {box['torch']}")


def _microseconds(row: Row, key: str) -> str:
    return f"{row[key]:.1f} us"


def figure(value: float) -> str:
    """Format a figure, with four decimals if it is less than 1 and with two otherwise.

    >>> figure(0.91449), figure(1.0713), figure(64.55)
    ('0.9145', '1.07', '64.55')
    """
    return f"{value:.4f}" if value < 1 else f"{value:.2f}"


def with_error(value: float, error: float | None) -> str:
    """Format a figure and its standard error, if it has one.

    >>> with_error(0.2697, 0.0021), with_error(0.2697, None)
    ('0.2697 ± 0.0021', '0.2697')
    """
    return figure(value) if error is None else f"{figure(value)} ± {figure(error)}"


def show_rooms(console: Console, spent: dict[str, float]) -> None:
    """Print the time of a small exchange in each of its stages."""
    table = Table("room, of push_pull 64 B", "us", box=None, header_style="bold")
    for room, microseconds in spent.items():
        table.add_row(room, f"{microseconds:.1f}")
    table.add_row("together, in one process and without waiting", f"{sum(spent.values()):.1f}")
    console.print(table)
