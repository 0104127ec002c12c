"""A replicated push in bare processes: its copies and additions, and nothing else.

Two servers, each the head of half of the rows and the tail of the other half, as ours are. For each
half: its caller copies it into a ring of shared memory, the head copies it out (the tail may need
it again), adds it to its rows and copies it into another ring, the tail copies it out and adds it.
No frames, no messages but a byte a chunk, no versions and no windows.
"""

from __future__ import annotations

import mmap
import os
import select
import socket
from collections.abc import Callable
from itertools import cycle

import torch
from torch import Tensor

from shoal.engines.base import Task
from shoal.engines.processes import Processes

CHUNK, SLOTS = 1 << 18, 8  # float32 values (1 MiB); chunks in a ring
TAKEN, DONE = b"t", b"d"  # a chunk was put or taken; the tail has added its half


class Ring:
    """Chunks on their way to another process, through memory that both processes share."""

    def __init__(self, memory: int, sock: socket.socket) -> None:
        shared = memoryview(mmap.mmap(memory, 4 * CHUNK * SLOTS))
        self._slots = torch.frombuffer(shared, dtype=torch.float32).view(SLOTS, CHUNK)
        self.socket = sock
        self.done = 0  # chunks that were put here, or taken
        self.credit = SLOTS

    def put(self, values: Tensor, ready: int) -> None:
        """Put the chunks of `values` that are ready and for which there is room."""
        while self.credit and self.done < ready:
            at = self.done * CHUNK
            self._slots[self.done % SLOTS].copy_(values[at : at + CHUNK])
            self.done, self.credit = self.done + 1, self.credit - 1
            self.socket.send(TAKEN)

    def take(self, into: Tensor) -> bool:
        """Take one chunk, and return whether it was the last."""
        at = self.done * CHUNK
        into[at : at + CHUNK].copy_(self._slots[self.done % SLOTS])
        self.done = (self.done + 1) % (len(into) // CHUNK)
        self.socket.send(TAKEN)
        return not self.done


class BareChain:
    """The caller's side: `call` returns when both tails have added their half."""

    def __init__(self, processes: Processes, sources: list[Tensor]) -> None:
        self._sources = cycle([source.chunk(2) for source in sources])
        half = len(sources[0]) // 2
        memories = [os.memfd_create("shoal-bench") for _ in range(4)]
        for each in memories:
            os.ftruncate(each, 4 * CHUNK * SLOTS)
        path = str(processes.private / "bare.sock")
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(path)
            listener.listen(4)
            listener.settimeout(30.0)
            self._rings, between = [], []
            for rank in range(2):
                entry = "shoal.apps.bench.baselines.bare_chain:serve"
                arguments = {"path": path, "half": half}
                processes.start(Task(f"bare-{rank}", entry, arguments, ("torch",)))
                sock, _ = listener.accept()
                self._rings.append(Ring(memories[rank], sock))
                between.append(socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            for rank, ring in enumerate(self._rings):
                (down, _), (_, up) = between[rank], between[1 - rank]
                passed = [memories[rank], memories[2 + rank], memories[3 - rank]]
                passed += [down.fileno(), up.fileno()]
                socket.send_fds(ring.socket, [b"x"], passed)
        for fd in memories:
            os.close(fd)
        for one, other in between:
            one.close()
            other.close()

    def call(self) -> None:
        halves = next(self._sources)
        chunks, waiting = len(halves[0]) // CHUNK, [*self._rings]
        for ring in waiting:
            ring.done = 0
        poll = select.poll()
        by_fd = {ring.socket.fileno(): ring for ring in waiting}
        for fd in by_fd:
            poll.register(fd, select.POLLIN)
        while waiting:
            for ring, values in zip(self._rings, halves, strict=True):
                ring.put(values, chunks)
            for fd, _ in poll.poll():
                ring = by_fd[fd]
                if ring.socket.recv(1) == TAKEN:
                    ring.credit += 1
                else:
                    waiting.remove(ring)

    def close(self) -> None:
        for ring in self._rings:
            ring.socket.close()


def serve(path: str, half: int) -> None:
    """Run one of the two servers."""
    torch.set_num_threads(1)
    caller = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    caller.connect(path)
    _, (mine, next_, before, down_fd, up_fd), _, _ = socket.recv_fds(caller, 1, 5)
    down, up = socket.socket(fileno=down_fd), socket.socket(fileno=up_fd)
    incoming, onward, learnt = Ring(mine, caller), Ring(next_, down), Ring(before, up)
    as_head, as_tail = torch.zeros(half), torch.zeros(half)
    kept, staged = torch.zeros(half), torch.zeros(half)
    ready = 0

    def from_caller() -> None:
        nonlocal ready
        if incoming.take(kept):
            as_head.add_(kept)
            ready, onward.done = half // CHUNK, 0
            onward.put(kept, ready)

    def from_tail(said: bytes) -> None:
        if said == DONE:
            caller.send(DONE)
        else:
            onward.credit += 1
            onward.put(kept, ready)

    def from_head() -> None:
        if learnt.take(staged):
            as_tail.add_(staged)
            up.send(DONE)

    poll = select.poll()
    does: dict[int, Callable[[bytes], None]] = {
        caller.fileno(): lambda said: from_caller() if said == TAKEN else None,
        down.fileno(): from_tail,
        up.fileno(): lambda said: from_head(),
    }
    sockets = {each.fileno(): each for each in (caller, down, up)}
    for fd in does:
        poll.register(fd, select.POLLIN)
    while True:
        for fd, _ in poll.poll():
            said = sockets[fd].recv(1)
            if not said:
                return
            does[fd](said)
