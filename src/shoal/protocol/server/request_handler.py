"""Reception: which of workers' requests are carried out, and what is said to the others."""

from __future__ import annotations

import msgspec

from shoal.protocol.limits import WINDOW
from shoal.protocol.machine import Effects, Note, Sink, Story
from shoal.protocol.messages import Probe, Request
from shoal.protocol.messages.describing import describe
from shoal.protocol.server.admission import TAKEN, Gate, Verdict
from shoal.protocol.server.executor import Execution
from shoal.protocol.server.replies import Answers
from shoal.protocol.server.staging import Intake, Taken
from shoal.protocol.session import Session
from shoal.protocol.views import NodeId


class Reception:
    """Goes by what the gate says of each.

    unopened: why a table of the view is not here; whose group is being aborted
    """

    def __init__(
        self,
        session: Session,
        gate: Gate,
        intake: Intake,
        execution: Execution,
        answers: Answers,
        story: Story,
    ) -> None:
        self.unopened = ""
        self._session = session
        self._gate = gate
        self._intake = intake
        self._execution = execution
        self._parking = execution.parking
        self._answers = answers
        self._story = story

    def request(self, sender: NodeId, request: Request, payload: Sink | None, out: Effects) -> None:
        """It has come whole."""
        intact = payload is not None and not payload.revoked
        taken: Taken | None = payload.context if intact and payload is not None else None
        if taken is None or not self._gate.still_fresh(request, taken.window, taken.view):
            verdict = self._gate.verdict(sender, request)
            footprint = self._gate.footprint(request) if verdict in TAKEN else None
            if footprint is None:
                self._decline(sender, request, verdict, out)
                return
            loads = taken.loads if taken is not None and not taken.streamed else None
            if loads is None and self._intake.announced(footprint):
                # Its payload was discarded on arrival, for a reason that has passed since.
                self._answers.reply(out, sender, request, "missing")
                return
            taken = self._intake.take(sender, request, footprint)
            if loads is not None:
                taken = msgspec.structs.replace(taken, loads=loads)
        elif taken.streamed and payload is not None:
            self._intake.land(payload)
            out.append(Note("landed", {"request": request}))
            if not self._intake.end_stream(taken):
                raise self._story.broken(f"fragments of {describe(request)} were not applied")
        self._execution.carry_out(taken, out)

    def _decline(self, sender: NodeId, request: Request, verdict: Verdict, out: Effects) -> None:
        self._answers.count(out, verdict, sender, describe(request))
        if verdict == "seen":
            self._tell_state(sender, request, out)
        elif verdict == "stale":
            self._answers.reply(out, sender, request, "stale")
            if request.view > self._session.view_id:
                self._session.ask_for_view(out)
        elif verdict == "early":
            self._answers.reply(out, sender, request, "early")
        elif verdict in ("too many", "misfit"):
            reason = (
                f"more than {WINDOW} requests in flight"
                if verdict == "too many"
                else self.unopened
                or "it names rows or a table that this server does not hold, or has no weight"
            )
            self._answers.reply(out, sender, request, "refused", reason)

    def probe(self, sender: NodeId, probe: Probe, out: Effects) -> None:
        """A worker asks what became of a request."""
        verdict = self._gate.verdict(sender, probe)
        if verdict == "fresh":
            self._answers.reply(out, sender, probe, "missing")
        elif verdict == "seen":
            self._tell_state(sender, probe, out)
        elif verdict == "stale":
            self._answers.reply(out, sender, probe, "stale")
        else:
            self._answers.count(out, verdict, sender, describe(probe))

    def _tell_state(self, sender: NodeId, request: Request | Probe, out: Effects) -> None:
        code = self._gate.windows[sender].codes[request.seq]
        waits, reason = self._parking.waits_for(request, code)
        self._answers.state(out, sender, request, code, waits, reason)
