"""`shoal list`: every name with its options, one of them, and as JSON."""

import json

import pytest
from click.testing import CliRunner

from shoal.apps.listing import records_of, rows_of
from shoal.cli import main
from shoal.errors import UnknownName
from shoal.strategies import strategies


def listed(*words):
    result = CliRunner().invoke(main, ["list", *words, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_every_strategy_is_listed_with_its_settings():
    found = {record["name"]: record for record in listed("strategies")["strategies"]}
    assert found.keys() == {*strategies}
    assert found["allreduce"]["servers"] is False
    tau = next(each for each in found["easgd"]["settings"] if each["name"] == "tau")
    assert tau["default"] == strategies["easgd"].Settings().tau
    assert tau["meaning"]
    shown = CliRunner().invoke(main, ["list", "strategies"]).stdout
    assert all(name in shown for name in found)


@pytest.mark.parametrize(
    ("what", "name"),
    [("strategies", "p2p"), ("tables", "adam"), ("data", "digits"), ("codecs", "qsgd")],
)
def test_one_of_them_can_be_asked_for(what, name):
    [*records] = listed(what, name)[what]
    assert {record["name"] for record in records} == {name}
    assert rows_of(what, name)[1][0][0] == name
    assert len(rows_of(what, name)[1]) < len(rows_of(what)[1])


def test_a_strategy_of_ones_own_can_be_asked_for(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "from shoal.strategies.servers import Sync\nclass Mine(Sync):\n  summary = 'of my own'\n"
    )
    [record] = records_of("strategies", f"{path}:Mine")
    assert record["summary"] == "of my own"


@pytest.mark.parametrize("what", ["strategies", "tables", "data", "codecs"])
def test_an_unknown_name_is_refused(what):
    with pytest.raises(UnknownName, match="'nothing'"):
        records_of(what, "nothing")
