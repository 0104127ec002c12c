"""Requests: what a server does for the requests of workers."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from shoal.protocol.checkpoint_clocks import CheckpointClocks
from shoal.protocol.limits import UNREAD_BYTES
from shoal.protocol.machine import Effects, EventTrace, Send
from shoal.protocol.messages import Computing, Probe, StatusRequest
from shoal.protocol.server.chains.chain import Chains
from shoal.protocol.server.requests.admission import Admission
from shoal.protocol.server.requests.checkpointing import Checkpointer
from shoal.protocol.server.requests.executor import Applier, Executor
from shoal.protocol.server.requests.interim import Interim
from shoal.protocol.server.requests.long_work import LONG_BYTES, LongWork
from shoal.protocol.server.requests.memory import MemoryOptions, TableMemory
from shoal.protocol.server.requests.request_handler import RequestHandler
from shoal.protocol.server.requests.round_closing import RoundCloser
from shoal.protocol.server.requests.staging import RequestStaging
from shoal.protocol.server.requests.wait_queue import WaitQueue
from shoal.protocol.server.requests.wait_report import WaitReport
from shoal.protocol.server.state.state import ServerState
from shoal.protocol.views import NodeId


class RequestOptions(msgspec.Struct, frozen=True):
    """The limits of what a server does for requests.

    Attributes:
        memory:        the memory that the server has for its tables
        unread_bytes:  the bytes of answers that may be on their way to one worker
        long_bytes:    work that moves as many bytes is done outside of the loop
    """

    memory: MemoryOptions = MemoryOptions()
    unread_bytes: int = UNREAD_BYTES
    long_bytes: float = LONG_BYTES


class Requests:
    """Admits the requests of workers, carries them out, and answers them.

    Attributes:
        admission:     decides which requests are taken
        staging:       has the memory that their payloads go to
        handler:       answers the requests that were not taken on arrival
        executor:      carries out what was taken
        applier:       applies operations to rows
        round_closer:  closes rounds
        wait_queue:    has the requests that wait
        wait_report:   measures which workers they wait for
        checkpointer:  saves the rows
        memory:        counts the memory that the tables take
        long_work:     runs work that takes long outside of the loop
        interim:       sorts the events that come meanwhile
    """

    def __init__(
        self,
        state: ServerState,
        chains: Chains,
        checkpoint_clocks: CheckpointClocks,
        options: RequestOptions,
        tickets: Iterator[int],
        trace: EventTrace,
    ) -> None:
        """
        tickets:  numbers of `Offload` effects
        """
        self._time = state.time
        self.admission = Admission()
        self.memory = TableMemory(options.memory, state.replicas, state.rounds)
        self.long_work = LongWork(tickets, options.long_bytes)
        self.checkpointer = Checkpointer(checkpoint_clocks, state.clocks, chains, self.long_work)
        self.staging = RequestStaging(
            self.admission, state.replicas, self.checkpointer, self.memory, state.rounds
        )
        self.wait_queue = WaitQueue(
            state, chains, self.checkpointer, self.long_work, options.unread_bytes
        )
        self.applier = Applier(self.staging.guard, chains, self.checkpointer, self.long_work)
        self.round_closer = RoundCloser(
            state,
            self.admission,
            chains,
            self.checkpointer,
            self.long_work,
            self.wait_queue,
            self.applier.apply,
        )
        self.executor = Executor(
            state,
            self.staging,
            chains,
            self.checkpointer,
            self.wait_queue,
            self.applier,
            self.round_closer,
        )
        self.interim = Interim(state.session, self.long_work, self.admission, chains, self.memory)
        self.handler = RequestHandler(
            state.session, self.admission, self.staging, self.executor, trace
        )
        self.wait_report = WaitReport(state, self.admission, self.wait_queue)

    def asked(
        self, sender: NodeId, message: Probe | Computing | StatusRequest, out: Effects
    ) -> None:
        """Handle a message about requests: of a worker, or of a tool."""
        if isinstance(message, Probe):
            self.handler.probe(sender, message, out)
        elif isinstance(message, Computing):
            self.handler.computing(sender, message, out)
        else:
            out.append(Send(sender, self.wait_report.because(self._time.now)))
