"""What a status says stays small, however many wait: its readers refuse what is too large."""

import time

import pytest

from shoal.protocol.limits import LONGEST_MAX, WAITS_MAX
from shoal.protocol.messages.admin import StatusReply, StatusRequest, Waits
from shoal.protocol.messages.base import Part
from shoal.protocol.messages.reasons import NAMED, TEXT_SENT, Waiting, bounded, grouped, some_of
from shoal.tables.consistency import bsp
from shoal.transport.wire import HEADER_MAX, encode


def test_waits_of_one_kind_and_reason_are_one():
    waits = [Waiting(f"w-{n}", f"pull t[0:{n})", "because", n, "pull t") for n in range(1, 31)]
    waits.append(Waiting("w-0", "pull t[0:9)", "another reason", 50.0, "pull t"))
    longest = tuple((f"w-{n}", float(n)) for n in range(30, 30 - LONGEST_MAX, -1))
    assert grouped(waits) == (
        Waits("pull t[0:9)", "another reason", 1, (("w-0", 50.0),)),
        Waits("pull t", "because", 30, longest),
    )


def test_waits_for_the_same_rows_say_which():
    waits = [Waiting(name, "pull t[0:4)", "because", 1.0, "pull t") for name in ("a", "b")]
    assert grouped(waits) == (Waits("pull t[0:4)", "because", 2, (("a", 1.0), ("b", 1.0))),)


def test_many_kinds_of_waits_are_counted():
    """As many as there can be, with reasons as long as a user's error."""
    long = "x" * 10 * TEXT_SENT
    waits = [Waiting(long, f"pull t{n}", f"{n} {long}", float(n)) for n in range(3 * WAITS_MAX)]
    told = grouped(waits)
    assert len(told) == WAITS_MAX
    assert [each.count for each in told] == [1] * (WAITS_MAX - 1) + [2 * WAITS_MAX + 1]
    assert told[0].what == f"pull t{3 * WAITS_MAX - 1}"
    assert len(encode(StatusReply("server-0", told))) < HEADER_MAX


@pytest.mark.parametrize("count", [0, 1, NAMED, NAMED + 1, 1000])
def test_of_many_names_some_are_told(count):
    names = [f"w{n}" for n in range(count)]
    told = some_of(names)
    assert told.count(",") == max(0, min(count, NAMED) - 1)
    assert (f"and {count - NAMED} other" in told) == (count > NAMED)
    assert told.endswith("others") == (count > NAMED + 1)


def test_a_text_of_any_length_is_cut():
    assert bounded("as it is") == "as it is"
    assert len(bounded("x" * 10**6)) < TEXT_SENT + 100


def test_half_of_a_thousand_workers_that_wait_fit_into_an_answer(rigs):
    server = rigs.ServerRig(rigs.table(bsp()), workers=1000)
    for rank in range(500):
        server.ask(rank, 0, advance=1, pulls=(Part(0, 0, 1 + rank % 4),))
    server.now += 2
    began = time.perf_counter()
    server.receive("a person", StatusRequest())
    assert time.perf_counter() - began < 1.0
    [reply] = server.sent(StatusReply)
    assert [wait.count for wait in reply.waits] == [500]
    assert "and 490 others" in reply.waits[0].reason
    assert len(encode(reply)) < 4096
