"""Memory for tables, if no option says it."""

import pytest

from shoal.engines.host_memory import LEAST, host_memory, table_memory

GIB = 1 << 30


@pytest.fixture
def host(tmp_path):
    """A host with 16 GiB; writes further files of it."""

    def write(**files):
        for path, text in files.items():
            path = tmp_path / path.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    write(proc__meminfo=f"MemTotal: {16 << 20} kB\nMemFree: 1 kB\n")
    write.root = tmp_path
    write.at = lambda path, text: write(**{path.replace("/", "__"): text})
    return write


def test_without_control_groups_it_is_the_physical_memory(host):
    assert host_memory(host.root) == 16 * GIB
    assert table_memory(1, host.root) == 12 * GIB


def test_servers_that_are_started_together_share_it(host):
    assert table_memory(3, host.root) == 4 * GIB


def test_the_smallest_limit_of_the_groups_above_counts_v2(host):
    host.at("proc/self/cgroup", "0::/user/job\n")
    host.at("sys/fs/cgroup/user/job/memory.max", "max\n")
    host.at("sys/fs/cgroup/user/memory.max", f"{4 * GIB}\n")
    assert host_memory(host.root) == 4 * GIB


def test_the_groups_of_v1(host):
    host.at("proc/self/cgroup", "5:cpu,cpuacct:/\n4:memory:/job\n")
    host.at("sys/fs/cgroup/memory/job/memory.limit_in_bytes", f"{2 * GIB}\n")
    host.at("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    assert host_memory(host.root) == 2 * GIB


def test_in_a_container_the_mounted_group_is_its_own(host):
    host.at("proc/self/cgroup", "0::/docker/abc\n")
    host.at("sys/fs/cgroup/memory.max", f"{GIB}\n")
    assert host_memory(host.root) == GIB
    assert table_memory(1, host.root) == GIB // 2  # the processes need as much


def test_a_tiny_host_has_some(host):
    host.at("proc/meminfo", "MemTotal: 102400 kB\n")
    assert table_memory(1, host.root) == LEAST


def test_this_host_has_some():
    assert host_memory() >= table_memory() > 0
