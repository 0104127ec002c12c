"""What a script is told goes to its process through the environment, unchanged."""

import pytest
from msgspec.structs import asdict

from shoal.client.defaults import OptimizerDefaults
from shoal.engines.environment import Resumed, ScriptEnvironment
from shoal.errors import InvalidValue

BEFORE = Resumed(40, ("params.float32", "counts"), ((2, 25), (3, 15)))
OTHER = {  # than the default
    "scheduler": "tcp://here:1",
    "token": "secret",
    "run_dir": "/runs/a b",
    "rank": 0,
    "world_size": 3,
    "servers": 2,
    "launcher": "none",
    "rendezvous": "node-0:29500",
    "init_timeout_s": 1e9,
    "sync_timeout_s": 0.5,
    "on_timeout": "drop",
    "collective": "mpi",
    "listen": "tcp://10.0.0.7:0",
    "probe_s": 0.1,
    "drop_messages": "10:3",
    "on_worker_loss": "replace",
    "strategy": "my own.py:Mine",
    "set": {"tau": 5, "mode": "a b'c", "on": True, "x": 1e-7},
    "staleness": 3,
    "optimizer_options": {"lr": 0.05, "betas": [0.9, 0.95], "line_search_fn": "strong_wolfe"},
    "resumed": BEFORE,
}


@pytest.mark.parametrize("name", ScriptEnvironment.__struct_fields__)
def test_each_field_arrives_as_it_was_given(name):
    told = ScriptEnvironment(**{name: OTHER[name]})
    assert ScriptEnvironment.read(told.variables) == told != ScriptEnvironment()
    assert told.variables[f"SHOAL_{name.upper()}"]
    assert sum(map(bool, told.variables.values())) == 1


def test_all_arrive_together():
    told = ScriptEnvironment(**OTHER)
    assert asdict(ScriptEnvironment.read(told.variables)) == asdict(told)
    assert told.defaults == OptimizerDefaults(
        *(OTHER[each] for each in ("strategy", "set", "staleness", "optimizer_options"))
    )


def test_an_environment_without_them_says_nothing():
    assert ScriptEnvironment.read({}) == ScriptEnvironment()
    assert ScriptEnvironment.read(ScriptEnvironment().variables) == ScriptEnvironment()
    assert ScriptEnvironment().defaults == OptimizerDefaults()


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("SHOAL_STALENESS", "-1", "SHOAL_STALENESS='-1' is not a whole number, 0 or more"),
        ("SHOAL_STALENESS", "two", "SHOAL_STALENESS='two' is not a whole number, 0 or more"),
        ("SHOAL_RANK", "1.5", "SHOAL_RANK='1.5' is not a whole number"),
        ("SHOAL_SYNC_TIMEOUT_S", "soon", "SHOAL_SYNC_TIMEOUT_S='soon' is not a number"),
        ("SHOAL_ON_TIMEOUT", "panic", "SHOAL_ON_TIMEOUT is one of wait, ask, drop, not 'panic'"),
        ("SHOAL_SET", "tau", "SHOAL_SET: 'tau' is not NAME=VALUE"),
        (
            "SHOAL_SET",
            "tau='5",
            'SHOAL_SET="tau=\'5" is not NAME=VALUE words: No closing quotation',
        ),
        ("SHOAL_OPTIMIZER_OPTIONS", "lr 0.1", "SHOAL_OPTIMIZER_OPTIONS: 'lr' is not NAME=VALUE"),
        ("SHOAL_RESUMED", '{"clock": "late"}', "SHOAL_RESUMED is not as --resume sets it"),
    ],
)
def test_a_variable_that_cannot_be_read_is_named(name, value, told):
    with pytest.raises(InvalidValue, match=told):
        ScriptEnvironment.read({name: value})
