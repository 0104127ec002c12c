"""Settings of strategies: every one says what it is, and has a default that works."""

import pytest
from msgspec.structs import fields

from shoal.apps.listing import rows_of, settings
from shoal.strategies import StrategyOptions, strategies
from shoal.tables.spec import Access


@pytest.mark.parametrize("name", list(strategies))
def test_every_setting_has_a_meaning_and_a_default(name):
    kind = strategies[name]
    found = settings(kind)
    assert [each for each, _, _ in found] == [each.name for each in fields(kind.Settings)]
    assert all(meaning for _, _, meaning in found)
    kind(
        StrategyOptions(
            Access("sgd"), workers=4, redundancy=2 if kind.traits.replicates_batches else 1
        )
    )


@pytest.mark.parametrize("name", list(strategies))
def test_every_strategy_names_its_paper(name):
    assert strategies[name].source
    assert strategies[name].__doc__


def test_the_list_shows_settings_with_their_defaults():
    columns, rows = rows_of("strategies")
    assert columns[0] == "strategy, --set NAME=VALUE"
    shown = {row[0].strip(): row[1] for row in rows}
    assert shown["outer_lr=0.7"] == "learning rate of the outer optimizer"
    assert "Douillard et al. 2023, algorithm 1" in shown["diloco"]


@pytest.mark.parametrize("name", list(strategies))
def test_a_strategy_says_where_its_state_is_and_what_happens_on_a_timeout(name):
    kind = strategies[name]
    assert kind.traits.state
    assert kind.traits.late_workers
    _, rows = rows_of("strategies")
    said = [row[1] for row in rows if row[0].strip() in ("its state", "on a time-out")]
    assert {kind.traits.state, kind.traits.late_workers} <= {*said}
