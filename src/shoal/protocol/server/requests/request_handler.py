"""Requests that were not admitted on arrival, and probes."""

from __future__ import annotations

from shoal.protocol.limits import REPEATS_MAX, WINDOW
from shoal.protocol.machine import Effects, EventTrace, Send, Sink
from shoal.protocol.messages.requests import Computing, Nudge, Probe, Request
from shoal.protocol.server.notes import Declined, Landed
from shoal.protocol.server.requests.admission import TAKEN, Admission, Verdict
from shoal.protocol.server.requests.executor import Executor
from shoal.protocol.server.requests.staging import AdmittedRequest, RequestStaging
from shoal.protocol.session import Session
from shoal.protocol.views import NodeId


class RequestHandler:
    """Admits or declines requests that were not admitted on arrival, and answers probes."""

    def __init__(
        self,
        session: Session,
        admission: Admission,
        staging: RequestStaging,
        executor: Executor,
        trace: EventTrace,
    ) -> None:
        self._session = session
        self._admission = admission
        self._staging = staging
        self._executor = executor
        self._trace = trace

    def admit_again(
        self, sender: NodeId, request: Request, admitted: AdmittedRequest | None, out: Effects
    ) -> AdmittedRequest | None:
        """Admit or decline a request that was not admitted on arrival, or no longer is.

        If its payload was discarded on arrival and it is admitted now, ask for it again.
        """
        footprint = self._admission.footprint(request)
        verdict = self._admission.verdict(sender, request, footprint)
        if footprint is None or verdict not in TAKEN:
            self._decline(sender, request, verdict, out)
            return None
        loads = admitted.loads if admitted is not None and not admitted.streamed else None
        if loads is None and self._staging.lacks_keys(request):
            self._executor.reply(out, sender, request, "keys")
            return None
        if loads is None and self._staging.payload_bytes(request, footprint):
            reason = self._staging.refusal(sender, request, footprint)
            self._executor.reply(out, sender, request, "refused" if reason else "missing", reason)
            return None
        if admitted is None or loads is None:
            return self._staging.take(sender, request, footprint)
        log, view = self._admission.logs[sender], self._admission.view
        return AdmittedRequest(sender, request, footprint, loads, log, view, False)

    def end_stream(
        self, admitted: AdmittedRequest, payload: Sink, out: Effects
    ) -> AdmittedRequest | None:
        """Apply the last fragment of a streamed push, or ask for the push again.

        Return the request if all of it is applied, and None if the fragment cannot be applied.
        """
        if not self._staging.land(payload):
            self._executor.reply(out, admitted.sender, admitted.request, "missing")
            return None
        out.append(Landed(admitted.request))
        if not self._staging.end_stream(admitted):
            text = f"fragments of {admitted.request.describe()} were not applied"
            raise self._trace.broken(text)
        return admitted

    def _decline(self, sender: NodeId, request: Request, verdict: Verdict, out: Effects) -> None:
        out.append(Declined(verdict, sender, request.describe()))
        if verdict == "seen":
            self._tell_state(sender, request, out)
        elif verdict == "stale":
            self._executor.reply(out, sender, request, "stale")
            if request.view > self._session.view_id:
                self._session.ask_for_view(request.view, out)
        elif verdict == "out_of_order":
            self._executor.reply(out, sender, request, "out_of_order")
        elif verdict in ("too many", "misfit"):
            reason = (
                f"{WINDOW} requests after the oldest one in flight"
                if verdict == "too many"
                else "it names rows or a table that this server does not hold, or some more "
                f"than {REPEATS_MAX} times; or its weight or learning rate is no number above 0, "
                "or its encoded fragments are not those of its rows"
            )
            self._executor.reply(out, sender, request, "refused", reason)

    def probe(self, sender: NodeId, probe: Probe, out: Effects) -> None:
        """Answer a worker that asks for the state of a request."""
        verdict = self._admission.verdict(sender, probe)
        if verdict == "fresh":
            self._executor.reply(out, sender, probe, "missing")
        elif verdict == "seen":
            self._tell_state(sender, probe, out)
        elif verdict == "stale":
            self._executor.reply(out, sender, probe, "stale")
        else:
            out.append(Declined(verdict, sender, probe.describe()))

    def _tell_state(self, sender: NodeId, request: Request | Probe, out: Effects) -> None:
        """Reply with the state of a request; an urgent probe nudges workers that it waits for."""
        log = self._admission.logs[sender]
        code = log.outcomes[request.seq]
        waits, reason = self._executor.wait_queue.waits_for(request, code)
        self._executor.reply(out, sender, request, code, reason)
        if isinstance(request, Probe) and request.urgent and waits >= 0:
            for worker in self._executor.wait_queue.late(log.group, waits):
                out.append(Send(worker.id, Nudge(reason)))

    def computing(self, sender: NodeId, told: Computing, out: Effects) -> None:
        """Tell the workers that wait for a worker that it computes."""
        log = self._admission.logs.get(sender)
        if log is not None and log.incarnation == told.incarnation:
            others = self._executor.wait_queue.computes(told.incarnation)
            out.extend(Send(each.id, told) for each in others)
