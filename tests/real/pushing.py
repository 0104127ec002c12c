"""A cluster whose worker pushes to tables side by side, and says how long each push took."""

import time
from functools import partial
from pathlib import Path
from threading import Thread

import torch

from shoal.client.client import Client
from shoal.client.options import ClientOptions
from shoal.engines.base import Task
from shoal.engines.cluster import cluster_tasks
from shoal.engines.options import SchedulerRole, ServerRole
from shoal.reports.events import read_events
from shoal.tables.consistency import asp
from shoal.tables.spec import TableSpec


def push_until(scheduler: str, token: str, folder: str, tables: int) -> None:
    """Push ones to each table, one after the other, until the file `over` is in `folder`.

    Each push adds a line to the file of its table there: when it began, seconds. A last line says
    how many pushes there were, and what the table has in the end.
    """
    options = ClientOptions(token=token, sync_timeout_s=60.0)
    names = [f"t{number}" for number in range(tables)]
    with Client(scheduler, options) as client:
        for name in names:
            client.create_table(TableSpec(name, 64, consistency=asp()))
        threads = [Thread(target=partial(_push, client, name, Path(folder))) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def _push(client: Client, name: str, folder: Path) -> None:
    count = 0
    with (folder / name).open("w") as file:
        while not (folder / "over").exists():
            began = time.monotonic()
            client.push(name, torch.ones(64)).wait()
            print(began, time.monotonic() - began, file=file, flush=True)
            count += 1
            time.sleep(0.005)  # leaves the processor to the others
        print(count, client.pull(name).wait().max().item(), file=file, flush=True)


TOKEN = "the token of this cluster"


class Cluster:
    """Servers, and a worker that pushes to tables, which are on one server each, in turn.

    killed:  processes that may fail
    """

    def __init__(
        self, processes, folder, servers, replicas, tables, imports=(), limits=None, **listens
    ):
        self.processes, self.folder = processes, folder
        self.killed = set()
        self._tables = [folder.path / f"t{number}" for number in range(tables)]
        options = {"token": TOKEN, "folder": str(folder.path), "started_at": time.time()}
        listen = listens.get("scheduler") or processes.address("scheduler")
        scheduler = SchedulerRole(
            listen=listen,
            servers=servers,
            workers=1,
            replicas=replicas,
            **options,
            **(limits or {}),
        )
        server = ServerRole(listen=listens.get("server", ""), token=TOKEN, imports=imports)
        for task in cluster_tasks(processes, scheduler, server):
            processes.start(task)
        given = {"folder": str(folder.path), "tables": tables, "token": TOKEN}
        entry = "tests.real.pushing:push_until"
        processes.start(Task("worker-0", entry, {"scheduler": listen, **given}))
        self.until(lambda: all(len(self.pushes(n)) > 20 for n in range(tables)))

    def until(self, true, limit_s=30.0):
        end = time.monotonic() + limit_s
        while not true():
            assert time.monotonic() < end
            failed = [each for each in self.processes.exits(0.02) if each.code]
            assert not [each for each in failed if each.name not in self.killed]

    def pushes(self, table):
        """(when it began, seconds) of each push that was acknowledged."""
        path = self._tables[table]
        lines = path.read_text().splitlines() if path.exists() else []
        return [tuple(map(float, line.split())) for line in lines if line.count(" ") == 1]

    def longest(self, table, since):
        return max(seconds for began, seconds in self.pushes(table) if began + seconds > since)

    def finish(self):
        """End the worker; no push is lost or doubled."""
        (self.folder.path / "over").touch()
        self.until(lambda: "worker-0" not in self.processes.running, 60.0)
        for table in range(len(self._tables)):
            pushed, held = self.pushes(table)[-1]
            assert pushed == held

    def lost(self):
        return self.named("lost")

    def named(self, kind):
        """The members of the scheduler's events of a kind."""
        return self.values(kind, "name")

    def values(self, kind, field):
        """A field of the events of a kind."""
        events = read_events(self.folder.events)  # but one that is half written
        return [event[field] for event in events if event["kind"] == kind and field in event]
