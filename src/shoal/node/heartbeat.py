"""The heartbeats of a member's process, sent by a thread even while its loop is busy.

A loop that restores a checkpoint or calls a user's handler sends nothing meanwhile, and its member
must not be taken for dead. The thread has a connection of its own to the scheduler, and touches
neither the machine nor its node: it reads two numbers that the loop writes, and the stack of the
loop's thread.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread, get_ident
from types import FrameType

from msgspec.structs import replace

from shoal.errors import ShoalError
from shoal.factories import LIBRARIES, SHOAL, call_user_code
from shoal.node.dialer import CONNECT_TIMEOUT_S
from shoal.protocol.machine import Arrival, Discard
from shoal.protocol.messages.base import Message
from shoal.protocol.messages.membership import ProcessHeartbeat
from shoal.protocol.views import NodeId
from shoal.transport import Connection, Identity, transport_for

EVERY_S = 1.0
PLACE_CHARACTERS = 200


class LoopProgress:
    """The number of turns of a node's loop, and the thread that has made the last one."""

    __slots__ = ("thread", "turns")

    def __init__(self) -> None:
        self.turns = 0
        self.thread = 0

    def turn(self) -> None:
        self.turns += 1
        self.thread = get_ident()

    def place(self) -> tuple[str, bool]:
        """Return where the loop's thread is in the code, and whether it runs a user's code."""
        frame, stack = sys._current_frames().get(self.thread), list[FrameType]()
        while frame is not None:
            stack.append(frame)
            frame = frame.f_back
        if not stack:
            return "the end of its thread", False
        shown = next((each for each in stack if not _of_a_library(each)), stack[0])
        code = shown.f_code
        place = f"{code.co_qualname} ({Path(code.co_filename).name}:{shown.f_lineno})"
        in_user_code = any(each.f_code is call_user_code.__code__ for each in stack)
        return place[:PLACE_CHARACTERS], in_user_code


def _of_a_library(frame: FrameType) -> bool:
    """Return whether a frame is of a library other than Shoal: its caller says more."""
    file = frame.f_code.co_filename
    return not file.startswith(SHOAL) and file.startswith(LIBRARIES)


class HeartbeatThread:
    """Sends the heartbeats of a process.

    Args:
        me: the identity of the member.
        scheduler: the scheduler's address.
        progress: the progress of the member's loop.
        incarnation: the function that returns the member's incarnation, 0 before it has joined.
        every_s: the seconds between heartbeats.
    """

    def __init__(
        self,
        me: Identity,
        scheduler: str,
        progress: LoopProgress,
        incarnation: Callable[[], int],
        every_s: float = EVERY_S,
    ) -> None:
        self._me = me
        self._scheduler = scheduler
        self._progress = progress
        self._incarnation = incarnation
        self._every_s = every_s
        self._turns = -1  # at the last heartbeat
        self._connection: Connection | None = None
        self._closed = Event()
        self._thread = Thread(target=self._run, name="shoal-heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Tell the thread to end; it closes its connection, even one that it is still making."""
        self._closed.set()

    def _run(self) -> None:
        try:
            while not self._closed.wait(self._every_s):
                with suppress(ShoalError, OSError):  # the next heartbeat tries again
                    self._beat()
        finally:
            self._drop()

    def _beat(self) -> None:
        incarnation = self._incarnation()
        if not incarnation:
            return
        connection = self._connected()
        if connection.backlog:  # the scheduler reads nothing: more heartbeats would be no news
            connection.flush()
            return
        turns = self._progress.turns
        place, in_user_code = self._progress.place() if turns == self._turns else ("", False)
        self._turns = turns
        beat = ProcessHeartbeat(self._me.node, incarnation, turns, place, in_user_code)
        connection.send(beat, ())

    def _connected(self) -> Connection:
        connection = self._connection
        sound = connection is not None and not connection.stalled
        if connection is not None and sound and connection.receive(_discard, _ignore, _ignore):
            return connection
        self._drop()
        transport = transport_for(self._scheduler)
        self._connection = transport.connect(self._scheduler, self._identity, CONNECT_TIMEOUT_S)
        return self._connection

    @property
    def _identity(self) -> Identity:
        """The identity of this connection.

        A second connection under the node's name would replace the node's own.
        """
        return replace(self._me, node=f"{self._me.node}-heartbeat")

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _discard(sender: NodeId, message: Message, nbytes: int) -> Arrival:
    return Discard("nothing is asked that comes with a payload")


def _ignore(*_: object) -> None:
    """Ignore a message: the scheduler answers no heartbeat of a process."""
