"""Hosts: several on one machine, each a network namespace of its own, whose links can be disturbed.

    hub: a bridge  --veth-- [server-0 10.77.0.1]  --veth-- [worker-0 10.77.0.2]  ...

Needs Linux, `ip` and `tc`, and root. Other programs do not see the hosts: the bridge is in a
namespace of its own as well.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from shoal.engines.addresses import between_hosts
from shoal.engines.base import Engine, Reservation
from shoal.engines.local import LocalHost, OneHost
from shoal.errors import InvalidValue
from shoal.storage.run_folder import RunFolder

NETWORK = "10.77.0"
PORT = 4000
SLOW_MBIT = 1.0
BURST_S, BURST_BYTES = 0.004, 16_000  # tc's timer, and the least that a frame needs
QUEUE_MS = 500
NAMESPACES = Path("/run/netns")


class Hosts:
    """Namespaces by name; leaving the `with` removes them.

    Attributes:
        names: their names.

    Raises:
        InvalidValue: `ip` or `tc` is missing, or the user is not root
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._numbers = {name: number for number, name in enumerate(names, 1)}
        self._prefix = f"shoal-{os.getpid()}"
        self._hub = f"{self._prefix}-hub"
        self.names = tuple(names)

    def __enter__(self) -> Hosts:
        check_hosts("faults in links")
        try:
            _do("ip", "netns", "add", self._hub)
            self._ip(self._hub, "link", "add", "br0", "type", "bridge")
            self._ip(self._hub, "link", "set", "br0", "up")
            for name in self._numbers:
                self._add(name)
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *raised: object) -> None:
        self._remove()

    def address(self, name: str) -> str:
        """Return the address on which a process of a host listens."""
        return between_hosts(f"{NETWORK}.{self._numbers[name]}", PORT)

    def address_of_any(self, name: str) -> str:
        """Return an address on a host with any free port, for one of several processes there."""
        return between_hosts(f"{NETWORK}.{self._numbers[name]}")

    def namespace(self, name: str) -> str:
        """Return the file that stands for the network namespace of a host."""
        return str(NAMESPACES / self._name(name))

    # ------------------------------------------------------------------ links

    def cut(self, name: str) -> None:
        """Cut a host's link; no connection is closed."""
        self._ip(self._hub, "link", "set", self._port(name), "down")

    def slow(self, name: str, mbit: float = SLOW_MBIT) -> None:
        """Slow a host's link down to a rate in Mbit/s, in each direction."""
        burst = max(BURST_BYTES, round(mbit * 1e6 / 8 * BURST_S))
        rate = ("rate", f"{round(mbit * 1e6)}bit", "burst", f"{burst}", "latency", f"{QUEUE_MS}ms")
        for namespace, device in self._ends(name):
            _do("tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", "tbf", *rate)

    def mend(self, name: str) -> None:
        """Undo `cut` and `slow`."""
        self._ip(self._hub, "link", "set", self._port(name), "up")
        for namespace, device in self._ends(name):
            _try("tc", "-n", namespace, "qdisc", "del", "dev", device, "root")  # it may not be slow

    # ------------------------------------------------------------------ names

    def _name(self, name: str) -> str:
        return f"{self._prefix}-{self._numbers[name]}"

    def _port(self, name: str) -> str:
        return f"port{self._numbers[name]}"

    def _ends(self, name: str) -> tuple[tuple[str, str], tuple[str, str]]:
        return (self._hub, self._port(name)), (self._name(name), "eth0")

    def _ip(self, namespace: str, *words: str) -> None:
        _do("ip", "-n", namespace, *words)

    def _add(self, name: str) -> None:
        own, port = self._name(name), self._port(name)
        _do("ip", "netns", "add", own)
        inside = ("peer", "name", "eth0", "netns", own)
        self._ip(self._hub, "link", "add", port, "type", "veth", *inside)
        self._ip(self._hub, "link", "set", port, "master", "br0", "up")
        self._ip(own, "address", "add", f"{NETWORK}.{self._numbers[name]}/24", "dev", "eth0")
        self._ip(own, "link", "set", "eth0", "up")
        self._ip(own, "link", "set", "lo", "up")

    def _remove(self) -> None:
        for namespace in [self._hub, *map(self._name, self._numbers)]:
            if (NAMESPACES / namespace).exists():
                _try("ip", "netns", "delete", namespace)


def check_hosts(what: str) -> None:
    """Refuse a feature that needs hosts where there can be none.

    Raises:
        InvalidValue: `ip` or `tc` is missing, or the user is not root
    """
    missing = [each for each in ("ip", "tc") if shutil.which(each) is None]
    if missing or os.geteuid() != 0:
        needed = f"{' and '.join(missing)} (package iproute2)" if missing else "to be root"
        raise InvalidValue(f"{what} need {needed}")


class HostsEngine(Engine):
    """Starts each process in a network namespace of its own; one fork server forks them all.

    A host that is lost cannot report, so that the scheduler is told of no end: silence is detected.
    """

    reports_ends = False

    def __init__(self, hosts: Hosts) -> None:
        self._hosts = hosts

    def reserve(self, folder: RunFolder, names: Sequence[str] = ()) -> Reservation:
        return OneHost(_Launched(folder, self._hosts))


class _Launched(LocalHost):
    def __init__(self, folder: RunFolder, hosts: Hosts) -> None:
        super().__init__(folder)
        self._hosts = hosts

    def address(self, name: str) -> str:
        return self._hosts.address(name)

    def network(self, name: str) -> str:
        return self._hosts.namespace(name)


def _try(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, check=False)


def _do(*words: str) -> None:
    done = _try(*words)
    if done.returncode:
        raise InvalidValue(f"`{' '.join(words)}` failed: {done.stderr.strip()}")
