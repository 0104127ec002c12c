"""A job's options, and what its strategy makes of those that are not given."""

import pytest

from shoal.errors import InvalidValue
from shoal.jobs.spec import from_mapping, load_job
from shoal.strategies import strategies

OWN = """
from shoal.strategies.servers import Sync
from shoal.strategies.settings import StrategySettings

class Settings(StrategySettings, frozen=True, kw_only=True):
    optimizer = "adagrad"

class Mine(Sync):
    name = "mine"
    Settings = Settings
"""


def test_a_strategy_says_its_usual_optimizer(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    for name in [*strategies, f"{tmp_path}/own.py:Mine"]:
        usual = {"eamsgd": "sgd", "sync": "adam", f"{tmp_path}/own.py:Mine": "adagrad"}
        job = from_mapping({"strategy": name})
        assert job.optimizer == ""
        assert job.chosen_optimizer == job.resolved.optimizer == usual.get(name, "adam")
        assert job.strategy_options(10).access.name == job.chosen_optimizer
        given = from_mapping({"strategy": name, "optimizer": "rmsprop"})
        assert given.chosen_optimizer == given.resolved.optimizer == "rmsprop"


def test_the_usual_rate_is_that_of_the_usual_optimizer():
    assert from_mapping({"strategy": "eamsgd"}).access_options(1)["lr"] == 0.1
    assert from_mapping({"strategy": "easgd"}).access_options(1)["lr"] == 0.002


def test_no_job_file_is_told(tmp_path):
    with pytest.raises(InvalidValue, match="no job file at"):
        load_job(tmp_path / "absent.toml")
