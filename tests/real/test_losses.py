"""Workers that are gone though no signal has killed them, and members that are back."""

import signal
from pathlib import Path

import pytest
import torch

from shoal.apps.script import ScriptApplication, ScriptRun
from shoal.client.client import Client
from shoal.errors import ProcessDied
from shoal.runs.options import RunOptions
from shoal.runs.run import run_here
from shoal.tables.spec import Access, TableSpec
from tests.real.test_by_hand import by_hand, until  # noqa: F401 - a fixture
from tests.real.texts import pattern

pytestmark = pytest.mark.real

SCRIPT = Path(__file__).parent / "scripts" / "gone.py"
LEAVES = ("vanishes", "stopped")


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs the script on two workers, of which one leaves at its fifth step."""
    policy = RunOptions.policy.fget
    soon = property(lambda self: policy(self) | {"failure_timeout_s": 3.0})
    monkeypatch.setattr(RunOptions, "policy", soon)

    def started(leaves, option):
        how = ScriptRun(out=str(tmp_path / "runs"), on_worker_loss=option)
        return run_here(ScriptApplication(SCRIPT, [str(tmp_path), leaves], how))

    started.done = lambda: sorted(each.name for each in tmp_path.glob("done-*"))
    return started


@pytest.mark.parametrize(
    ("leaves", "told"),
    [
        ("vanishes", pattern("losses.vanished")),
        ("stopped", pattern("losses.stopped")),
    ],
    ids=LEAVES,
)
def test_a_run_stops_when_a_worker_is_gone_without_a_word(run, leaves, told):
    """The command ended with status 0, and half of the data was not done."""
    with pytest.raises(ProcessDied, match=told):
        run(leaves, "stop")


@pytest.mark.parametrize("leaves", LEAVES)
def test_a_worker_that_is_gone_without_a_word_is_dropped(run, leaves):
    assert run(leaves, "drop")["lost"] == ["worker-1"]
    assert run.done() == ["done-0"]


@pytest.mark.parametrize("leaves", LEAVES)
def test_a_worker_that_is_gone_without_a_word_is_replaced(run, leaves):
    run(leaves, "replace")
    assert run.done() == ["done-0", "done-1"]


def test_a_server_that_is_back_after_it_was_declared_dead_ends_alone(by_hand):  # noqa: F811
    scheduler = by_hand(
        "scheduler",
        *("--workers", 1, "--servers", 3, "--replicas", 2, "--failure-timeout-s", 3),
    )
    servers = [by_hand("server", "--rank", rank) for rank in range(3)]
    with Client(by_hand.address) as client:
        client.create_table(TableSpec("w", 8, access=Access("sum"), merge="sum"))
        client.blocking.push("w", torch.ones(8))
        servers[1].send_signal(signal.SIGSTOP)
        until(lambda: len(client.view.servers) == 2, lambda: client.view)
        servers[1].send_signal(signal.SIGCONT)
        assert servers[1].wait(20) == 1  # `DeclaredDead`
        client.blocking.push("w", torch.ones(8))
        assert client.blocking.pull("w").tolist() == [2.0] * 8
    assert [each.wait(20) for each in (scheduler, servers[0], servers[2])] == [0, 0, 0]
