"""ps-lite's variables: each is honoured, or refused by its name."""

import pytest

from shoal.engines.launchers import ps_lite
from shoal.engines.launchers.ps_lite import part_of
from shoal.engines.launchers.world import world_of
from shoal.errors import InvalidValue

# All variables that the sources of ps-lite read or set, by file (github.com/dmlc/ps-lite, master).
OF_PS_LITE = {
    "src/postoffice.cc": [
        "DMLC_PS_VAN_TYPE",
        "DMLC_NUM_WORKER",
        "DMLC_NUM_SERVER",
        "DMLC_ROLE",
        "PS_VERBOSE",
    ],
    "src/van.cc": [
        "DMLC_PS_ROOT_URI",
        "DMLC_PS_ROOT_PORT",
        "DMLC_NODE_HOST",
        "DMLC_INTERFACE",
        "DMLC_RANK",
        "PORT",
        "PS_DROP_MSG",
        "PS_RESEND",
        "PS_RESEND_TIMEOUT",
        "PS_HEARTBEAT_INTERVAL",
        "PS_HEARTBEAT_TIMEOUT",
    ],
    "src/zmq_van.h": ["DMLC_LOCAL", "DMLC_USE_KUBERNETES", "DMLC_PS_WATER_MARK"],
}
NAMES = sorted({name for names in OF_PS_LITE.values() for name in names})
TOKEN = "a token of sixteen characters"
ENV = {
    "DMLC_ROLE": "worker",
    "DMLC_NUM_WORKER": "3",
    "DMLC_NUM_SERVER": "2",
    "DMLC_PS_ROOT_URI": "node-0",
    "DMLC_PS_ROOT_PORT": "9090",
    "SHOAL_TOKEN": TOKEN,
    "HOME": "/home/me",
}
SERVER = {**ENV, "DMLC_ROLE": "server"}
SCHEDULER = {**ENV, "DMLC_ROLE": "scheduler"}
# a value, and what the part of this role says for it
HONOURED = {
    "DMLC_ROLE": ("server", ENV, "role", "server"),
    "DMLC_NUM_WORKER": ("17", ENV, "workers", 17),
    "DMLC_NUM_SERVER": ("0", ENV, "servers", 0),
    "DMLC_PS_ROOT_URI": ("10.0.0.9", ENV, "scheduler", "tcp://10.0.0.9:9090"),
    "DMLC_PS_ROOT_PORT": ("65535", ENV, "scheduler", "tcp://node-0:65535"),
    "DMLC_NODE_HOST": ("10.0.0.7", SERVER, "listen", "tcp://10.0.0.7:0"),
    "DMLC_INTERFACE": ("lo", ENV, "interface", "lo"),
    "DMLC_LOCAL": ("1", ENV, "scheduler", "unix:///home/me/.cache/shoal/ps-lite/9090.sock"),
    "DMLC_USE_KUBERNETES": ("1", SCHEDULER, "listen", "tcp://0.0.0.0:9090"),
    "DMLC_RANK": ("2", ENV, "rank", 2),
    "PORT": ("7777", {**ENV, "DMLC_PS_ROOT_URI": "127.0.0.1"}, "listen", "tcp://127.0.0.1:7777"),
    "PS_VERBOSE": ("2", ENV, "verbose", 2),
    "PS_RESEND": ("1", ENV, "role", "worker"),
    "PS_RESEND_TIMEOUT": ("1500", ENV, "probe_s", 1.5),
    "PS_HEARTBEAT_TIMEOUT": ("30", SCHEDULER, "failure_timeout_s", 30),
    "PS_DROP_MSG": ("10", ENV, "drop_messages", "10"),
    "DMLC_PS_VAN_TYPE": ("zmq", ENV, "role", "worker"),
    "PS_HEARTBEAT_INTERVAL": ("1", ENV, "role", "worker"),
}
REFUSED = {
    "DMLC_PS_ROOT_URI": ["tcp://10.0.0.1", "10.0.0.1:9090", "a b", "[::1]"],
    "DMLC_NODE_HOST": ["10.0.0.1:80", "-a"],
    "DMLC_ROLE": ["joint", "Worker"],
    "DMLC_NUM_WORKER": ["0", "two", "-1", "1.5"],
    "DMLC_NUM_SERVER": ["-1"],
    "DMLC_PS_ROOT_PORT": ["0", "65536", "http"],
    "DMLC_LOCAL": ["yes"],
    "DMLC_USE_KUBERNETES": ["2"],
    "DMLC_RANK": ["-1"],
    "PORT": ["65536"],
    "PS_VERBOSE": ["3"],
    "PS_RESEND": ["2"],
    "PS_RESEND_TIMEOUT": ["0"],
    "PS_HEARTBEAT_TIMEOUT": ["0", "2"],
    "PS_DROP_MSG": ["100", "all"],
    "DMLC_PS_VAN_TYPE": ["ibverbs", "rdma", "p3", "fabric"],
    "DMLC_PS_WATER_MARK": ["1000"],
    "PS_HEARTBEAT_INTERVAL": ["0", "5"],
}


def test_every_variable_of_ps_lite_is_known_and_tested():
    assert {*ps_lite.HONOURED, *ps_lite.REFUSED} == {*NAMES}
    assert {*HONOURED, *REFUSED} == {*NAMES}
    assert {*HONOURED} >= {*ps_lite.HONOURED}
    assert {*REFUSED} >= {*ps_lite.REFUSED}


@pytest.mark.parametrize("name", HONOURED)
def test_each_variable_is_honoured(name):
    value, env, field, expected = HONOURED[name]
    part = part_of({**env, name: value})
    assert getattr(part, field) == expected
    if (field, expected) != ("role", "worker"):  # else it asks for what Shoal does anyway
        assert getattr(part_of(env), field) != expected


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in REFUSED.items() for value in values]
)
def test_each_value_that_cannot_be_honoured_is_refused_by_the_variables_name(name, value):
    with pytest.raises(InvalidValue, match=name) as refused:
        part_of({**ENV, name: value})
    assert value in refused.value.message


def test_a_process_without_a_role_has_no_part():
    assert part_of({"PORT": "8080", "DMLC_LOCAL": "1"}) is None


@pytest.mark.parametrize("name", ps_lite.NEEDED)
def test_what_ps_lite_needs_is_needed(name):
    with pytest.raises(InvalidValue, match=f"DMLC_ROLE=worker without {name}"):
        part_of({key: text for key, text in ENV.items() if key != name})


def test_variables_without_a_role_are_not_ignored():
    with pytest.raises(InvalidValue, match=r"DMLC_NUM_WORKER .*without DMLC_ROLE"):
        part_of({"DMLC_NUM_WORKER": "2"})


def test_nothing_listens_over_tcp_without_a_token():
    without = {key: text for key, text in ENV.items() if key != "SHOAL_TOKEN"}
    with pytest.raises(InvalidValue, match="without SHOAL_TOKEN"):
        part_of(without)
    assert part_of({**without, "DMLC_LOCAL": "1"}).scheduler.startswith("unix://")
    assert TOKEN not in repr(part_of(ENV))


def test_the_scheduler_listens_where_the_others_look_for_it():
    part = part_of({**SCHEDULER, "PORT": "5", "DMLC_NODE_HOST": "10.0.0.7"})
    assert part.listen == part.scheduler == "tcp://node-0:9090"
    local = part_of({**SCHEDULER, "DMLC_LOCAL": "1"})
    assert local.listen == local.scheduler


def test_a_worker_and_a_server_choose_their_address_where_nothing_is_said():
    assert part_of(ENV).listen == part_of(SERVER).listen == ""


def test_places_that_contradict_each_other_are_refused():
    with pytest.raises(InvalidValue, match=r"DMLC_NODE_HOST=a and DMLC_INTERFACE=lo"):
        part_of({**ENV, "DMLC_NODE_HOST": "a", "DMLC_INTERFACE": "lo"})
    with pytest.raises(InvalidValue, match=r"DMLC_INTERFACE=lo with DMLC_LOCAL=1"):
        part_of({**ENV, "DMLC_LOCAL": "1", "DMLC_INTERFACE": "lo"})


@pytest.mark.parametrize("host", ["node-0", "10.0.0.9", "::1", "shoal-scheduler-0-0.shoal", "a_b"])
def test_names_and_numbers_of_hosts_are_taken(host):
    shown = f"[{host}]" if ":" in host else host
    assert part_of({**ENV, "DMLC_PS_ROOT_URI": host}).scheduler == f"tcp://{shown}:9090"


def test_the_time_until_the_cluster_is_complete_can_be_said():
    with pytest.raises(InvalidValue, match="SHOAL_INIT_TIMEOUT_S='soon' is not a number"):
        part_of({**ENV, "SHOAL_INIT_TIMEOUT_S": "soon"})
    assert part_of(ENV).init_timeout_s == 600
    assert part_of({**ENV, "SHOAL_INIT_TIMEOUT_S": "2.5"}).init_timeout_s == 2.5


def test_unknown_variables_are_named_and_those_of_dmlcs_tracker_are_not():
    tracker = {"DMLC_TRACKER_URI": "node-0", "DMLC_TASK_ID": "3", "DMLC_JOB_CLUSTER": "ssh"}
    assert part_of({**ENV, **tracker, "DMLC_FAST": "1"}).unknown == ("DMLC_FAST",)


@pytest.mark.parametrize("role", ["scheduler", "server", "worker"])
def test_what_starts_a_run_of_its_own_is_refused_where_ps_lites_role_is_set(role):
    with pytest.raises(InvalidValue, match=rf"DMLC_ROLE={role}.*shoal run SCRIPT"):
        world_of({**ENV, "DMLC_ROLE": role})
    assert world_of({**ENV, "DMLC_ROLE": role}, "none") is None
