"""Which tasks make a cluster that a script starts."""

from types import SimpleNamespace

import pytest

from shoal.engines.cluster import start_cluster


@pytest.fixture
def processes(tmp_path):
    return SimpleNamespace(
        folder=SimpleNamespace(path=tmp_path),
        private=tmp_path,
        token="",
        scheduler=f"unix://{tmp_path}/scheduler.sock",
        address=lambda name: f"unix://{tmp_path}/{name}.sock",
        by_host=lambda role, count: [tuple(range(count))] * count,
    )


def test_all_processes_drop_messages_where_the_script_asks_for_it(processes):
    tasks = []
    start_cluster(processes, servers=2, workers=1, drop_messages="10:3", starts=tasks.append)
    assert [each.name for each in tasks] == ["scheduler", "server-0", "server-1"]
    assert [each.args["drop_messages"] for each in tasks] == ["10:3"] * 3
    tasks.clear()
    start_cluster(processes, servers=1, workers=1, starts=tasks.append)
    assert not any(each.args.get("drop_messages") for each in tasks)
