"""`shoal bench`: its rows are whole, and its ceiling was measured on cores of its own."""

import json
import os
import subprocess
import sys
from math import isclose

import pytest

from shoal.apps.bench import _on

pytestmark = pytest.mark.real


def test_the_wire_suite_prints_every_row_beside_its_ceiling(tmp_path):
    ended = subprocess.run(
        [sys.executable, "-m", "shoal.cli", "bench", "wire", "--rounds", "3", "--json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    report = json.loads(ended.stdout.splitlines()[-1])
    names = [row["name"] for row in report["rows"]]
    exchanges = ("push_pull 64 B", "push 1 MiB", "pull 1 MiB")
    assert names == [f"{what} {scheme}" for scheme in ("unix", "tcp") for what in exchanges]
    for row in report["rows"]:
        small = "64 B" in row["name"]
        assert row["unit"] == ("us" if small else "GB/s")
        assert row["value"] > 0
        assert isclose(row["ratio"], row["value"] / row["ceiling"])
        assert row["p50"] <= row["p99"]
        assert (row["together"] is not None) == small
    assert not list(tmp_path.iterdir())


def test_a_batch_runs_where_it_is_told_to_and_nothing_after_it_does():
    before = os.sched_getaffinity(0)
    one = {min(before)}
    with _on(one):
        assert os.sched_getaffinity(0) == one
    assert os.sched_getaffinity(0) == before
