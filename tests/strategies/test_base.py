"""The contract of strategies: what is refused."""

from types import MappingProxyType

import pytest

from shoal.errors import InvalidValue
from shoal.strategies import StrategyOptions, strategies

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
