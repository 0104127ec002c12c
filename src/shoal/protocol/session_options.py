"""The options of a member's conversation with the scheduler."""

from __future__ import annotations

import msgspec


class SessionOptions(msgspec.Struct, frozen=True):
    """Options of a session.

    Attributes:
        join_timeout_s: the seconds to wait for the first view.
        heartbeat_s: the seconds between heartbeats.
        resend_s: the seconds between repetitions of an unanswered question to the scheduler.
        scheduler_timeout_s: the seconds without an answer from the scheduler until a member ends.
        farewell_s: the same if only `Finish` is unanswered and the scheduler's host has closed the
            connection, because a scheduler that has ended the run does not answer; and for a server
            that was told to leave, whose rows will not be moved. Also the seconds that a server
            waits for the scheduler to receive its confirmation of the end.
        recall_s: the seconds between heartbeats after the connection to the scheduler broke.
        thaw_s: the seconds without a message of the scheduler until a frozen server asks the others
            to continue without a new view.
        group: the worker group; "" is the first group.
        group_size: the number of workers that makes an attached group complete.
        namespace: the prefix of the worker's table names.
        memory: the bytes that a server has for its tables; 0 if there is no limit.
    """

    join_timeout_s: float = 60.0
    heartbeat_s: float = 1.0
    resend_s: float = 0.5
    scheduler_timeout_s: float = 120.0
    farewell_s: float = 5.0
    recall_s: float = 0.1
    thaw_s: float = 3.0
    group: str = ""
    group_size: int = 1
    namespace: str = ""
    memory: int = 0

    def too_late(self, name: str, joined: bool) -> str:
        """Return why a member got no view in time.

        name: the name of the member, or its role if it has not joined
        joined: whether the member has joined
        """
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
