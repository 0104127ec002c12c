"""kill -9 of a server on real processes: what was acknowledged is there, once."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.real.texts import text

pytestmark = pytest.mark.real

SCRIPT = Path(__file__).parent / "scripts" / "acknowledged.py"
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
    with subprocess.Popen(
        [
            sys.executable, "-m", "shoal", "run", "--servers", "3", "--replicas", "2",
            "--workers", str(WORKERS), str(SCRIPT), kind, rule, str(tmp_path),
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
        (
            ["train", "digits", "--replicas", "2"],
            text("replicas.too_few_servers", replicas=2, servers=1),
        ),
        (
            ["train", "word2vec", "--replicas", "3", "--servers", "2"],
            text("replicas.too_few_servers", replicas=3, servers=2),
        ),
        (["bench", "sparse", "--replicas", "2"], text("replicas.measured_elsewhere")),
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
