"""The contract of strategies: what is refused."""

from types import MappingProxyType

import pytest

from shoal.errors import InvalidValue, UsageError
from shoal.strategies import StrategyOptions, strategies
from tests.strategies.problems import around, train

RING = MappingProxyType({"exchange": "allreduce"})


@pytest.mark.parametrize(
    ("name", "settings", "on_worker_loss", "on_timeout", "text"),
    [
        ("allreduce", {}, "stop", "ask", ""),
        ("allreduce", {}, "drop", "ask", "on_worker_loss can be 'stop', not 'drop'"),
        ("allreduce", {}, "stop", "drop", "on_timeout can be 'wait' or 'ask', not 'drop'"),
        ("p2p", {}, "drop", "drop", ""),
        ("p2p", {}, "replace", "ask", "can be 'stop' or 'drop', not 'replace'"),
        ("diloco", {}, "replace", "drop", ""),
        ("diloco", RING, "reassign", "wait", "'diloco' .* can be 'stop', not 'reassign'"),
    ],
)
def test_workers_without_servers_go_on_as_they_can(
    name, settings, on_worker_loss, on_timeout, text
):
    strategy = strategies[name](StrategyOptions(workers=2, settings=settings))
    if not text:
        strategy.check_losses(on_worker_loss, on_timeout)
        return
    with pytest.raises(InvalidValue, match=text):
        strategy.check_losses(on_worker_loss, on_timeout)


def own(tmp_path, text):
    path = tmp_path / "mine.py"
    path.write_text(f"from shoal.strategies.local_updates import LocalUpdates\n{text}\n")
    return f"{path}:Mine"


def test_a_strategy_of_ones_own_needs_a_name(tmp_path):
    with pytest.raises(InvalidValue, match=r"mine\.py:Mine has no name: give the class one"):
        strategies[own(tmp_path, "class Mine(LocalUpdates): pass")]


@pytest.mark.parametrize("period", ["-1", "2.5", "None"])
def test_a_period_is_a_number_of_batches(tmp_path, period):
    text = f"class Mine(LocalUpdates):\n  name = 'mine'\n  def period(self, c): return {period}"
    with pytest.raises(InvalidValue, match=f"'mine' has a period of {period}: give a number of"):
        train(own(tmp_path, text), around(2, 4))


def test_without_spread_a_state_cannot_be_replaced():
    with pytest.raises(UsageError, match="'sync' has no `spread`"):
        strategies["sync"](StrategyOptions()).spread(None, True)
