"""A bare server of several clients: what 64 bytes and an answer cost a process that only echoes."""

from __future__ import annotations

import select
import socket
from contextlib import suppress

from shoal.engines.base import Task
from shoal.engines.processes import Processes

SMALL = 64
ASK = b"?" * 8  # how many answers have been sent; asked on a connection of its own


class Crowd:
    """An echo server and its clients, each a process, as long as this is open."""

    def __init__(self, processes: Processes, name: str, clients: int) -> None:
        path = str(processes.private / f"{name}.sock")
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path + ".ready")
        listener.listen(1)
        module = "shoal.apps.bench.baselines.crowd"
        processes.start(
            Task(name, f"{module}:serve", {"path": path, "clients": clients}, preload=())
        )
        self._socket, _ = listener.accept()  # it listens by now
        listener.close()
        for number in range(clients):
            client = Task(f"{name}-{number}", f"{module}:ask", {"path": path}, preload=())
            processes.start(client)
        self._socket.recv(1)  # all clients are connected
        self.pid = processes.pid(name)

    def answers(self) -> float:
        """Return the number of answers that were sent so far."""
        self._socket.sendall(ASK)
        return float(int.from_bytes(self._socket.recv(8, socket.MSG_WAITALL), "little"))

    def close(self) -> None:
        self._socket.close()


def serve(path: str, clients: int) -> None:
    """Answer each message with itself, in a process of its own."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(clients)
    control = socket.socket(socket.AF_UNIX)
    control.connect(path + ".ready")
    connected = {}
    poll = select.epoll()
    poll.register(control.fileno(), select.EPOLLIN)
    for _ in range(clients):
        sock, _ = listener.accept()
        connected[sock.fileno()] = sock
        poll.register(sock.fileno(), select.EPOLLIN)
    control.sendall(b"x")
    answers, into = 0, memoryview(bytearray(SMALL))
    while True:
        for fileno, _ in poll.poll():
            if fileno in connected:
                sock = connected[fileno]
                sock.send(into[: sock.recv_into(into)])
                answers += 1
            elif control.recv(len(ASK)):
                control.sendall(answers.to_bytes(8, "little"))
            else:
                return


def ask(path: str) -> None:
    """Send a message and wait for the answer, again and again, in a process of its own."""
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(path)
    sent, into = bytes(SMALL), memoryview(bytearray(SMALL))
    with suppress(BrokenPipeError, ConnectionResetError):
        while True:
            sock.send(sent)
            if not sock.recv_into(into):
                return
