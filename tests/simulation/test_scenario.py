"""Seeds in the normal test run: no violation, enough events and faults, the same trace again."""

import subprocess
import sys

import pytest

from shoal.simulation.scenario import simulate

pytestmark = pytest.mark.seeds
SHOW = "from shoal.simulation.scenario import simulate; print(simulate(7).trace_hash)"


@pytest.mark.parametrize("seed", range(24))
def test_a_seed_finds_no_violation(seed):
    report = simulate(seed)
    assert not report.violation, f"shoal simulate --seed {seed} --trace\n{report.violation}"
    assert report.events >= 500
    assert report.faults >= 3


def test_the_same_seed_gives_the_same_trace_whatever_the_hash_seed():
    hashes = {
        subprocess.run(
            [sys.executable, "-c", SHOW],
            env={"PYTHONHASHSEED": hash_seed, "PATH": ""},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("0", "12345")
    }
    assert len(hashes) == 1
