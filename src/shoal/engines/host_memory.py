"""The memory that the tables of a host's servers may take, if no option sets it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

# Besides tables there are: an interpreter with torch in each process (0.2 to 0.3 GB), workers with
# their models, pushes that are being received, copies of rows for checkpoints and new replicas, and
# the system with its file cache. How much they take depends on the job, so a quarter is a choice:
# with too small a margin the system kills processes, with too large a one a table is refused, and
# the reason names the option that raises the limit.
MARGIN = 0.25
MARGIN_LEAST = 512 << 20  # on a small host: the processes alone take this much
LEAST = 64 << 20  # left for tables in any case


def table_memory(servers: int = 1, root: Path = Path("/")) -> int:
    """Return the bytes for the tables of each of the servers that start together on this host.

    root:  the root of the file system, for tests
    """
    total = host_memory(root)
    free = total - max(int(MARGIN * total), MARGIN_LEAST)
    return max(free, LEAST) // max(servers, 1)


def host_memory(root: Path = Path("/")) -> int:
    """Return the memory of this host, or the limit of its control groups if that is less."""
    found = [*_limits(root), *_physical(root)]
    return min(found, default=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def _physical(root: Path) -> Iterator[int]:
    for line in _text(root / "proc/meminfo").splitlines():
        name, _, value = line.partition(":")
        if name == "MemTotal":
            yield int(value.split()[0]) << 10  # it is in KiB


def _limits(root: Path) -> Iterator[int]:
    """Yield the memory limits of this process's control groups and of their parents (v1 and v2)."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:  # v2 has one hierarchy
            base, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            base, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        group = PurePosixPath(path.lstrip("/"))
        # in a container the path may be that of the host, and the container's own group is mounted
        for each in (group, *group.parents):
            limit = _text(base / each / name).strip()
            if limit.isdigit():  # "max" is no limit
                yield int(limit)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
