"""What becomes of a run when one of its processes is lost: a matrix on real processes.

    python -m tests.tools.losses [--only TEXT] [--jobs 2] [--json]
    python -m tests.tools.losses --table     prints what is promised, as docs/guarantees.md has it

A cell is (how a process is lost) x (its role) x (--on-worker-loss) x (the command). Each run has
two workers, two servers and two replicas, and a failure timeout of 3 s. Its outcome is the exit
status of the command and the workers whose data were done; `expected` says what docs/guarantees.md
promises, and a cell that differs fails the tool.

A process is disconnected on a host of its own, a network namespace: by hand only, because the other
commands have all their processes on one host. That needs root.
"""

import argparse
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import product
from pathlib import Path
from threading import Lock
from typing import Any

import msgspec

from shoal.engines.hosts import Hosts
from tests.tools.scripts.striking import INSIDE, STRUCK_AT

TIMEOUT_S, BACK_S = 3, 5.0
CTR_BACK_S = 13.0  # its failure timeout is 10 s
LIMIT_S = 240.0  # members give a scheduler up that is silent for 120 s
DIGITS, BATCH = 1437, 18  # samples of digits that are trained on, and of a step
OUTSIDE = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP, "stopped and back": signal.SIGSTOP}
CUT = "disconnected and back"
EVIDENCE = "`tests/tools/losses.py`"
HOSTS = Lock()  # names of network namespaces are this process's
TOKEN = secrets.token_urlsafe(24)
MEMBERS = ("scheduler", "server-0", "server-1", "worker-0", "worker-1")
OPTIONS = {
    "run": ("stop", "drop", "replace"),
    "train": ("stop", "drop", "replace", "reassign"),
    "ctr": ("stop",),
    "by hand": ("stop", "drop", "replace"),
}
SCRIPTS = Path(__file__).parent / "scripts"


class Cell(msgspec.Struct, frozen=True):
    """One loss in one run."""

    command: str
    option: str
    role: str
    how: str

    @property
    def name(self) -> str:
        return f"{self.command}, {self.option}: a {self.role} is {self.how}"


class Outcome(msgspec.Struct):
    """What has become of it: the exit status, the workers whose data were done, the last words."""

    status: int
    done: list[int]
    told: str = ""


def cells() -> list[Cell]:
    """All cells that there are."""
    found = []
    for command, options in OPTIONS.items():
        cut = [CUT] if command == "by hand" else []
        hows = {role: [*OUTSIDE, *cut] for role in ("worker", "server", "scheduler")}
        if command != "ctr":
            hows["worker"] += INSIDE
        found += [
            Cell(command, option, role, how)
            for option, (role, each) in product(options, hows.items())
            for how in each
        ]
    return found


def expected(cell: Cell) -> tuple[bool, list[int]]:
    """(whether the command ends well, the workers whose data are done), as the guarantees say."""
    if cell.role == "scheduler" and cell.how == "stopped":
        return False, []
    if cell.role != "worker" or cell.option in ("replace", "reassign"):
        return True, [0, 1]
    if cell.option == "drop":
        return True, [0]
    return False, []


def table() -> str:
    """What is promised, in Markdown: a line for all losses of a role with the same outcomes."""
    options = list(dict.fromkeys(option for of in OPTIONS.values() for option in of))
    rows: dict[tuple[str, ...], list[str]] = {}
    for role, how in dict.fromkeys((each.role, each.how) for each in cells()):
        said = [_in_words(expected(Cell("train", option, role, how))) for option in options]
        rows.setdefault((role, *said), []).append(how)
    lines = [["a process", "is lost", *(f"`{each}`" for each in options), "shown by"]]
    lines.append(["---"] * len(lines[0]))
    lines += [[role, ", ".join(hows), *said, EVIDENCE] for (role, *said), hows in rows.items()]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _in_words(outcome: tuple[bool, list[int]]) -> str:
    well, done = outcome
    if not well:
        return "an error"
    return "status 0, all data are done" if len(done) > 1 else "status 0, without its data"


# ---------------------------------------------------------------------------- runs


class Run:
    """A run under way, in a folder of its own."""

    def __init__(self, cell: Cell, folder: Path) -> None:
        self.cell, self.folder = cell, folder
        if cell.how in INSIDE:
            (folder / "inside").write_text(cell.how)

    def command(self) -> list[str]:
        out, common = str(self.folder / "runs"), ["--servers", "2", "--workers", "2"]
        common += ["--replicas", "2", "--out", out]
        if self.cell.command != "ctr":
            common += ["--on-worker-loss", self.cell.option]
        match self.cell.command:
            case "run":
                return ["run", *common, str(self.script("loop.py"))]
            case "train":
                sizes = ["--epochs", "1", "--batch-size", str(BATCH)]
                model = ["--model", f"{self.script('net.py')}:load"]
                return ["train", "digits", *common, *sizes, *model]
            case _:
                path = self.folder / "train.libsvm"
                path.write_text("".join(f"{n % 2} {1 + n % 50}:1\n" for n in range(60_000)))
                sizes = ["--epochs", "20", "--batch-size", "64"]
                return ["train", "ctr", str(path), *common, *sizes]

    def script(self, name: str) -> Path:
        """A script in the run's folder, with what strikes it."""
        shutil.copy(SCRIPTS / "striking.py", self.folder)
        return Path(shutil.copy(SCRIPTS / name, self.folder))

    def began(self) -> bool:
        """Whether it is in the middle of its work."""
        if self.cell.command == "ctr":
            logs = [each.read_text() for each in self.folder.glob("runs/*/events.jsonl")]
            return any(text.count('"kind":"step"') > 5 for text in logs)
        ats = [self.folder / f"at-{rank}" for rank in range(2)]
        return (
            all(each.exists() and each.read_text() for each in ats)
            and min(int(each.read_text() or 0) for each in ats) >= STRUCK_AT
        )

    def pid(self, name: str) -> int:
        [path] = self.folder.glob("runs/*/pids.json")
        return int(json.loads(path.read_text())[name])

    def done(self) -> list[int]:
        if self.cell.command in ("run", "by hand"):
            return [rank for rank in range(2) if (self.folder / f"done-{rank}").exists()]
        results = {
            int(path.parent.name): json.loads(path.read_text()).get("samples", 0)
            for path in self.folder.glob("runs/*/workers/*/result.json")
        }
        if self.cell.option == "reassign" and [*results] == [0]:
            # the others do what worker 1 has not: all but the steps that it had begun
            begun = int((self.folder / "at-1").read_text()) + 1
            return [0, 1] if results[0] + begun * BATCH >= DIGITS else [0]
        return sorted(results)


def wait(true: Callable[[], Any], process: subprocess.Popen[str]) -> bool:
    end = time.monotonic() + LIMIT_S
    while not true():
        if process.poll() is not None or time.monotonic() > end:
            return False
        time.sleep(0.02)  # polls other processes: there is no event to wait for
    return True


def strike(pid: int, how: str, back_s: float = BACK_S) -> None:
    """Do to a process what is done from outside."""
    if how in OUTSIDE:
        os.kill(pid, OUTSIDE[how])
    if how == "stopped and back":
        time.sleep(back_s)  # the fault lasts so long
        with suppress(ProcessLookupError):  # the engine has ended it
            os.kill(pid, signal.SIGCONT)


def of_a_command(cell: Cell, folder: Path) -> Outcome:
    run = Run(cell, folder)
    command = [sys.executable, str(SCRIPTS / "soon.py"), str(TIMEOUT_S), *run.command()]
    with (folder / "told").open("w") as told:
        process = subprocess.Popen(command, stdout=told, stderr=told, text=True)
        if cell.how in OUTSIDE and wait(run.began, process):
            name = "scheduler" if cell.role == "scheduler" else f"{cell.role}-1"
            strike(run.pid(name), cell.how, CTR_BACK_S if cell.command == "ctr" else BACK_S)
        status = _end(process)
    return Outcome(status, run.done(), (folder / "told").read_text()[-300:])


def by_hand(cell: Cell, folder: Path, hosts: Hosts | None) -> Outcome:
    """A cluster of processes that this one starts, as somebody would: it replaces what is lost."""
    run = Run(cell, folder)
    script = run.script("loop.py")
    address = f"unix://{folder}/private/s.sock" if hosts is None else hosts.address("scheduler")
    started: dict[str, subprocess.Popen[str]] = {}
    ended: list[subprocess.Popen[str]] = []

    def start(name: str, *words: str) -> None:
        role = name.partition("-")[0]
        where = "--listen" if role == "scheduler" else "--scheduler"
        command = [sys.executable, "-m", "shoal", role, where, address, *words]
        if hosts is not None:
            command = ["ip", "netns", "exec", Path(hosts.namespace(name)).name, *command]
        ended.extend([started[name]] if name in started else [])
        with (folder / f"{name}.told").open("a") as told:
            # SHOAL_WORLD_SIZE is for one that replaces another
            env = {**os.environ, "SHOAL_WORLD_SIZE": "2", "SHOAL_TOKEN": TOKEN}
            started[name] = subprocess.Popen(command, stdout=told, stderr=told, text=True, env=env)

    sizes = ["--servers", "2", "--workers", "2", "--replicas", "2", "--failure-timeout-s", "3"]
    scheduler = [*sizes, "--on-worker-loss", cell.option, "--state", str(folder / "state")]
    scheduler += ["--elastic"] if cell.option == "replace" else []
    worker = ("--on-worker-loss", "stop" if cell.option == "stop" else "drop")
    try:
        start("scheduler", *scheduler)
        for rank in range(2):
            start(f"server-{rank}", "--rank", str(rank))
            start(f"worker-{rank}", "--rank", str(rank), *worker, str(script))
        struck = f"{cell.role}-1" if cell.role != "scheduler" else "scheduler"
        lost = started[struck]
        if cell.how in OUTSIDE and wait(run.began, started["scheduler"]):
            strike(lost.pid, cell.how)
        if hosts is not None and wait(run.began, started["scheduler"]):
            hosts.cut(struck)
            time.sleep(BACK_S)  # the fault lasts so long
            hosts.mend(struck)
        if cell.how in INSIDE:
            wait((folder / "struck").exists, started["scheduler"])
        if cell.role == "scheduler" and cell.how == "killed":
            lost.wait()
            start("scheduler", *scheduler)
        if cell.role == "worker" and cell.option == "replace":
            # its place is taken until it counts as dead
            said = folder / "scheduler.told"
            wait(lambda: "lost {'name': 'worker-1'" in said.read_text(), started["scheduler"])
            start("worker-1", "--rank", "1", *worker, str(script))
        back = cell.role == "scheduler" and cell.how in ("stopped and back", CUT)
        statuses = [_end(each) for each in started.values() if back or each is not lost]
    finally:
        for each in (*started.values(), *ended):
            each.kill()
            each.wait()
    told = (folder / "scheduler.told").read_text()[-300:]
    return Outcome(max(map(abs, statuses)), run.done(), told)


def _end(process: subprocess.Popen[str]) -> int:
    try:
        return process.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        process.terminate()
        process.wait()
        return 124


def outcome(cell: Cell) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="shoal-losses-") as folder:
        Path(folder).chmod(0o700)
        if cell.command != "by hand":
            return of_a_command(cell, Path(folder))
        if cell.how != CUT:
            return by_hand(cell, Path(folder), None)
        with HOSTS, Hosts(MEMBERS) as hosts:
            return by_hand(cell, Path(folder), hosts)


def problem(cell: Cell, found: Outcome) -> str:
    """How an outcome differs from what is promised; "" if it does not."""
    well, done = expected(cell)
    if (found.status == 0) != well:
        return f"status {found.status}: {found.told}"
    return f"data of {found.done} are done, not of {done}" if well and found.done != done else ""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="cells whose names have this")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--table", action="store_true")
    asked = parser.parse_args(arguments)
    if asked.table:
        print(table(), end="")
        return 0
    chosen = [each for each in cells() if asked.only in each.name]
    failed = 0
    told = {}
    with ThreadPoolExecutor(asked.jobs) as pool:
        for cell, found in zip(chosen, pool.map(outcome, chosen), strict=True):
            wrong = problem(cell, found)
            failed += bool(wrong)
            told[cell.name] = {"status": found.status, "done": found.done, "wrong": wrong}
            if not asked.json:
                shown = f"status {found.status}, done {found.done}"
                print(f"{cell.name:60} {shown}{'   WRONG: ' + wrong if wrong else ''}", flush=True)
    if asked.json:
        print(json.dumps(told, indent=1))
    else:
        print(f"{len(chosen)} cells, {failed} not as promised")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
