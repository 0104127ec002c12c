"""What a view change does to pushes, clocks and transfers on the servers of a chain."""

import pytest
from msgspec.structs import replace

from shoal.keys import KeyRange
from shoal.protocol.messages.base import SCHEDULER, Part
from shoal.protocol.messages.membership import Drain, NewView
from shoal.protocol.messages.replication import Replicate, StateChunk
from shoal.protocol.messages.requests import Request
from shoal.protocol.server.chains.chain import Chains
from shoal.protocol.server.state.replicas import Replicas
from shoal.protocol.views import Placement
from shoal.tables.consistency import bsp
from shoal.tables.dense.shard import DenseShard

ROWS = 4
ALL, LOW, HIGH = KeyRange(0, ROWS), KeyRange(0, 2), KeyRange(2, ROWS)


@pytest.fixture
def chain(rigs):
    """Servers 0 and 1; all rows are on server 0, and a push to the last two is applied."""
    chain = rigs.Chain(fragment_rows=2)
    place(chain, Placement(ALL, (0,)))
    push(rigs, chain, 0)
    assert chain.told == [("worker-0", 0, "applied", [])]
    return chain


def push(rigs, chain, rank):
    request = Request(chain.view.id, 11, 0, 0, 0, pushes=(Part(0, 2, ROWS),))
    chain.receive(rank, "worker-0", request, rigs.as_bytes(3, 4))


def place(chain, *placements):
    """The next view, with these placements of the first table."""
    number = chain.view.number + 1
    chain.view = replace(chain.view, number=number, placements=(tuple(placements),))
    for member in chain.view.servers:
        chain.receive(member.rank, SCHEDULER, NewView(chain.view))
    chain.deliver()


def rows(chain, rank):
    """The values that a server has, by replica."""
    replicas = chain.servers[rank].state.replicas.values()
    return [replica.shard.rows.view(-1).tolist() for replica in replicas]


def test_a_server_that_receives_rows_knows_the_pushes_in_them(chain, rigs):
    place(chain, Placement(ALL, (0, 1), syncing_since=3))
    place(chain, Placement(ALL, (0, 1)))
    chain.without(0)
    push(rigs, chain, 1)  # it is sent again
    assert chain.told == [("worker-0", 0, "applied", [])]
    assert rows(chain, 1) == [[0, 0, 3, 4]]


def test_it_knows_them_where_the_rows_have_been_cut_since(chain):
    place(chain, Placement(LOW, (0,)), Placement(HIGH, (0,)))
    place(chain, Placement(LOW, (0,)), Placement(HIGH, (0, 1), syncing_since=4))
    place(chain, Placement(LOW, (0,)), Placement(HIGH, (1,)))
    log = chain.servers[1].requests.admission.logs["worker-0"]
    assert [part.part.start for part in log.parts[0]] == [HIGH.start]
    assert rows(chain, 1) == [[3, 4]]


def test_it_knows_a_push_of_some_rows_for_no_more_than_these(chain):
    """The rest of the push comes later: its fragments are streamed."""
    place(chain, Placement(ALL, (0, 1), syncing_since=3))
    log = chain.servers[1].requests.admission.logs["worker-0"]
    assert log.missing(0, Part(0, 0, ROWS)) == [LOW]


def test_a_piece_of_another_transfer_is_not_taken(chain):
    chain.view = replace(
        chain.view, number=3, placements=((Placement(ALL, (0, 1), syncing_since=3),),)
    )
    for rank in (1, 0):
        chain.receive(rank, SCHEDULER, NewView(chain.view))
    [chunk] = [each for each in chain.under_way if isinstance(each.message, StateChunk)]
    chain.under_way.remove(chunk)
    chain.deliver()
    [replica] = chain.servers[1].state.replicas.values()
    for number, other in enumerate(({"since": 2}, {"at": 1}, {}), chunk.message.number):
        assert replica.shard.syncing
        message = replace(chunk.message, number=number, **other)
        chain.receive(1, "server-0", message, chunk.payload)
    assert not replica.shard.syncing


def test_a_server_that_receives_rows_knows_the_weights_of_their_rounds(rigs):
    chain = rigs.Chain(bsp())
    place(chain, Placement(ALL, (0,)))
    for worker in (0, 1):
        chain.ask(0, worker, 0, 1, 1, 1, 1, weight=2.0)
        chain.ask(0, worker, 1, advance=1)
    place(chain, Placement(ALL, (0, 1), syncing_since=3))
    weights = [server.state.rounds.weights("") for server in chain.servers]
    assert weights == [((0, 4.0),)] * 2


@pytest.mark.parametrize(
    ("last_clock", "waiting"), [(0, ["worker-1"]), (1, ["worker-0", "worker-1"])]
)
def test_a_new_head_counts_what_a_worker_had_finished_before_it_left(rigs, last_clock, waiting):
    """It drops what the head before it had accepted of a round that the worker had not finished."""
    chain = rigs.Chain(bsp())
    for worker in (0, 1):
        chain.ask(0, worker, 0, 1, 1, 1, 1)
    drain(chain)
    [first, second] = chain.view.workers
    gone = replace(first, last_clock=last_clock)
    chain.view = replace(chain.view, workers=(second,), departed=(gone,))
    chain.without(0)
    assert senders(chain, 1) == waiting


def test_a_worker_that_dies_weighs_in_no_round_that_it_had_not_finished(rigs):
    chain = rigs.Chain(bsp(), length=1)
    for worker in (0, 1):
        chain.ask(0, worker, 0, 1, 1, 1, 1, weight=3.0 - worker)
    [first, second] = chain.view.workers
    departed = (replace(first, last_clock=0),)
    chain.view = replace(chain.view, workers=(second,), departed=departed)
    chain.without()
    chain.ask(0, 1, 1, advance=1)
    assert chain.servers[0].state.rounds.weights("") == ((0, 2.0),)


def drain(chain):
    """Have heads tell the next servers what waits for rounds."""
    for member in chain.view.servers:
        chain.receive(member.rank, SCHEDULER, Drain((1, chain.view.number + 1), 2.0))
    chain.deliver()


def senders(chain, rank):
    return sorted(each.sender for each in chain.servers[rank].state.rounds.entries())


def test_a_transfer_that_has_begun_anew_sends_all_rows(chain):
    for number in (3, 4):  # the syncing replica is dropped in between
        place(chain, Placement(ALL, (0, 1), syncing_since=number))
        assert rows(chain, 1) == [[0, 0, 3, 4]]
        [replica] = chain.servers[1].state.replicas.values()
        assert not replica.shard.syncing


def test_a_new_head_weighs_and_rates_what_the_one_before_had_accepted_as_it_did(rigs):
    chain = rigs.Chain(bsp())
    sent = {"weight": 3.0, "rates": (0.5,)}
    assert chain.ask(0, 0, 0, 1, 1, 1, 1, **sent) == [("worker-0", 0, "accepted")]
    drain(chain)
    chain.without(0)
    [entry] = chain.servers[1].state.rounds.entries()
    assert (entry.weight, [part.lr for part in entry.parts]) == (3.0, [0.5])


@pytest.fixture
def middle(rigs):
    """By group: a table of rows that two servers head."""
    tables = [
        replace(rigs.table(bsp(), ROWS, ROWS, name), group=group)
        for name, group in (("w", ""), ("v", "eval"))
    ]
    return replace(rigs.view_of(servers=3, tables=tables), number=1)


def test_a_new_head_asks_every_group_how_far_it_is(middle):
    holding = Replicas()
    for number, path in ((1, (0, 1, 2)), (2, (1, 2))):
        placements = ((Placement(ALL, path),),) * 2
        moved = holding.adopt(replace(middle, number=number, placements=placements), 1, DenseShard)
    assert moved.begin == {"": 0, "eval": 0}


def test_a_heads_clock_counts_for_the_rows_that_come_by_its_way_only(middle):
    ways = ((Placement(LOW, (0, 1, 2)), Placement(HIGH, (0, 2))), (Placement(ALL, (0, 1, 2)),))
    view = replace(middle, placements=ways)
    holding = Replicas()
    holding.adopt(view, 2, DenseShard)
    tail = Chains(holding.by_number)
    tail.adopt(view, 2, [])
    tail.reach(Replicate(view.id, 0, (0, 1), 7, "round", (), (), ()))
    assert [replica.clock for replica in holding.by_number.values()] == [7, 0, 0]
