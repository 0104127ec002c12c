"""kill -9 of a server on real processes: what was acknowledged is there, once."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.real

# Each push adds 1 to a key of its own; what was acknowledged is written down after it was.
SCRIPT = """
import json, sys
from pathlib import Path
import torch, shoal

kind, rule, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
context = shoal.init()
client, rank, pushes = context.client, context.rank, 300
rows = pushes * context.world_size if kind == "dense" else 0
bound = {"max_rows": 4 * pushes * context.world_size} if kind == "bounded" else {}
kind = "dense" if kind == "dense" else "sparse"
consistency = {"asp": shoal.asp(), "ssp": shoal.ssp(1), "bsp": shoal.bsp()}[rule]
client.create_table(
    shoal.TableSpec("kv", rows, (2,), kind=kind, merge="sum", consistency=consistency, **bound)
)
if bound:  # a table in which keys make room for others all the time
    few = shoal.TableSpec("few", 0, (1,), kind="sparse", consistency=consistency, max_rows=32)
    client.create_table(few)
client.barrier("start")
acknowledged = []
for number in range(pushes):
    key = rank * pushes + number
    pushed = client.push("kv", torch.ones(1, 2), keys=torch.tensor([key]))
    if bound:
        client.push("few", torch.ones(9, 1), keys=torch.randperm(200)[:9]).wait()
    if rule != "asp":
        client.advance()
    pushed.wait()
    acknowledged.append(key)
    if number == pushes // 3:
        (folder / f"going-{rank}").touch()
    if number % 40 == 0:
        assert (client.pull("kv", keys=torch.tensor(acknowledged[-9:])).wait() == 1).all()
if rule != "asp":
    client.advance(last=True)
client.barrier("done")
(folder / f"{rank}.json").write_text(json.dumps(acknowledged))
if rank == 0:
    found = client.pull("kv", keys=torch.arange(pushes * context.world_size)).wait()
    (folder / "table.json").write_text(json.dumps(found.tolist()))
"""
WORKERS, PUSHES = 2, 300


@pytest.mark.parametrize(
    ("kind", "rule", "victim"),
    [
        ("dense", "ssp", "server-0"),
        ("dense", "bsp", "server-2"),
        ("sparse", "asp", "server-1"),
        ("bounded", "ssp", "server-1"),
    ],
)
def test_every_acknowledged_push_is_applied_once_under_a_death(kind, rule, victim, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with subprocess.Popen(
        [
            sys.executable, "-m", "shoal", "run", "--servers", "3", "--replicas", "2",
            "--workers", str(WORKERS), str(script), kind, rule, str(tmp_path),
        ],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as run:  # fmt: skip
        until = time.monotonic() + 60
        while not (tmp_path / "going-0").exists():
            assert run.poll() is None, run.communicate()
            assert time.monotonic() < until
            time.sleep(0.01)  # polls another process's files; there is no event to wait for
        [pids] = tmp_path.glob("shoal-runs/*/pids.json")
        os.kill(json.loads(pids.read_text())[victim], signal.SIGKILL)
        _, errors = run.communicate(timeout=60)
    assert run.returncode == 0, errors
    for rank in range(WORKERS):
        acknowledged = json.loads((tmp_path / f"{rank}.json").read_text())
        assert acknowledged == list(range(rank * PUSHES, (rank + 1) * PUSHES))
    table = json.loads((tmp_path / "table.json").read_text())
    assert table == [[1.0, 1.0]] * (WORKERS * PUSHES)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["train", "digits", "--replicas", "2"], "--replicas 2 needs at least 2 servers (got 1)"),
        (
            ["train", "word2vec", "--replicas", "3", "--servers", "2"],
            "--replicas 3 needs at least 3 servers (got 2)",
        ),
        (["bench", "sparse", "--replicas", "2"], "are measured by `shoal bench dense`"),
    ],
)
def test_impossible_replica_counts_are_refused(words, says, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "shoal", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode != 0
    assert says in done.stderr
    assert not list(tmp_path.iterdir())
