"""A host that is lost with all its processes: MNIST on three namespaces with folders of their own.

    python -m tests.tools.host_loss [--data FOLDER] [--epochs N]

Trains twice on three hosts, each with a server and a worker, with two replicas of each row. In the
second run one host is gone at step 100, with its processes and its folder. Then trains `sync` on
two hosts, and resumes that run on two hosts from its middle. Prints the accuracies, acknowledged
pushes that were lost, files that are not as on their hosts, and losses that differ. Needs root.
"""

from __future__ import annotations

import argparse
import os
import select
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from shoal.apps.chaos.command import _times
from shoal.apps.chaos.processes import OVER
from shoal.apps.chaos.write_log import TABLE, Verdict, judge
from shoal.apps.train.command import TrainApplication
from shoal.engines.base import Host, Reservation, Task
from shoal.engines.host_files import INPUTS
from shoal.engines.hosts import Hosts
from shoal.engines.processes import Processes
from shoal.reports.events import read_events
from shoal.runs.application import Display
from shoal.runs.job import from_mapping
from shoal.runs.run import run_here
from shoal.storage.event_log import NewEvents
from shoal.storage.run_folder import RunFolder
from shoal.storage.shards import SavedShards
from shoal.testing.machines import MachinesEngine

AT_STEP = 100
DATA = Path(__file__).parents[3] / "shared" / "data"
JOB: dict[str, Any] = {"data": "mnist", "model": "mlp", "batch_size": 64, "seed": 1}


def place(machines: str, name: str) -> str:
    """Return the machine of a process: the first has the scheduler, all have a server each."""
    number = name.partition("-")[2]
    return machines[int(number or 0) % len(machines)]


class Machines(MachinesEngine):
    """Keeps the reservation, in which hosts can be lost."""

    reservation: Reservation

    def reserve(self, folder: RunFolder, names: Sequence[str] = ()) -> Reservation:
        self.reservation = super().reserve(folder, names)
        return self.reservation

    def lose(self, label: str) -> None:
        """End a host with all its processes, without a word, and its folder with it."""
        host = next(each for each in self.reservation.hosts if each.label == label)
        pid = host._fork_server.pid  # type: ignore[attr-defined]
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        ends = [os.pidfd_open(int(each)) for each in children]
        os.kill(pid, signal.SIGKILL)
        for end in ends:  # else one makes the folder again
            select.select([end], [], [])
            os.close(end)
        shutil.rmtree(host.folder.path)


class Logged(TrainApplication):
    """A training job whose workers log a write after each step; it loses a host, if one is named.

    write_log:  the folder of the logs, which outlive all hosts
    """

    entry = "shoal.apps.chaos.processes:run_worker"

    def __init__(self, job: dict[str, Any], data: Path, write_log: Path, lose: Any = None) -> None:
        super().__init__(from_mapping(job), [data])
        self._write_log = write_log
        self._lose = lose

    def worker_tasks(self, processes: Processes, started_at: float) -> list[Task]:
        more = {"write_log": str(self._write_log), "seconds": 0.0}
        tasks = super().worker_tasks(processes, started_at)
        return [replace(each, args={**each.args, **more}) for each in tasks]

    def display(self, console: Any, folder: RunFolder) -> Display:
        news = NewEvents(folder.events, ("step",))

        class Watch:
            def __enter__(watch: Any) -> Any:
                return watch.tick

            def __exit__(watch: Any, *_: object) -> None: ...

            def tick(watch: Any) -> None:
                if any(each["step"] >= AT_STEP for each in news()) and self._lose is not None:
                    self._lose()
                    self._lose = None

        return Watch()


def train(
    work: Path, title: str, machines: str, job: dict[str, Any], data: Path, lost: str = ""
) -> tuple[dict[str, Any], Verdict]:
    """Train a job on some machines; return its summary, and the fate of its writes."""
    write_log = work / title / "writes"
    write_log.mkdir(parents=True)
    (write_log / OVER).touch()
    with Hosts([*machines]) as hosts:
        engine = Machines(hosts, work / title, partial(place, machines))
        lose = partial(engine.lose, lost) if lost else None
        job = JOB | job | {"out": str(work / "runs"), "title": title}
        summary = run_here(Logged(job, data, write_log, lose), engine=engine)
    run = Path(summary["run_dir"])
    living = [each for each in engine.reservation.hosts if each.label != lost]
    differ, compared = unlike(living, run)
    print(f"{title}: accuracy {summary['accuracy']:.4f}, lost {summary['lost'] or 'nothing'}")
    print(f"  {compared} files are as on their hosts" if not differ else f"  differ: {differ}")
    verdict = judge(write_log, _times(SavedShards(run / "shards").merged(TABLE.name)))
    if "resume" not in job:
        print(f"  {verdict}")
    print(f"  left on hosts: {summary.get('left_on_hosts', 'nothing')}", flush=True)
    assert not differ
    return summary, verdict


def unlike(hosts: Sequence[Host], run: Path) -> tuple[list[str], int]:
    """Return the files of hosts that are not the same in the run's folder, and how many are."""
    differ, same, events = [], 0, b""
    for host in hosts:
        for name in host.files.listed():
            there, here = host.folder.path / name, run / name
            if name == "events.jsonl":
                events += there.read_bytes().partition(b"\n")[2]
            elif not name.startswith(f"{INPUTS}/"):
                if name.endswith("/state.safetensors"):  # the last checkpoint has it
                    here = max(run.glob(f"checkpoints/*/worker-{name.split('/')[1]}.safetensors"))
                like = here.exists() and digest(here) == digest(there)
                differ += [] if like else [f"{host.label}:{name}"]
                same += like
    collected = {*(run / "events.jsonl").read_bytes().splitlines()}
    differ += ["events.jsonl"] if {*events.splitlines()} - collected else []
    return differ, same


def digest(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()


def losses(run: str) -> dict[tuple[str, int, int], float]:
    """Return the loss of each step, by worker, epoch and step."""
    events = read_events(RunFolder(Path(run)).events, torn=True)
    return {(e["node"], e["epoch"], e["step"]): e["loss"] for e in events if e["kind"] == "step"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--epochs", type=int, default=2)
    given = parser.parse_args()
    job = {"workers": 3, "servers": 3, "replicas": 2, "epochs": given.epochs}
    job |= {"on_worker_loss": "reassign"}
    sync = {"workers": 2, "servers": 2, "checkpoint_every": AT_STEP, "epochs": 1}
    with tempfile.TemporaryDirectory(prefix="host-loss-") as folder:
        run = partial(train, Path(folder))
        whole, _ = run("undisturbed", "abc", job, given.data)
        hurt, verdict = run("one-lost", "abc", job, given.data, lost="b")
        points = 100 * (whole["accuracy"] - hurt["accuracy"])
        print(f"without a host from step {AT_STEP} on: {points:+.2f} points of accuracy")
        first, _ = run("sync", "ab", sync, given.data)
        again, _ = run(
            "resumed", "ab", sync | {"resume": first["run_dir"], "resume_at": AT_STEP}, given.data
        )
        before, after = losses(first["run_dir"]), losses(again["run_dir"])
        unlike = [at for at, loss in after.items() if before.get(at) != loss]
        print(f"resumed at {AT_STEP} on two hosts: {len(after)} losses, {len(unlike)} differ")
    sys.exit(bool(points > 0.5 or verdict.acknowledged_lost or unlike or not after))


if __name__ == "__main__":
    main()
