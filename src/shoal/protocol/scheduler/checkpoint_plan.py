"""CheckpointPlan: when a view names a clock for a checkpoint, at an interval or on request."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import msgspec

from shoal.protocol.limits import WINDOW
from shoal.protocol.machine import Effects, Send
from shoal.protocol.messages.admin import CheckpointPlanned, CheckpointRefused, CheckpointRequest
from shoal.protocol.messages.base import Message
from shoal.protocol.messages.membership import Frozen
from shoal.protocol.messages.reasons import some_of
from shoal.protocol.views import FOREVER, Member, NodeId, View

AHEAD = 4  # clocks beyond the latest that servers have seen: workers may be further
KEPT = 16  # checkpoint clocks in a view: the latest that all workers have reached, and a new one
NAMED_MAX = 1 << 10  # checkpoint clocks in a view
PAUSE_MOST = 8  # the most intervals between two attempts to name a clock
KEPT_ANSWERS = 64  # the answers that are kept for repeated requests

Asked = tuple[NodeId, int]  # sender, and number of its request
Planned = tuple[int, tuple[tuple[str, str], ...]] | None  # clock, and folders by host
Promises = Sequence[tuple[Member, Frozen]]


def marked(view: View, promises: Sequence[Frozen], wanted: int = 0) -> tuple[int, ...]:
    """Return the view's checkpoint clocks, and a new one beyond all that servers have seen.

    No clock is added before the slowest worker has passed the last one, unless a request needs a
    later clock than that. A clock that workers still have to reach stays in the view: it is
    promised. A full view gets no more.

    view:      the view that is being made
    promises:  the promises of the servers, which are frozen until they have the view
    wanted:    the least clock that all requests accept
    """
    clocks: dict[int, int] = {}
    known = {m.incarnation for m in (*view.workers, *view.departed) if not m.group}
    for each in promises:
        for worker, clock in each.clocks:
            if worker in known:
                clocks[worker] = max(clock, clocks.get(worker, 0))
    last = view.checkpoint_clocks[-1] if view.checkpoint_clocks else 0
    if last > min(clocks.values(), default=0) and last >= wanted:
        return view.checkpoint_clocks
    at_work = [m.incarnation for m in view.workers if not m.group]
    slowest = min((clocks.get(each, 0) for each in at_work), default=0)
    kept = _unreached(view.checkpoint_clocks, 0 if slowest >= FOREVER else slowest)
    if len(kept) == NAMED_MAX:
        return view.checkpoint_clocks
    groups = [each.standing("") for each in promises]
    opened = [each.open_round for each in groups]
    seen = max((at for at in (*clocks.values(), *opened) if at < FOREVER), default=0)
    applied = max((max(each.replayed, each.closed) for each in groups), default=0)
    wanted = min(wanted, seen + WINDOW)  # no worker is further ahead of its servers
    return (*kept, max(seen, applied, wanted) + AHEAD)


def _unreached(clocks: tuple[int, ...], slowest: int) -> tuple[int, ...]:
    """Return the latest `KEPT` - 1 clocks that the slowest worker has reached, and all later ones.

    A server that is behind in its chain may still have to take a checkpoint at a reached clock.
    """
    reached = sum(clock <= slowest for clock in clocks)
    return clocks[max(0, reached - KEPT + 1) :]


class CheckpointPlan:
    """The views that name a clock for a checkpoint: one per interval, and one after each request.

    every_s:  the seconds between two of these views; 0 for requests only
    start_clock:   the clocks of the runs that this one continues

    A view names no new clock while the slowest worker has not passed the last one. The interval
    before the next view is then doubled, and a request is answered with the last clock.
    """

    def __init__(self, every_s: float, start_clock: int = 0) -> None:
        self.at = inf
        self._every_s = every_s
        self._start_clock = start_clock
        self._for_nothing = 1  # intervals to wait
        self._due = False
        self._requests: dict[Asked, Planned] = {}  # with the plan in the last view
        self._wanted = 0  # the least clock that they all accept
        self._answers: dict[Asked, Message] = {}

    def is_due(self, now: float, at_work: bool) -> bool:
        """Return whether a view is to be made; begin the next interval if this one is over."""
        if now < self.at:
            return False
        self.at = now + self._every_s
        self._due = self._due or at_work
        return at_work

    def ask(self, sender: NodeId, request: CheckpointRequest, at_work: bool, out: Effects) -> bool:
        """Handle a request for a checkpoint; return whether a view is to be made for it.

        at_work:  whether there is a worker whose clock advances
        """
        asked = sender, request.number
        if asked in self._answers:
            out.append(Send(sender, self._answers[asked]))
        elif not at_work:
            reason = "no worker is at work, and a checkpoint is taken at a clock that they reach"
            out.append(Send(sender, CheckpointRefused(request.number, reason)))
        elif asked not in self._requests:
            before = self._wanted if self._requests else 0
            self._requests[asked] = None
            self._wanted = max(before, request.clock)
            return True
        return False

    def mark(self, view: View, promises: Promises, now: float, out: Effects) -> View:
        """Return the view with a new clock, if one is due.

        promises:  the promises by server; the servers are frozen until they have the view
        """
        if self._every_s and self.at == inf:
            self.at = now + self._every_s
        without = [server.name for server, promise in promises if not promise.folder]
        if self._requests and (without or not promises):
            if without:
                why = f"{some_of(without)} has no folder for checkpoints: start servers with --out"
            else:
                why = "this run has no servers: its workers write checkpoints (--checkpoint-every)"
            for asked in list(self._requests):
                self._close(asked, CheckpointRefused(asked[1], why), out)
        if not self._due and not self._requests:
            return view
        wanted = self._wanted if self._requests else 0
        clocks = marked(view, [promise for _, promise in promises], wanted)
        if not self._due:
            pass
        elif clocks == view.checkpoint_clocks:
            self._for_nothing = min(2 * self._for_nothing, PAUSE_MOST)
            self.at = now + self._for_nothing * self._every_s
        else:
            self._for_nothing = 1
        self._due = False
        if clocks == view.checkpoint_clocks and clocks[-1] < wanted:  # a full view
            why = f"{len(clocks)} checkpoints are planned that a worker has not come to; ask later"
            for asked in list(self._requests):
                self._close(asked, CheckpointRefused(asked[1], why), out)
        folders = tuple(sorted({(server.host, promise.folder) for server, promise in promises}))
        self._requests = dict.fromkeys(self._requests, (clocks[-1], folders))
        return msgspec.structs.replace(view, checkpoint_clocks=clocks)

    def adopted(self, view: View, out: Effects) -> None:
        """Answer the requests whose clock is in the adopted view."""
        for asked, planned in list(self._requests.items()):
            if planned is not None and planned[0] in view.checkpoint_clocks:
                clock, folders = planned
                saved_as = clock + self._start_clock
                self._close(asked, CheckpointPlanned(asked[1], clock, saved_as, folders), out)

    def _close(self, asked: Asked, answer: Message, out: Effects) -> None:
        del self._requests[asked]
        out.append(Send(asked[0], answer))
        self._answers[asked] = answer
        while len(self._answers) > KEPT_ANSWERS:
            del self._answers[next(iter(self._answers))]
