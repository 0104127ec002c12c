"""Menus: what `shoal chaos` does to processes, done to a simulated cluster."""

import json

import pytest
from click.testing import CliRunner

from shoal.cli import main
from shoal.simulation.faults.schedule import FAULT_NAMES, fault_of
from shoal.simulation.scenario import Scenario, simulate


@pytest.mark.parametrize("name", FAULT_NAMES)
def test_each_fault_is_injected_and_nothing_is_lost(name):
    reports = [simulate(seed, fault_schedule=[fault_of(name)]) for seed in range(4)]
    assert [report.violation for report in reports] == [""] * 4
    assert all(f"scheduled {name}" in report.coverage for report in reports)


def test_a_fault_with_a_rank_and_a_step_hits_that_process_then(monkeypatch):
    scenario, injected = Scenario(4, fault_schedule=[fault_of("kill-server-1@3")]), []
    right = scenario.faults.kill

    def kill(node, role):
        injected.append((scenario.cluster.servers[node].session.rank, scenario.world.now))
        clocks = [s.machine.clock for n, s in scenario.world.nodes.items() if n[0] == "w"]
        assert max(clocks) >= 3
        right(node, role)

    monkeypatch.setattr(scenario.faults, "kill", kill)
    scenario.world.run(until=120.0)
    scenario.check_end()
    assert [rank for rank, _ in injected] == [1]


def test_the_command_takes_a_menu_and_says_how_to_replay_it(monkeypatch):
    done = CliRunner().invoke(
        main, ["simulate", "--seeds", "3", "--faults", "kill-server,stop-scheduler", "--json"]
    )
    report = json.loads(done.stdout.splitlines()[-1])
    assert done.exit_code == 0
    assert report["violations"] == []
    assert report["coverage"]["scheduled kill-server"] == 3
    bad = CliRunner().invoke(main, ["simulate", "--faults", "kill-servers"])
    assert bad.exit_code != 0
    assert "unknown fault 'kill-servers'" in bad.output
