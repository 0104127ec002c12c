"""What rank 0 knows of the hosts, and what is started where."""

from dataclasses import replace

import pytest

from shoal.engines.base import Task
from shoal.engines.launchers import meeting
from shoal.engines.launchers.meeting import SERVER, Heard, Ranks
from shoal.errors import InvalidValue, NotTrusted
from shoal.transport.base import TOKEN_MIN

ONE = [Heard(rank, "a", "a") for rank in range(3)]
TWO = [Heard(0, "a", "a"), Heard(1, "a", "a"), Heard(0, "b", "b"), Heard(1, "b", "b")]
VIRTUAL = [Heard(0, "a", "a"), Heard(0, "a", "a")]  # two nodes of a launcher on one machine


class Processes:
    def __init__(self):
        self.started = []

    def start(self, task):
        self.started.append(task.name)


def test_ranks_of_one_host_use_unix_sockets():
    ranks = Ranks(ONE)
    assert (ranks.leaders, ranks.listen, ranks.token) == ([0], "", "")


def test_ranks_of_several_hosts_use_tcp_with_a_token(monkeypatch):
    ways = []
    monkeypatch.setattr(meeting, "reachable", lambda *given: ways.append(given) or "10.0.0.7")
    ranks = Ranks(TWO, "eth1")
    assert ways == [(["tcp://b:9"], "eth1")]
    assert (ranks.leaders, ranks.listen) == ([0, 2], "tcp://10.0.0.7:0")
    assert len(ranks.token) >= TOKEN_MIN


def test_servers_of_a_host_share_its_memory():
    ranks, processes = Ranks(VIRTUAL), Processes()
    for number in range(3):
        args = {"listen": "", "servers_here": 3}
        ranks.start(processes, Task(f"server-{number}", "a:b", args))
    [[there]] = ranks.tasks.values()
    assert there["args"]["servers_here"] == 2


def test_nodes_on_one_machine_use_its_loopback():
    assert Ranks(VIRTUAL).listen == "tcp://127.0.0.1:0"


def test_servers_are_spread_over_hosts_and_the_scheduler_is_on_rank_0s():
    ranks, processes = Ranks(VIRTUAL), Processes()
    for name in ("scheduler", "server-0", "server-1", "server-2"):
        ranks.start(processes, Task(name, "a:b", {"listen": "tcp://127.0.0.1:0", "rank": 1}))
    assert processes.started == ["scheduler", "server-0", "server-2"]
    [(rank, [task])] = ranks.tasks.items()
    assert (rank, task["name"]) == ("1", "server-1")
    assert task["args"] == {"listen": "", "rank": 1}  # its host finds its own address


def test_ranks_that_are_not_numbered_by_host_are_refused():
    with pytest.raises(InvalidValue, match="rank 0 is not the first rank of its host"):
        Ranks([Heard(1, "a", "a"), Heard(0, "a", "a")])


def test_ranks_with_other_options_are_refused():
    with pytest.raises(InvalidValue, match="ranks 0 and 2 have different options"):
        Ranks([Heard(0, "a", "a", "x"), Heard(1, "a", "a", "x"), Heard(2, "a", "a", "y")])


OURS = Task("server-1", SERVER, {"listen": "", "imports": ["mine.py"]})


@pytest.mark.parametrize(
    "changed",
    [
        {"entry": "os:system"},
        {"preload": ("os:abort",)},
        {"env": {"LD_PRELOAD": "theirs.so"}},
        {"name": "../../server-1"},
        {"inputs": ({"argument": ["init"], "folder": "/etc", "files": ["passwd"]},)},
        {"args": {"listen": "", "imports": ["theirs.py"]}},
        {"args": {"listen": "", "imports": ["mine.py"], "script": ["theirs.py"]}},
    ],
)
def test_a_store_that_anybody_may_write_to_brings_no_code(changed):
    meeting.check_server(OURS, {"imports": ["mine.py"], "script": []})
    with pytest.raises(NotTrusted, match="no server's, or with other code"):
        meeting.check_server(replace(OURS, **changed), {"imports": ["mine.py"], "script": []})
