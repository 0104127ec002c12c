"""Links: what is sent again, and when; and what is kept until it was read."""

import pytest

from shoal.protocol.messages.replication import Replicate, ReplicateAck

ROWS = 4


@pytest.fixture
def chain(rigs):
    return rigs.Chain()


def test_an_operation_is_kept_until_its_message_is_read_although_all_have_it(chain):
    """Its memory was once used anew while the message was still under way."""
    chain.ask(0, 0, 0, 1, 1, 1, 1)
    chain.ask(0, 0, 1, 1, 1, 1, 1)
    lost = [each for each in chain.under_way if isinstance(each.message, Replicate)]
    chain.under_way.clear()
    for each in lost:
        chain.receive(1, "server-0", each.message, each.payload)
    chain.under_way.clear()  # no acknowledgement arrives
    chain.without()
    again = [each for each in chain.under_way if isinstance(each.message, Replicate)]
    assert len(again) == 2
    chain.under_way.clear()
    chain.receive(1, "server-0", again[0].message, again[0].payload)
    chain.deliver(ReplicateAck)
    assert [seq for _, seq, code, _ in chain.told if code == "applied"] == [0, 1]
    chains = chain.servers[0].chains
    assert not chains.idle
    chain.receive(1, "server-0", again[1].message, again[1].payload)
    chain.deliver(ReplicateAck)
    assert chains.idle
    assert chain.rows(1) == [2] * ROWS


def test_late_answers_to_greetings_send_nothing_again(chain):
    """A slow server was once sent all that waits for it with each greeting that it answered."""
    chain.ask(0, 0, 0, 1, 1, 1, 1)
    chain.under_way.clear()
    for _ in range(5):
        chain.receive(0, "server-1", ReplicateAck(chain.view.id, 0, ()))
        chain.tick(0, 0.0)
    assert chain.under_way == []


def test_a_greeting_of_a_server_that_connects_anew_has_it_sent_again(rigs):
    chain = rigs.Chain(length=3)
    head = chain.servers[1].chains
    assert head.rank == 1
    chain.ask(0, 0, 0, 1, 1, 1, 1)
    chain.deliver(Replicate)
    chain.under_way.clear()
    chain.receive(1, "server-0", ReplicateAck(chain.view.id, 0, ()))
    assert [message for _, _, message, _ in chain.under_way] == [ReplicateAck(chain.view.id, 0, ())]


def test_an_acknowledgement_of_a_resent_message_is_not_timed(chain):
    """It may be of either copy. The next message, sent once, is timed again."""
    options = chain.servers[0].chains.options
    chain.ask(0, 0, 0, 1, 1, 1, 1)
    chain.now = options.resend_s
    chain.tick(0, chain.now)
    chain.deliver()
    begun = chain.now
    chain.ask(0, 0, 1, 1, 1, 1, 1)
    assert chain.servers[0].replication.wakes_at() == begun + 2 * options.resend_s
    chain.deliver()
    chain.ask(0, 0, 2, 1, 1, 1, 1)
    assert chain.servers[0].replication.wakes_at() == begun + options.resend_s


def test_a_slow_server_is_sent_each_message_a_few_times_at_most(chain):
    """It acknowledges each after twice the first time-out."""
    options = chain.servers[0].chains.options
    sent = 0
    for seq in range(20):
        chain.ask(0, 0, seq, 1, 1, 1, 1)
        for _ in range(4):
            chain.now += options.resend_s / 2
            chain.tick(0, chain.now)
        sent += sum(isinstance(message, Replicate) for _, _, message, _ in chain.under_way)
        chain.deliver()
    assert chain.rows(1) == [20] * ROWS
    assert sent <= 30  # and 60 if each were sent after the same time
