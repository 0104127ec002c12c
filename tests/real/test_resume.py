"""A run that is resumed from a checkpoint goes on bitwise, whatever its rounds push."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.real.texts import text

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("resume")]  # they share a run

STEPS, AT = 24, 10
SCRIPT = Path(__file__).parent / "scripts" / "partial.py"


def run(folder, *words):
    """What rank 0 has read after each step."""
    ended = shoal("run", "--out", folder, *words, SCRIPT).communicate(timeout=120)
    assert ended[0], ended[1]
    return json.loads(ended[0])


def shoal(*words):
    command = [sys.executable, "-m", "shoal", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def after(clock, read):
    return {step: each for step, each in read.items() if int(step) >= clock}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run on two servers that has left checkpoints: its folder, and what it read."""
    out = tmp_path_factory.mktemp("runs")
    read = run(out, "--servers", 2, "--checkpoint-every", AT)
    assert len(read) == STEPS
    return next(out.glob("partial-*")), read


@pytest.mark.parametrize(("servers", "replicas"), [(1, 1), (2, 2), (3, 1), (5, 3)])
def test_a_run_of_partial_pushes_resumes_bitwise(whole, servers, replicas, tmp_path):
    folder, read = whole
    more = ["--servers", servers, "--replicas", replicas, "--checkpoint-every", AT]
    again = run(tmp_path, *more, "--resume", folder, "--resume-at", AT)
    assert again == after(AT, read)
    if servers == 3:
        folder = next(tmp_path.glob("partial-*"))
        assert run(tmp_path, "--servers", 2, "--resume", folder) == after(2 * AT, read)


def by_hand(folder, roles, scheduler):
    """What a cluster of three servers and two workers says: output, and errors of rank 0."""
    address = f"unix://{folder}/hand.sock"
    listen = ["--listen", address, "--workers", 2, "--servers", 3]
    started = [shoal("scheduler", *listen, *scheduler)]
    started += [shoal("server", "--scheduler", address, *roles) for _ in range(3)]
    workers = ["--scheduler", address, *roles, SCRIPT]
    started += [shoal("worker", "--rank", rank, *workers) for rank in (1, 0)]
    return [process.communicate(timeout=120) for process in started][-1]


def test_a_cluster_started_by_hand_resumes_bitwise(whole, tmp_path):
    folder, read = whole
    roles = ["--resume", folder, "--resume-at", AT]
    _, refused = by_hand(tmp_path, roles, [])
    assert text("resume.fragments_differ") in refused
    assert text("resume.fragments_what_to_do") in refused
    again, errors = by_hand(tmp_path, roles, roles)
    assert again, errors
    assert json.loads(again) == after(AT, read)
