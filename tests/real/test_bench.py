"""`shoal bench`: its rows are whole, and its ceilings were measured on cores of their own."""

import json
import os
import subprocess
import sys
from collections import Counter
from math import isclose

import pytest

from shoal.apps.bench import breakdown
from shoal.apps.bench.rows import by_turns, on

pytestmark = pytest.mark.real

WIRE = [
    f"{what} {scheme}"
    for scheme in ("unix", "tcp")
    for what in ("push_pull 64 B", "push 1 MiB", "pull 1 MiB")
]
DENSE = [
    f"{what} {size} MiB {scheme}"
    for scheme in ("local", "tcp")
    for size in (1, 64)
    for what in ("push", "pull")
] + [
    f"push 64 MiB {kind}"
    for kind in ("in place", "looked at", "into a round", "into a round in place")
]


SPARSE = ["push_pull 10k x 16", "push_pull 10k x 16, one at a time", "own method 10k x 16"]
SPARSE += ["longest wait, growing", "memory per row"]
WORDS = ["skip-gram 1 worker", "skip-gram 2 workers"]
TRAIN = [f"{what} {size}" for size in ("118k", "24.4M") for what in ("allreduce", "p2p", "sync")]
ALLREDUCE = ["allreduce 4 KiB", "allreduce 64 MiB"]
UNITS = {"wire": "GB/s", "dense": "GB/s", "sparse": "M keys/s", "train": "us", "allreduce": "us"}
UNITS |= {"word2vec": "M words/s", "ctr": "M rows/s", "follower": "M rows/s", "saturation": "k/s"}
OPTIONS = ("--rounds", "1", "--json", "--plot", "rows.svg")
CLICKS = ["lr 1 worker", "lr 2 workers"]


@pytest.mark.parametrize(
    ("suite", "names"),
    [
        ("wire", WIRE),
        ("dense", DENSE),
        ("sparse", SPARSE),
        ("train", TRAIN),
        ("allreduce", ALLREDUCE),
        ("word2vec", WORDS),
        ("ctr", CLICKS),
        ("follower", ["training, followed", "scored"]),
        ("saturation", ["1 worker", "2 workers", "4 workers", "8 workers"]),
    ],
)
def test_a_suite_prints_every_row_beside_its_ceiling(suite, names, tmp_path):
    ended = subprocess.run(
        [
            sys.executable,
            "-m",
            "shoal",
            "bench",
            suite,
            "--rounds",
            "1",
            "--json",
            "--plot",
            "rows.svg",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        env={key: value for key, value in os.environ.items() if key != "SHOAL_DATA"},
    )
    assert ended.returncode == 0, ended.stderr
    report = json.loads(ended.stdout.splitlines()[-1])
    assert [row["name"] for row in report["rows"]] == names
    for row in report["rows"]:
        small = "64 B" in row["name"]
        own = {"longest wait, growing": "ms", "memory per row": "bytes", "scored": "rows/s"}
        assert row["unit"] == ("us" if small else own.get(row["name"], UNITS[suite]))
        assert row["value"] > 0
        assert isclose(row["ratio"], row["value"] / row["ceiling"])
        assert row["p50"] is None or row["p50"] <= row["p99"]
        assert ("together" in row) == small
        if suite in ("train", "allreduce", "ctr"):
            assert isclose(row["peer_ratio"], row["value"] / row["peer"])
        if suite == "train":
            assert row["loss_gap"] < 1e-5
            assert row["cpu"] > 0 < row["peer_cpu"]
    if suite == "saturation":
        assert all(row["server_cpu"] > 0 < row["bare_cpu"] for row in report["rows"])
    if suite == "wire":
        assert len(report["rooms"]) == 7
        assert all(microseconds > 0 for microseconds in report["rooms"].values())
    [picture] = tmp_path.iterdir()
    drawn = picture.read_text()
    assert all(f"<!-- {name} -->" in drawn for name in names)


def test_a_batch_runs_on_its_cores_and_restores_the_affinity():
    before = os.sched_getaffinity(0)
    one = {min(before)}
    with on(one):
        assert os.sched_getaffinity(0) == one
    assert os.sched_getaffinity(0) == before


def test_the_two_sides_of_a_pair_alternate():
    calls = []
    cores = os.sched_getaffinity(0)
    sides = [(lambda: calls.append("a"), cores), (lambda: calls.append("b"), cores)]
    ours, theirs = by_turns(sides, count=2, rounds=3, warm_up=0)
    assert calls == ["a", "a", "b", "b"] * 3
    assert [len(batch) for batch in ours] == [len(batch) for batch in theirs] == [2, 2, 2]


def test_replicas_are_measured_beside_one_and_beside_bare_processes():
    words = ["bench", "dense", "--replicas", "2", "--rounds", "1", "--json"]
    ended = subprocess.run(
        [sys.executable, "-m", "shoal", *words], capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 0, ended.stderr
    small, large = json.loads(ended.stdout.splitlines()[-1])["rows"]
    assert isclose(small["ratio"], small["value"] / small["ceiling"])
    assert large["peer_name"] == "bare processes"
    assert isclose(large["peer_ratio"], large["value"] / large["peer"])


def test_a_small_exchange_takes_few_calls():
    """Machines, tables and connections of worker and server; 120 without the fast path."""
    cluster, calls = breakdown._Cluster(64), Counter()
    try:
        for _ in range(100):
            cluster.exchange()

        def called(frame, event, arg):
            calls[frame.f_code.co_filename] += event == "call"

        sys.setprofile(called)
        try:
            cluster.exchange()
        finally:
            sys.setprofile(None)
    finally:
        cluster.close()
    del calls[breakdown.__file__], calls[__file__]
    assert sum(calls.values()) <= 54, calls
