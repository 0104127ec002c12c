"""The options of a member's conversation with the scheduler."""

from __future__ import annotations

import msgspec


class SessionOptions(msgspec.Struct, frozen=True):
    """Options of a session.

    Attributes:
        join_timeout_s: seconds to wait for the first view.
        heartbeat_s: seconds between heartbeats.
        resend_s: seconds between repetitions of an unanswered question to the scheduler.
        silence_s: seconds without any answer from the scheduler until the member gives up.
        farewell_s: the same where only the end of the member's work is unanswered and the
            scheduler's host has closed the connection, because one that has ended the run does not
            answer; and where a server was told to leave, whose rows nobody will move. Also how long
            a server waits until the scheduler knows that it was told of the end.
        recall_s: seconds between heartbeats after the connection to the scheduler broke.
        thaw_s: the same until a frozen server asks the others to continue without a new view.
        group: worker group; "" is the first group.
        group_size: workers that make an attached group complete.
        namespace: prefix of the worker's table names.
        memory: bytes that a server has for its tables; 0 if there is no limit.
    """

    join_timeout_s: float = 60.0
    heartbeat_s: float = 1.0
    resend_s: float = 0.5
    silence_s: float = 120.0
    farewell_s: float = 5.0
    recall_s: float = 0.1
    thaw_s: float = 3.0
    group: str = ""
    group_size: int = 1
    namespace: str = ""
    memory: int = 0

    def too_late(self, name: str, joined: bool) -> str:
        """Return why a member has no view in time: its role or name, and whether it has joined."""
        limit = self.join_timeout_s
        if not joined:
            return (
                f"the scheduler did not answer this {name} within {limit:g} s; "
                "is it running, and is its address right?"
            )
        whole = "the cluster"
        if self.group:
            whole = f"group {self.group!r} of {self.group_size} workers, or the cluster,"
        return f"{name} joined, but {whole} was not complete within {limit:g} s"
