"""Rows go to a learner no faster than they may, and requests go on meanwhile."""

from itertools import pairwise

from msgspec.structs import replace

from shoal.keys import KeyRange
from shoal.protocol.machine import Received, Send, Ticked
from shoal.protocol.messages.base import SCHEDULER
from shoal.protocol.messages.membership import NewView
from shoal.protocol.messages.replication import Replicate, ReplicateAck, StateChunk
from shoal.protocol.server.chains.link import ReplicationOptions
from shoal.protocol.server.machine import ServerMachine
from shoal.protocol.session import Session
from shoal.protocol.views import Placement
from shoal.tables.dense.shard import DenseShard

ROWS, CHUNK, RATE = 2048, 2048, 20480  # of 8 bytes; bytes; bytes a second


def test_rows_go_to_a_learner_at_their_rate(rigs):
    """Each piece as soon as the one before is there, and its time is over."""
    view = rigs.view_of(servers=2, tables=(rigs.table(None, ROWS, 64),))
    alone = replace(view, placements=((Placement(KeyRange(0, ROWS), (0,)),),))
    placement = Placement(KeyRange(0, ROWS), (0, 1), syncing_since=2)
    options = ReplicationOptions(chunk_bytes=CHUNK, state_bytes_per_s=RATE)
    server = ServerMachine(Session("server-0", "server"), DenseShard, options)
    sent, now = [], 0.0

    def handle(event):
        for each in server.handle(event, now):
            if isinstance(each, Send) and isinstance(each.message, StateChunk):
                nbytes = sum(buffer.nbytes for buffer in each.buffers)
                sent.append((now, nbytes))
                there = ReplicateAck(each.message.view, each.message.number + 1, ())
                handle(Received("server-1", there))

    handle(Received(SCHEDULER, NewView(alone)))
    handle(Received(SCHEDULER, NewView(replace(view, number=2, placements=((placement,),)))))
    while sum(nbytes for _, nbytes in sent) < 8 * ROWS:
        due = server.deadline()
        assert due is not None
        now = max(now, due)
        handle(Ticked())
    times = [at for at, _ in sent]
    assert len(sent) == 8 * ROWS // CHUNK
    assert all(later - at >= CHUNK / RATE - 1e-9 for at, later in pairwise(times))
    assert times[-1] <= 1.5 * (len(sent) - 1) * CHUNK / RATE


def test_pushes_that_come_in_hold_up_no_word_between_servers(rigs):
    """The head says each to the next at once, on credits of its own."""
    chain = rigs.Chain(length=2)
    for seq in range(50):
        assert chain.ask(0, 0, seq, 1, 1, 1, 1) == []
        said = [message for source, _, message, _ in chain.under_way if source == 0]
        assert len([each for each in said if isinstance(each, Replicate)]) == seq + 1
    chain.told = []
    chain.deliver()
    assert [code for _, _, code, _ in chain.told] == ["applied"] * 50
    assert chain.rows(0) == chain.rows(1) == [50] * 4
