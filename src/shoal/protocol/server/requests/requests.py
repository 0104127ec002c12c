"""Requests: the parts of a server that admit, carry out and answer requests of workers."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from shoal.protocol.checkpoint_clocks import CheckpointClocks
from shoal.protocol.limits import KEY_LISTS_BYTES, UNREAD_BYTES
from shoal.protocol.machine import Effects, EventTrace, Send
from shoal.protocol.messages.admin import StatusRequest
from shoal.protocol.messages.requests import Computing, Probe
from shoal.protocol.server.chains.chain import Chains
from shoal.protocol.server.requests.admission import Admission
from shoal.protocol.server.requests.checkpointing import Checkpointer
from shoal.protocol.server.requests.decoding import Decoder
from shoal.protocol.server.requests.executor import Applier, Executor
from shoal.protocol.server.requests.fast_path import FastPath
from shoal.protocol.server.requests.interim import Interim
from shoal.protocol.server.requests.key_lists import KeyLists
from shoal.protocol.server.requests.long_work import LONG_BYTES, LongWork
from shoal.protocol.server.requests.memory import MemoryOptions, TableMemory
from shoal.protocol.server.requests.request_handler import RequestHandler
from shoal.protocol.server.requests.round_closing import RoundCloser
from shoal.protocol.server.requests.staging import BORROWED_BYTES, RequestStaging
from shoal.protocol.server.requests.wait_queue import WaitQueue
from shoal.protocol.server.requests.wait_report import WaitReport
from shoal.protocol.server.state.state import ServerState
from shoal.protocol.views import NodeId


class RequestOptions(msgspec.Struct, frozen=True):
    """The limits of a server's work for requests.

    Attributes:
        memory:          the memory that the server has for its tables
        unread_bytes:    the bytes of answers that may be on their way to one worker
        long_bytes:      the bytes from which on work that moves them is done outside of the loop
        borrowed_bytes:  the bytes from which on a push may stay in its sender's memory
    """

    memory: MemoryOptions = MemoryOptions()
    unread_bytes: int = UNREAD_BYTES
    long_bytes: float = LONG_BYTES
    key_lists_bytes: int = KEY_LISTS_BYTES
    borrowed_bytes: float = BORROWED_BYTES


class Requests:
    """Admits the requests of workers, carries them out, and answers them.

    Attributes:
        admission:     the decision which requests are admitted
        staging:       the memory that their payloads go to
        handler:       the handler of requests that were not admitted on arrival, and of probes
        executor:      the part that carries out admitted requests
        fast_path:     the same for requests that need nothing but their shard
        applier:       the part that applies operations to rows
        round_closer:  the part that closes rounds
        wait_queue:    the requests that wait
        wait_report:   the measurement of which workers they wait for
        checkpointer:  the part that saves the rows
        memory:        the account of the memory that the tables take
        long_work:     the work that is done outside of the loop
        decoder:       the part that decodes pushes
        interim:       the part that sorts the events that come meanwhile
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
        """Make the parts of the server that handle requests.

        tickets:  the numbers of `Offload` effects
        """
        self._time = state.time
        self.admission = Admission()
        self.memory = TableMemory(options.memory, state.replicas, state.rounds)
        self.long_work = LongWork(tickets, options.long_bytes)
        self.decoder = Decoder(self.long_work)
        self.checkpointer = Checkpointer(checkpoint_clocks, state.clocks, chains, self.long_work)
        self.staging = RequestStaging(
            self.admission,
            state.replicas,
            self.checkpointer,
            self.memory,
            state.rounds,
            self.decoder,
            KeyLists(options.key_lists_bytes),
            options.borrowed_bytes,
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
        self.fast_path = FastPath(
            state,
            self.admission,
            self.long_work,
            self.staging.guard,
            self.executor,
            self.wait_report,
            trace,
        )

    def asked(
        self, sender: NodeId, message: Probe | Computing | StatusRequest, out: Effects
    ) -> None:
        """Handle a message about requests, from a worker or a tool."""
        if isinstance(message, Probe):
            self.handler.probe(sender, message, out)
        elif isinstance(message, Computing):
            self.handler.computing(sender, message, out)
        else:
            out.append(Send(sender, self.wait_report.because(self._time.now)))
