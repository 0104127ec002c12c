"""Ceilings: the same bytes between two bare processes, over a socket or through shared memory."""

from __future__ import annotations

import mmap
import os
import socket
from typing import Any

import torch

from shoal.engines.base import Task
from shoal.engines.processes import Processes
from shoal.transport.credentials import fresh_contexts


class Echo:
    """A bare socket to a process that answers `nbytes` with `reply` bytes.

    scheme:  "unix", "tcp" or "tls", as of addresses
    cores:   the cores that the process may use
    """

    def __init__(
        self,
        processes: Processes,
        name: str,
        scheme: str,
        nbytes: int,
        reply: int,
        cores: set[int],
    ) -> None:
        self._sent = _memory(nbytes)
        self._reply = _memory(reply)
        args = {"nbytes": nbytes, "reply": reply, "cores": sorted(cores)}
        self._socket = _partner(processes, name, "echo", scheme, args)

    def call(self) -> None:
        _send(self._socket, self._sent)
        _receive(self._socket, self._reply)

    def close(self) -> None:
        self._socket.close()


def echo(address: Any, scheme: str, nbytes: int, reply: int, cores: list[int]) -> None:
    """Run the other side of `Echo`, in a process of its own."""
    os.sched_setaffinity(0, cores)
    sock = _connected(address, scheme)
    incoming, answer = _memory(nbytes), _memory(reply)
    while _receive(sock, incoming):
        _send(sock, answer)


class HandOff:
    """Bytes that one process copies into shared memory and another one out, with one hand-off."""

    def __init__(
        self, processes: Processes, name: str, sources: list[memoryview], cores: set[int]
    ) -> None:
        self._sources = sources
        self._at = 0
        size = sources[0].nbytes
        memory = os.memfd_create("shoal-bench")
        os.ftruncate(memory, size)
        self._shared = memoryview(mmap.mmap(memory, size))
        self._byte = _memory(1)
        self._socket = _partner(
            processes, name, "take_over", "unix", {"size": size, "cores": sorted(cores)}
        )
        socket.send_fds(self._socket, [b"x"], [memory])
        os.close(memory)

    def call(self) -> None:
        self._at = (self._at + 1) % len(self._sources)
        self._shared[:] = self._sources[self._at]
        _send(self._socket, self._byte)
        _receive(self._socket, self._byte)

    def close(self) -> None:
        self._socket.close()


def take_over(address: Any, scheme: str, size: int, cores: list[int]) -> None:
    """Run the other side of `HandOff`, in a process of its own."""
    os.sched_setaffinity(0, cores)
    sock = _connected(address, scheme)
    _, (memory,), _, _ = socket.recv_fds(sock, 1, 1)
    shared = memoryview(mmap.mmap(memory, size))
    mine, byte = _memory(size), _memory(1)
    while _receive(sock, byte):
        mine[:] = shared
        _send(sock, byte)


def _memory(nbytes: int) -> memoryview:
    """Return memory on a cache line's edge, as ours is: elsewhere some copies are much slower."""
    view: memoryview = torch.zeros(nbytes, dtype=torch.uint8).numpy().data
    return view


def _partner(
    processes: Processes, name: str, entry: str, scheme: str, args: dict[str, Any]
) -> socket.socket:
    """Start the other side, and return the socket to it."""
    tcp = scheme != "unix"
    listener = socket.socket(socket.AF_INET if tcp else socket.AF_UNIX)
    path = str(processes.private / f"{name}.sock")
    listener.bind(("127.0.0.1", 0) if tcp else path)
    listener.listen(1)
    address = list(listener.getsockname()) if tcp else path
    entry = f"shoal.apps.bench.baselines.ceilings:{entry}"
    processes.start(Task(name, entry, {"address": address, "scheme": scheme, **args}, preload=()))
    connected, _ = listener.accept()
    if tcp:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listener.close()
    if scheme == "tls":
        return fresh_contexts()[0].wrap_socket(connected, server_side=True)
    return connected


def _connected(address: Any, scheme: str) -> socket.socket:
    tcp = scheme != "unix"
    sock = socket.socket(socket.AF_INET if tcp else socket.AF_UNIX)
    sock.connect(tuple(address) if tcp else address)
    if tcp:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return fresh_contexts()[1].wrap_socket(sock) if scheme == "tls" else sock


def _send(sock: socket.socket, data: memoryview) -> None:
    sent = 0
    while sent < len(data):
        sent += sock.send(data[sent:])


def _receive(sock: socket.socket, into: memoryview) -> bool:
    got = 0
    while got < len(into):
        count = sock.recv_into(into[got:])
        if not count:
            return False
        got += count
    return True
