"""Which options each role of a cluster gets that is started by ps-lite's variables."""

import pytest

from shoal.apps import ps_lite
from shoal.apps.ps_lite import become
from shoal.engines.launchers.ps_lite import Part
from shoal.errors import InvalidValue

TOKEN = "a token of sixteen characters"
PART = {"workers": 3, "servers": 2, "scheduler": "tcp://10.0.0.1:9090"}


@pytest.fixture
def became(monkeypatch):
    """The role of a part, as its command would have it."""
    roles = []
    monkeypatch.setattr(ps_lite, "become_scheduler", roles.append)
    monkeypatch.setattr(ps_lite, "become_server", roles.append)

    def play(asked=None, **part):
        become(Part(**{**PART, **part}), "train.py", ["--lr", "0.1"], asked or {}, TOKEN)
        return roles[-1]

    return play


def test_the_scheduler_gets_numbers_and_what_was_asked_of_it(became):
    asked = {"replicas": 2, "memory": "1GiB", "checkpoint_every_s": 5.0}
    role = became(asked, role="scheduler", host="10.0.0.1", port=9090, failure_timeout_s=30)
    assert (role.workers, role.servers, role.replicas) == (3, 2, 2)
    assert (role.listen, role.token) == ("tcp://10.0.0.1:9090", TOKEN)
    assert (role.failure_timeout_s, role.checkpoint_every_s) == (30, 5.0)
    assert role.on_worker_loss == "stop", "as for `shoal run`"
    assert role.join_timeout_s == 600


def test_a_server_gets_the_script_and_what_was_asked_of_it(became, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    role = became({"replicas": 2, "memory": "1GiB"}, role="server", rank=1, drop_messages="10")
    assert role.script == (str(tmp_path / "train.py"), "--lr", "0.1")
    assert (role.scheduler, role.memory) == ("tcp://10.0.0.1:9090", "1GiB")
    assert (role.rank, role.drop_messages, role.token) == (1, "10", TOKEN)
    assert role.init_timeout_s == 600
    other = became({"drop_messages": "5"}, role="server", drop_messages="10", init_timeout_s=9)
    assert (other.drop_messages, other.init_timeout_s) == ("5", 9), "an option beats a variable"


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"workers": 4}, "--workers 4 and DMLC_NUM_WORKER=3"),
        ({"servers": 1}, "--servers 1 and DMLC_NUM_SERVER=2"),
        ({"engine": "ray"}, "--engine belongs"),
        ({"title": "mine"}, "--title belongs"),
        ({"as_json": True}, "--json belongs"),
        ({"sync_timeout_s": 3.0}, "--sync-timeout-s belongs"),
        ({"on_worker_loss": "reassign"}, "--on-worker-loss reassign"),
        ({"slow_workers": "backup"}, "--slow-workers backup"),
        ({"replicas": 5}, "--replicas 5 needs at least 5 servers"),
    ],
)
@pytest.mark.parametrize("role", ["scheduler", "server", "worker"])
def test_options_that_contradict_the_variables_or_belong_to_no_role_are_refused(
    became, role, asked, named
):
    with pytest.raises(InvalidValue, match=named):
        became(asked, role=role)


@pytest.mark.parametrize("seconds", [0.0, -1.0])
@pytest.mark.parametrize("role", ["scheduler", "server", "worker"])
def test_a_time_that_is_none_is_refused(became, role, seconds):
    with pytest.raises(InvalidValue, match="timeout_s"):
        became(role=role, init_timeout_s=seconds)


def test_the_same_numbers_may_be_given_again(became):
    assert became({"workers": 3, "servers": 2}, role="scheduler").workers == 3
