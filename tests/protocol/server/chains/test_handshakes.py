"""Handshakes: repeated until they are answered, and ever more rarely."""

from math import inf

from shoal.protocol.server.chains.handshakes import Handshakes


def test_a_greeting_is_repeated_ever_more_rarely_until_it_is_answered():
    handshakes = Handshakes(0.5, 4.0)
    handshakes.begin(["server-1"], 0.0)
    greeted = []
    while len(greeted) < 6:
        greeted.append(handshakes.wakes_at())
        assert handshakes.take(greeted[-1]) == ["server-1"]
    assert greeted == [0.0, 0.5, 1.5, 3.5, 7.5, 11.5]
    handshakes.answered("server-1")
    assert handshakes.wakes_at() == inf


def test_a_broken_connection_is_greeted_anew():
    handshakes = Handshakes(0.5, 4.0)
    handshakes.begin(["server-1", "server-2"], 0.0)
    handshakes.take(0.0)
    handshakes.answered("server-1")
    handshakes.lost("server-1", 0.2)
    assert handshakes.take(0.2) == ["server-1"]
    handshakes.begin(["server-2"], 1.0)
    assert handshakes.take(1.0) == ["server-2"]
