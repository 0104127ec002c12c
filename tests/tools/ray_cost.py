"""What Ray costs a run, beside this machine's own engine in the same run.

    python -m tests.tools.ray_cost [--rounds 15]

Two nodes of Ray on this machine. A client pushes and pulls 64 B and 64 MiB, by turns to a server of
the local engine and to one on a node of Ray; medians of batches, as a ratio of the local time to
Ray's. Then a driver that trains on Ray is killed, and what is left is timed.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median

import torch

from shoal.client.client import Client
from shoal.client.options import ClientOptions
from shoal.engines.base import Room
from shoal.engines.cluster import start_cluster
from shoal.engines.local import LocalEngine
from shoal.engines.processes import Processes
from shoal.engines.ray import RayEngine
from shoal.storage.run_folder import RunFolder
from shoal.tables.consistency import asp
from shoal.tables.spec import TableSpec

SIZES = {"64 B": (16, 300), "64 MiB": (16 << 20, 3)}  # elements, calls a batch
BAR = 0.9


def measure(folder: Path, rounds: int) -> dict[str, float]:
    """The local time of each exchange over Ray's."""
    with ExitStack() as stack:
        clients = []
        for name, engine in (("local", LocalEngine()), ("ray", RayEngine(Room()))):
            (folder / name).mkdir()
            run = RunFolder.create(folder / name, name)
            processes = stack.enter_context(Processes(run, engine, ["scheduler", "server-0"]))
            address = start_cluster(processes, 1, 1)
            client = Client(address, ClientOptions(token=processes.token))
            stack.callback(processes.finish)
            stack.callback(client.close)
            clients.append(client)
        found = {}
        for size, (elements, calls) in SIZES.items():
            values, out = torch.ones(elements), torch.empty(elements)
            for client in clients:
                client.create_table(TableSpec(size, elements, consistency=asp()))
            for what in ("push", "pull"):
                calls_of = {
                    "push": [partial(each.blocking.push, size, values) for each in clients],
                    "pull": [partial(each.blocking.pull, size, out=out) for each in clients],
                }
                times: list[list[float]] = [[], []]
                for turn in range(rounds + 1):
                    for call, mine in zip(calls_of[what], times, strict=True):
                        began = time.perf_counter()
                        for _ in range(calls):
                            call()
                        if turn:  # the first warms up
                            mine.append(time.perf_counter() - began)
                found[f"{what} {size}"] = round(median(times[0]) / median(times[1]), 3)
    return found


def killed(folder: Path, address: str) -> float:
    """The seconds until nothing is left of a run whose driver was killed."""
    words = ["train", "digits", "--epochs", "100000", "--engine", "ray", "--out", str(folder)]
    env = {**os.environ, "RAY_ADDRESS": address}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    driver = subprocess.Popen([sys.executable, "-m", "shoal", *words], env=env, **quiet)
    while not [run for run in folder.glob("*/events.jsonl") if '"kind":"step"' in run.read_text()]:
        assert driver.poll() is None
        time.sleep(0.05)  # another process writes
    [pids] = folder.glob("*/pids.json")
    ours = json.loads(pids.read_text()).values()
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    began = time.monotonic()
    while any(_lives(pid) for pid in ours):
        time.sleep(0.01)  # nobody reports it
    return time.monotonic() - began


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--kills", type=int, default=3)
    asked = parser.parse_args(arguments)
    import ray
    from ray.cluster_utils import Cluster

    torch.set_num_threads(1)
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 4, "include_dashboard": False}
    )
    cluster.add_node(num_cpus=4)
    ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
    try:
        with tempfile.TemporaryDirectory(prefix="shoal-ray-") as folder:
            ratios = measure(Path(folder), asked.rounds)
            left = []
            for number in range(asked.kills):
                run = Path(folder, f"killed-{number}")
                run.mkdir()
                left.append(round(killed(run, cluster.address), 2))
    finally:
        ray.shutdown()
        cluster.shutdown()
    print(json.dumps({"local_time_over_rays": ratios, "gone_after_s": left}, indent=1))
    return 0 if min(ratios.values()) >= BAR and max(left) <= 2 else 1


if __name__ == "__main__":
    sys.exit(main())
