"""The fates of messages do not shift each other."""

import pytest

from shoal.simulation.draws import Draws
from shoal.simulation.network import Network, NetworkOptions


@pytest.mark.parametrize("streams", [False, True])
def test_a_new_message_shifts_no_fate_of_the_others(streams):
    options = NetworkOptions(loss=0.3, duplicate=0.3, reorder=0.3, stall=0.3, streams=streams)
    fates = []
    for new in ("", "after each", "on another link"):
        network, found = Network(options, Draws(3)), []
        for number in range(50):  # so far apart that none waits for another
            now = 100.0 * number
            found.append(network.send(now, "a", "b", 100, "Push"))
            found.append(network.second_part("a", "b", "Push"))
            if new:
                target = "b" if new == "after each" else "c"
                network.send(now + 50.0, "a", target, 100, "New")
                network.second_part("a", target, "New")
        fates.append(found)
    assert fates[0] == fates[1] == fates[2]
    seen = {fault for _, faults in fates[0][::2] for fault in faults}
    assert seen == ({"retransmission"} if streams else {"loss", "duplicate", "reorder"})
    assert 0 < sum("stall" in faults for _, _, faults in fates[0][1::2]) < 50


def test_seeds_scopes_links_and_kinds_draw_for_themselves():
    options = NetworkOptions(jitter_s=1.0)

    def arrives(draws, target="b", kind="Push"):
        [[at], _] = Network(options, draws).send(0.0, "a", target, 1, kind)
        return at

    every = [
        arrives(Draws(3)),
        arrives(Draws(4)),
        arrives(Draws(3, "ring")),
        arrives(Draws(3), target="c"),
        arrives(Draws(3), kind="Pull"),
    ]
    assert len(set(every)) == len(every)
    assert arrives(Draws(3)) == every[0]
