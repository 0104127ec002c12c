"""The memory that the tables of a host's servers may take, if no option says it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

# Beside tables there are: an interpreter with torch in each process (0.2 to 0.3 GB), workers with
# their models, pushes that are being received, copies of rows for checkpoints and new replicas, and
# the system with its file cache. How much they take depends on the job, so a quarter is a choice:
# too small a margin has the system kill processes, too large a one has a table refused, and the
# reason names the option that raises the limit.
MARGIN = 0.25
MARGIN_LEAST = 512 << 20  # of a small host: the processes alone take so much
LEAST = 64 << 20  # left for tables in any case


def table_memory(servers: int = 1, root: Path = Path("/")) -> int:
    """Bytes for the tables of each of the servers that are started together on this host.

    root:  of the file system, for tests
    """
    total = host_memory(root)
    free = total - max(int(MARGIN * total), MARGIN_LEAST)
    return max(free, LEAST) // max(servers, 1)


def host_memory(root: Path = Path("/")) -> int:
    """The memory of this host, or of this process's control groups if that is less."""
    found = [*_limits(root), *_physical(root)]
    return min(found, default=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def _physical(root: Path) -> Iterator[int]:
    for line in _text(root / "proc/meminfo").splitlines():
        name, _, value = line.partition(":")
        if name == "MemTotal":
            yield int(value.split()[0]) << 10  # it is in KiB


def _limits(root: Path) -> Iterator[int]:
    """The limits of this process's control groups and of those above them (v1 and v2)."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:  # v2 has one hierarchy
            base, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            base, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        group = PurePosixPath(path.lstrip("/"))
        # in a container the path may be the host's: what is mounted is the container's own group
        for each in (group, *group.parents):
            limit = _text(base / each / name).strip()
            if limit.isdigit():  # "max" is no limit
                yield int(limit)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
