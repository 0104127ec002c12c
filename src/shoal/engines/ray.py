"""RayEngine: the nodes of a Ray cluster as the hosts of a run.

    bundle  what one process needs; Ray reserves those of all processes, or none
    actor   one on each node that has bundles: it has a fork server as its child, and is the host's
            keeper (`engines.remote`)

Ray places, and says when an actor has ended. All else goes between a keeper and the desk, and among
the run's own processes. Actors get JSON text, so that nothing of ours is pickled.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread, current_thread, main_thread
from time import monotonic
from typing import Any

import msgspec

from shoal.engines.addresses import between_hosts, own_address
from shoal.engines.base import Engine, Host, HostReport, Reservation, Room, Task
from shoal.engines.launchers.hosts import folder_here
from shoal.engines.remote import Desk, Keeper, ReachableHost, RemoteFiles, RemoteHost
from shoal.errors import InvalidValue, JoinTimeout, ProcessDied
from shoal.extras import require
from shoal.protocol.supervision.supervisor import Exit
from shoal.storage.run_folder import RunFolder
from shoal.storage.scratch import ScratchFolder

log = logging.getLogger("shoal.engine")

COME_S = 60.0  # for an actor to answer: it imports Shoal first
AGAIN_S = 30.0  # for the actor that replaces another, and for the node of its bundle
LOOK_S = 0.2  # between two looks whether it has ended before


class RayEngine(Engine):
    """Hosts on a Ray cluster: the one that this process belongs to, or else a new one here.

    Args:
        room: what each process needs.
    """

    replaces_hosts = True

    def __init__(self, room: Room) -> None:
        self._room = room

    def reserve(self, folder: RunFolder, names: Sequence[str] = ()) -> Reservation:
        ray: Any = require("ray", "--engine ray")
        require("ray.util.scheduling_strategies", "--engine ray")
        if not ray.is_initialized():
            _join(ray)
        bundles = {name: self._room.of(name) for name in names}
        bundles = {name: bundle for name, bundle in bundles.items() if bundle}
        if not bundles:
            bundles = {"any": {"CPU": 0.01}}
        nodes = [each for each in ray.nodes() if each["Alive"]]
        _check_fit(bundles, nodes)
        group = _reserved(ray, bundles, self._room.wait_s)
        try:
            return _Nodes(ray, group, [*bundles], folder)
        except BaseException:
            ray.util.remove_placement_group(group)
            raise


def _join(ray: Any) -> None:
    """Join the Ray cluster of this process, or start one here; signals stay as they are."""
    ends = signal.getsignal(signal.SIGTERM)
    ray.init(log_to_driver=True, logging_level="WARNING", include_dashboard=False)
    if current_thread() is main_thread():
        signal.signal(signal.SIGTERM, ends)


def _check_fit(bundles: dict[str, dict[str, float]], nodes: Sequence[dict[str, Any]]) -> None:
    """Refuse a process that no node has room for, even if nothing else runs there."""
    for name, needs in bundles.items():
        if not any(_fits(needs, each["Resources"]) for each in nodes):
            raise InvalidValue(f"no node of Ray has {_shown(needs)} for {name}: {_listed(nodes)}")
    wanted = _added([*bundles.values()])
    if not _fits(wanted, _added([each["Resources"] for each in nodes])):
        raise InvalidValue(
            f"the run's {len(bundles)} processes need {_shown(wanted)}, and Ray has less: "
            f"{_listed(nodes)}; {_LESS}"
        )


def _reserved(ray: Any, bundles: dict[str, dict[str, float]], wait_s: float) -> Any:
    """Return the placement group of a run's processes.

    Raises:
        InvalidValue: what it needs has not become free in time
    """
    group = ray.util.placement_group([*bundles.values()], strategy="SPREAD")
    if group.wait(wait_s):
        return group
    ray.util.remove_placement_group(group)
    needs = _shown(_added([*bundles.values()]))
    raise InvalidValue(
        f"the run's {len(bundles)} processes need {needs}, which Ray has not had free at once for "
        f"{wait_s:g} s: free are {_shown(ray.available_resources())} of "
        f"{_listed([each for each in ray.nodes() if each['Alive']])}; wait longer (--wait-s), or "
        f"{_LESS}"
    )


_LESS = "ask for less (--worker-cpus, --server-cpus, --workers)"


def _added(resources: Sequence[dict[str, float]]) -> dict[str, float]:
    kinds = sorted({kind for each in resources for kind in each})
    return {kind: sum(each.get(kind, 0) for each in resources) for kind in kinds}


def _fits(needs: dict[str, float], has: dict[str, float]) -> bool:
    return all(has.get(kind, 0) >= amount for kind, amount in needs.items())


def _shown(resources: dict[str, float]) -> str:
    known = {kind: resources[kind] for kind in ("CPU", "GPU", "memory") if kind in resources}
    return ", ".join(f"{amount:g} {kind}" for kind, amount in known.items()) or "nothing"


def _listed(nodes: Sequence[dict[str, Any]]) -> str:
    shown = [f"{each['NodeID'][:8]} has {_shown(each['Resources'])}" for each in nodes]
    return "; ".join(shown) or "there are no nodes"


class _Nodes(Reservation):
    """The nodes with the bundles of one run.

    names:   the processes with bundles, by the bundle's number
    """

    def __init__(self, ray: Any, group: Any, names: Sequence[str], folder: RunFolder) -> None:
        self._ray = ray
        self._group = group
        token = secrets.token_urlsafe(24)
        here = ray.util.get_node_ip_address()
        self._scratch = ScratchFolder(str(os.getpid()))
        self._desk = Desk(between_hosts(here), token)
        placed = ray.util.placement_group_table(group)["bundles_to_node_id"]
        first: dict[str, int] = {}  # the first bundle on each node
        for number in range(len(names)):
            first.setdefault(placed[number], number)
        told = {
            "folder": str(folder.path.resolve()),
            "mark": folder.mark(),
            "desk": self._desk.address,
            "token": token,
            "out": str(folder.path.resolve().parent),
        }
        by_node: dict[str, RayHost] = {}
        self._nodes: list[RayHost] = []
        try:
            for node, bundle in first.items():
                actor = _Actor(ray, group, bundle, self._desk, told | {"label": node[:12]})
                by_node[node] = RayHost(actor, self._scratch.path, self._stopped)
            self._nodes = [*by_node.values()]
            self.hosts = self._nodes
            marks = {folder.mark()}
            for host in self._nodes:
                if host.begin(folder.started_at(), marks):
                    marks.add(host.files.mark())
        except BaseException:
            for host in by_node.values():
                host.stop()
            self._desk.close()
            self._scratch.remove()
            raise
        self._by_name = {name: by_node[placed[number]] for number, name in enumerate(names)}
        self._lend_gpus(names)

    def _lend_gpus(self, names: Sequence[str]) -> None:
        """Tell hosts which GPUs the bundles of their processes have: Ray tells actors alone."""
        self._holders = []
        for number, name in enumerate(names):
            gpus = self._group.bundle_specs[number].get("GPU", 0)
            if gpus:
                how = _placed(self._ray, self._group, number) | {"num_gpus": gpus}
                holder = self._ray.remote(GpuHolder).options(**how).remote()
                ids = json.loads(self._ray.get(holder.ids.remote()))
                self._by_name[name].gpus[name] = ",".join(map(str, ids))
                self._holders.append(holder)

    def host(self, name: str) -> Host:
        return self._by_name.get(name, self.hosts[0])

    def _stopped(self) -> None:
        """Give the reservation back, once all hosts are stopped."""
        if all(each.stopped for each in self._nodes):
            self._desk.close()
            self._scratch.remove()
            with suppress(Exception):  # the cluster may be gone
                self._ray.util.remove_placement_group(self._group)


class _Actor:
    """Starts the actor of a bundle, as often as it is needed.

    told:  what it has to know
    """

    def __init__(self, ray: Any, group: Any, bundle: int, desk: Desk, told: dict[str, str]) -> None:
        self._ray = ray
        self._desk = desk
        self._told = told
        self._starts = 0
        self._options = _placed(ray, group, bundle) | {"max_restarts": 0, "max_concurrency": 2}
        self._actor: Any = None

    def start(self, timeout_s: float) -> RemoteHost:
        """Start it, and return its host.

        Raises:
            ProcessDied: it does not come
        """
        self._starts += 1
        name = f"node-{self._told['label']}-{self._starts}"
        kind = self._ray.remote(HostActor).options(**self._options)
        self._actor = kind.remote(json.dumps(self._told | {"name": name}))
        serving = self._actor.serve.remote()
        host = self._come(name, serving, monotonic() + timeout_s)
        Thread(target=self._watch, args=(serving, host), daemon=True).start()
        return host

    def _come(self, name: str, serving: Any, until: float) -> RemoteHost:
        """Wait until it has connected."""
        while True:
            try:
                return self._desk.host(name, LOOK_S)
            except JoinTimeout:
                if monotonic() < until and not self._ray.wait([serving], timeout=0)[0]:
                    continue
                reason = self._ended(serving) or "it has not come in time"
            except OSError as error:
                reason = str(error)
            raise ProcessDied(f"the actor on node {self._told['label']} has failed: {reason}")

    def _ended(self, serving: Any) -> str:
        """Return why it has ended; "" if it has not."""
        if not self._ray.wait([serving], timeout=0)[0]:
            return ""
        try:
            self._ray.get(serving)
        except Exception as error:  # Ray's classes
            return str(error).strip().rpartition("\n")[2][:300]
        return "it has returned"

    def stop(self) -> None:
        """End it."""
        if self._actor is not None:
            with suppress(Exception):  # it has ended, or the cluster has
                self._ray.kill(self._actor)
            self._actor = None

    def _watch(self, serving: Any, host: RemoteHost) -> None:
        self._ray.wait([serving])
        host.lose(f"its actor has ended: {self._ended(serving)}")


def _placed(ray: Any, group: Any, bundle: int) -> dict[str, Any]:
    """Return the options of an actor that has its place in a bundle, and takes nothing of it."""
    how = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
    return {
        "num_cpus": 0,
        "scheduling_strategy": how(group, placement_group_bundle_index=bundle),
    }


class GpuHolder:
    """An actor that holds the GPUs of a bundle."""

    def ids(self) -> str:
        """Return their numbers, as JSON."""
        import ray

        return json.dumps(ray.get_gpu_ids())


class RayHost(Host):
    """A node of Ray, by its actor; when the actor is lost, the next start has another.

    private:  a private folder here, beside the command
    stopped:  the function to call when it is stopped
    """

    def __init__(self, actor: _Actor, private: Path, stopped: Callable[[], None]) -> None:
        self._actor = actor
        self._told_stopped = stopped
        self._now = actor.start(COME_S)
        self.stopped = False
        self.gpus: dict[str, str] = {}  # what CUDA sees, by process
        self.label = self._now.label
        self.folder = self._now.folder
        self.files: RemoteFiles = self._now.files
        self.private = private

    def begin(self, started_at: float, marks: set[str]) -> bool:
        """Make the run's folder on the node, unless it is there; return whether it was made."""
        if self.files.mark() in marks:
            return False
        self._now.files.begin(started_at + self.files.ahead_s)
        return True

    def address(self, name: str) -> str:
        return self._now.address(name)

    def start(self, task: Task) -> str:
        if self._now.lost:
            log.warning("node %s: another actor is started", self.label)
            self._actor.stop()
            lost, self._now = self._now, self._actor.start(AGAIN_S)
            lost.replaced(self._now)
            self.files.follow(self._now.files)
        if task.name in self.gpus:
            seen = {"CUDA_VISIBLE_DEVICES": self.gpus[task.name]}
            task = replace(task, env={**task.env, **seen})
        return self._now.start(task)

    def signal(self, name: str, number: int) -> None:
        self._now.signal(name, number)

    def fileno(self) -> int:
        return self._now.fileno()

    def reports(self) -> Sequence[HostReport]:
        """Return what has happened; what ends with an actor can be started again, by another."""
        return [
            msgspec.structs.replace(each, host_lost=False) if isinstance(each, Exit) else each
            for each in self._now.reports()
        ]

    def stop(self) -> None:
        if not self.stopped:
            self.stopped = True
            self._now.stop()
            self._actor.stop()
            self._told_stopped()


class HostActor:
    """The actor on a node: a keeper, and a fork server as its child.

    told:  what `_Nodes` says, as JSON
    """

    def __init__(self, told: str) -> None:
        said = json.loads(told)
        folder = folder_here(said, Path(said["out"]))
        listen = own_address(said["desk"])
        host = ReachableHost(folder, listen, said["label"])
        self._over = Event()
        self._keeper = Keeper(said["name"], host, said["desk"], said["token"], lambda task: None)

    def serve(self) -> None:
        """Return when the keeper is closed."""
        self._over.wait()
