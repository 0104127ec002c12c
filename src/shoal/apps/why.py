"""`shoal why`: who waits for whom in a run, on which rows and clock, and since when."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from shoal.client.tool import ask_run
from shoal.errors import DataMissing, JoinTimeout
from shoal.protocol.admin.status import StatusQuery
from shoal.protocol.messages.reasons import some_of
from shoal.reports.events import read_events
from shoal.storage.run_folder import RunFolder

LIMIT_S = 3.0
WORTH_TELLING = 0.05  # share of the time that others waited for a worker


def explain(where: str, token: str = "") -> dict[str, Any]:
    """Ask a run's scheduler and servers which requests wait, and return the answers.

    where:  the folder of a run on this machine, or its scheduler's address
    token:  the run's token

    Raises:
        DataMissing: no run is under way in that folder
        JoinTimeout: no scheduler answers there
        HandshakeRefused: the run asks for a token, or for another one
    """
    inquiry = StatusQuery(LIMIT_S)
    try:
        address = ask_run(inquiry, where, token)
    except DataMissing as error:
        raise DataMissing(f"{error.message}{_ending(RunFolder(Path(where)))}") from None
    silent = inquiry.silent()
    if "scheduler" in silent:
        raise JoinTimeout(f"no scheduler answers at {address}; has the run ended, or is it stuck?")
    told = inquiry.answers["scheduler"]
    view = inquiry.view
    waits = [
        {
            "at": each.name,
            "who": some_of([who for who, _ in wait.longest], of=wait.count),
            "seconds": max((seconds for _, seconds in wait.longest), default=0.0),
            **msgspec.structs.asdict(wait),
        }
        for each in inquiry.answers.values()
        for wait in each.waits
    ]
    return {
        "view": f"{view.term}.{view.number}" if view is not None else None,
        "servers": [member.name for member in view.servers] if view is not None else [],
        "workers": [member.name for member in view.workers] if view is not None else [],
        "silent": silent,
        "waits": sorted(waits, key=lambda wait: -wait["seconds"]),
        "slow": dict(told.slow),
        "over_s": told.over_s,
    }


def _ending(folder: RunFolder) -> str:
    """Return the reason that a run has ended, to follow a message; empty without a run."""
    if not folder.path.is_dir():
        return ""
    if not folder.events.exists():
        return ": it has left no events"
    endings = [event["reason"] for event in read_events(folder.events) if event["kind"] == "ending"]
    return f": {endings[-1] if endings else 'no reason is known'}"


def show(console: Console, found: dict[str, Any]) -> None:
    """Print the answer as a table."""
    if found["view"] is not None:
        sizes = f"{len(found['servers'])} servers, {len(found['workers'])} workers"
        console.print(f"view {found['view']}: {sizes}")
    table = Table("at", "who", "for", box=None, header_style="bold")
    for wide in ("what", "why"):
        table.add_column(wide, overflow="fold")
    for wait in found["waits"]:
        seconds = f"{wait['seconds']:.2f} s"
        table.add_row(wait["at"], wait["who"], seconds, wait["what"], wait["reason"])
    if found["waits"]:
        console.print(table)
    else:
        console.print("nobody waits")
    for name in found["silent"]:
        console.print(f"{name} does not answer")
    for name, share in found["slow"].items():
        if share >= WORTH_TELLING:
            over = f"the last {found['over_s']:g} s"
            console.print(f"the others have waited for {name} in {share:.0%} of {over}")
