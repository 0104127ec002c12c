"""Ray: the laws of engines on two nodes, what is refused at once, and what is left."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shoal.engines.base import Room
from shoal.engines.ray import RayEngine
from shoal.errors import InvalidValue
from shoal.reports.events import read_events
from shoal.storage.run_folder import RunFolder
from shoal.testing.engines import ENGINE_LAWS, NAMES

pytest.importorskip("ray")
pytestmark = [pytest.mark.real, pytest.mark.xdist_group("ray")]
SHOAL = [sys.executable, "-m", "shoal"]
DIGITS = ["train", "digits", "--epochs", "1", "--servers", "2", "--seed", "1", "--strategy", "sync"]


@pytest.fixture(scope="module")
def cluster():
    """Two nodes of three processors each, and of two GPUs by name, on this machine."""
    import ray
    from ray.cluster_utils import Cluster

    before = {**os.environ}
    node = {"num_cpus": 3, "num_gpus": 2}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    cluster.add_node(**node)
    ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()
    for name in {*os.environ} - {*before}:  # Ray sets some, which other tests would pass on
        del os.environ[name]
    os.environ.update(before)


class Engine(RayEngine):
    """With a bundle for each process of the laws."""

    def reserve(self, folder, names=()):
        return super().reserve(folder, names or NAMES)


@pytest.fixture
def nodes(cluster, tmp_path):
    import ray

    def lose(host):
        ray.kill(host._actor._actor)

    return lambda: (Engine(Room()), tmp_path, lose)


@pytest.mark.parametrize("law", ENGINE_LAWS, ids=lambda law: law.__name__)
def test_nodes_of_ray_keep_the_law(law, nodes, monkeypatch):
    monkeypatch.setattr("shoal.testing.engines.CLOSES_S", 5.0)  # connections of Ray to its actors
    law(nodes)


@pytest.fixture
def run(tmp_path):
    return RunFolder.create(tmp_path, "run")


def free():
    import ray

    return ray.available_resources().get("CPU", 0)


def test_what_no_node_has_is_refused_at_once(cluster, run):
    for room, told in (
        (Room(worker_cpus=4), r"no node of Ray has 4 CPU for worker-0: \w+ has 3 CPU, 2 GPU"),
        (Room(worker_gpus=3), r"no node of Ray has 1 CPU, 3 GPU for worker-0"),
        (Room(server_memory=1 << 60), r"for server-0: \w+ has 3 CPU"),
    ):
        with pytest.raises(InvalidValue, match=told):
            RayEngine(room).reserve(run, NAMES)
    with pytest.raises(InvalidValue, match=r"3 processes need 9 CPU, and Ray has less: \w+ has 3"):
        RayEngine(Room(worker_cpus=3)).reserve(run, ["worker-0", "worker-1", "worker-2"])
    until_free(6)


def test_what_is_not_free_is_refused_after_a_while_and_nothing_is_reserved(cluster, run, tmp_path):
    held = RayEngine(Room(worker_cpus=2)).reserve(run, ["worker-0", "worker-1"])
    try:
        other = RunFolder.create(tmp_path, "other")
        with pytest.raises(InvalidValue, match=r"2 processes need 4 CPU.*free are 2 CPU.*--wait-s"):
            RayEngine(Room(worker_cpus=2, wait_s=0.5)).reserve(other, ["worker-0", "worker-1"])
    finally:
        for host in held.hosts:
            host.stop()
    until_free(6)


def until_free(cpus):
    end = time.monotonic() + 20
    while free() != cpus:
        assert time.monotonic() < end, free()
        time.sleep(0.05)  # Ray tells nobody when it has freed something


def shoal(cluster, *words, **env):
    env = {**os.environ, "RAY_ADDRESS": cluster.address, "OMP_NUM_THREADS": "1", **env}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([*SHOAL, *words], env=env, **pipes)


def losses(out):
    [folder] = out.iterdir()
    events = read_events(folder / "events.jsonl")
    return {(e["node"], e["step"]): e["loss"] for e in events if e["kind"] == "step"}


def test_a_job_trains_on_ray_bit_by_bit_as_it_does_here(cluster, tmp_path):
    runs = {}
    for engine in ("local", "ray"):
        out = tmp_path / engine
        process = shoal(cluster, *DIGITS, "--engine", engine, "--out", str(out))
        _, errors = process.communicate(timeout=100)
        assert process.returncode == 0, errors
        runs[engine] = losses(out)
    assert runs["ray"] == runs["local"]
    until_free(6)


def test_servers_are_spread_over_nodes(cluster, run):
    names = ["scheduler", "server-0", "server-1"]
    held = RayEngine(Room()).reserve(run, names)
    try:
        labels = [held.host(name).label for name in names]
        assert len({*labels[1:]}) == 2
        assert labels[0] in labels[1:]
    finally:
        for host in held.hosts:
            host.stop()
    until_free(6)


def test_workers_see_the_gpus_that_ray_has_given_them(cluster, tmp_path):
    script = tmp_path / "sees.py"
    script.write_text(
        "import os, sys, shoal\ncontext = shoal.init()\n"
        "seen = os.environ.get('CUDA_VISIBLE_DEVICES')\n"
        "print(f'rank {context.rank} sees {seen!r}', flush=True)\n"
        "context.client.barrier('end')\n"
    )
    words = ["run", "--engine", "ray", "--workers", "2", "--worker-gpus", "1", "--output", "all"]
    process = shoal(cluster, *words, "--out", str(tmp_path / "runs"), str(script))
    printed, errors = process.communicate(timeout=100)
    assert process.returncode == 0, errors
    [run] = (tmp_path / "runs").iterdir()
    told = printed + errors + "".join(each.read_text() for each in run.glob("logs/worker-*.log"))
    assert all(f"rank {rank} sees '" in told for rank in range(2)), told
    assert "sees None" not in told
    assert "sees ''" not in told


def test_a_driver_that_is_killed_leaves_nothing(cluster, tmp_path):
    out = tmp_path / "runs"
    process = shoal(cluster, *DIGITS, "--epochs", "10000", "--engine", "ray", "--out", str(out))
    end = time.monotonic() + 60
    while (
        not [*out.glob("*/events.jsonl")]
        or '"kind":"step"' not in next(out.glob("*/events.jsonl")).read_text()
    ):
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.05)  # another process writes
    [run] = out.iterdir()
    pids = json.loads((run / "pids.json").read_text()).values()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    end = time.monotonic() + 10
    while any(lives(pid) for pid in pids):
        assert time.monotonic() < end, [pid for pid in pids if lives(pid)]
        time.sleep(0.02)  # nobody reports it
    until_free(6)


def parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])


def test_a_node_whose_actor_is_killed_gets_another(cluster, tmp_path):
    """Its servers and workers are started again there, and the run goes on to its end."""
    out = tmp_path / "runs"
    words = [*DIGITS, "--epochs", "60", "--replicas", "2", "--on-worker-loss", "replace"]
    process = shoal(cluster, *words, "--engine", "ray", "--out", str(out))
    end = time.monotonic() + 60
    while '"kind":"step"' not in "".join(each.read_text() for each in out.glob("*/events.jsonl")):
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.05)  # another process writes
    [run] = out.iterdir()
    actors = {
        name: parent(parent(pid))
        for name, pid in json.loads((run / "pids.json").read_text()).items()
    }
    [server] = [
        name
        for name, actor in actors.items()
        if name.startswith("server") and actor != actors["scheduler"]
    ]
    os.kill(actors[server], signal.SIGKILL)
    _, errors = process.communicate(timeout=100)
    assert process.returncode == 0, errors
    events = [*read_events(run / "events.jsonl")]
    assert {e["name"] for e in events if e["kind"] == "lost"} >= {server}
    joined = [e.get("name") for e in events if e["kind"] == "joined"]
    assert joined.count(server) == 2
    until_free(6)


def lives(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False


def test_ray_is_refused_among_ranks(tmp_path):
    env = {**os.environ, "RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    words = [*SHOAL, *DIGITS, "--engine", "ray", "--out", str(tmp_path / "runs")]
    ended = subprocess.run(
        words, env=env | {"MASTER_PORT": "1"}, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2
    assert "--engine ray" in ended.stderr
