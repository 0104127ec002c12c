"""Seeds in the normal test run: no violation, enough events and faults, the same trace again."""

import subprocess
import sys

import pytest

from shoal.simulation.scenario import simulate

pytestmark = pytest.mark.seeds
FOUND = {  # seeds that have shown a fault, of the product or of a checker
    5182: "a promised checkpoint was jumped over when a slow worker was dropped",
    40371: "a push streamed into rows of which a checkpoint was due",
    40451: "a removed server read memory that had been given back",
    42071: "the same",
    300839: "the same, seen by the payload that had changed",
    40675: "the last finish was on record, and the end was not",
    40626: "a run ended well whose server had died unheard",
    300215: "a request that came again was streamed, declined and asked for without end",
    302953: "the last fragment of a push came while a checkpoint was due",
    304078: "the end came before others had taken over from a dead server",
    304209: "a server died between its sign of life and the end",
    40009: "a server's answer to the end was lost, and its rows counted as lost",
    40094: "a silent server with another rank than its name was not replaced",
    40228: "a checkpoint was taken when the last worker died, and the next one began before it",
    41974: "workers were refused while their predecessors did not count as dead, and none was left",
    940507: "the same",
    40952: "a run ended before a promised checkpoint was taken",
    900042: "a transfer that began anew opened its shard while the view was adopted",
    924331: "a connection on which nothing came was kept while views followed each other",
    930360: "each message of a view asked for it, and the answers filled the link",
    950727: "a worker and its successor pushed in one round, and the checker took the other's rate",
    952662: "a request had 16 bytes more than its link held, and never came through",
    953998: "a server was busy, then hung, for longer than a sole replica is waited for",
    955828: "a member of which a crashed scheduler had not recorded the loss heard by a view",
    957240: "a worker left while a new head waited for its clock, and a checkpoint was owed",
    964482: "a process was stopped for good before it could join, and nobody knew of it",
    964821: "a worker was killed after the scheduler had its Finish, and before it knew",
    3867826514: "a server left alone was noticed 9 s after a stopped scheduler ran again",
}
SHOW = "from shoal.simulation.scenario import simulate; print(simulate(7).trace_hash)"


@pytest.mark.parametrize("seed", range(24))
def test_a_seed_finds_no_violation(seed):
    report = simulate(seed)
    assert not report.violation, f"shoal simulate --seed {seed} --trace\n{report.violation}"
    assert report.events >= 500
    assert report.faults >= 3


@pytest.mark.parametrize("seed", FOUND)
def test_a_seed_that_found_a_fault_finds_it_no_more(seed):
    report = simulate(seed)
    assert not report.violation, f"shoal simulate --seed {seed} --trace\n{report.violation}"


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
