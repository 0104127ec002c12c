"""Greetings: repeated until they are answered, and ever more rarely."""

from math import inf

from shoal.protocol.server.chains.handshakes import Greetings


def test_a_greeting_is_repeated_ever_more_rarely_until_it_is_answered():
    greetings = Greetings(0.5, 4.0)
    greetings.begin(["server-1"], 0.0)
    greeted = []
    while len(greeted) < 6:
        greeted.append(greetings.wakes_at())
        assert greetings.take(greeted[-1]) == ["server-1"]
    assert greeted == [0.0, 0.5, 1.5, 3.5, 7.5, 11.5]
    greetings.answered("server-1")
    assert greetings.wakes_at() == inf


def test_a_broken_connection_is_greeted_anew():
    greetings = Greetings(0.5, 4.0)
    greetings.begin(["server-1", "server-2"], 0.0)
    greetings.take(0.0)
    greetings.answered("server-1")
    greetings.lost("server-1", 0.2)
    assert greetings.take(0.2) == ["server-1"]
    greetings.begin(["server-2"], 1.0)
    assert greetings.take(1.0) == ["server-2"]
