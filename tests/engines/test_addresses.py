"""Which address of this host others are given."""

import pytest

from shoal.engines import addresses
from shoal.engines.addresses import reachable
from shoal.errors import InvalidValue


def test_the_address_is_of_the_interface_that_leads_to_the_others(monkeypatch):
    ways = {"tcp://10.1.2.3:29500": "tcp://10.1.2.9:0"}
    monkeypatch.setattr(addresses, "own_address", lambda way: ways[way])
    assert reachable(["tcp://10.1.2.3:29500"]) == "10.1.2.9"


def test_a_host_whose_own_name_is_loopback_is_reached_by_the_default_route(monkeypatch):
    """As on Debian, where a host's own name is 127.0.1.1."""
    ways = {"tcp://node-0:29500": "tcp://127.0.0.1:0", addresses.ELSEWHERE: "tcp://10.1.2.9:0"}
    monkeypatch.setattr(addresses, "own_address", lambda way: ways[way])
    assert reachable(["tcp://node-0:29500"]) == "10.1.2.9"


def test_a_host_without_an_address_for_others_is_told_what_to_set(monkeypatch):
    def unreachable(way):
        raise OSError(101, "Network is unreachable")

    monkeypatch.setattr(addresses, "own_address", unreachable)
    with pytest.raises(InvalidValue, match=r"tcp://node-0:1.*set SHOAL_INTERFACE"):
        reachable(["tcp://node-0:1"])


def test_an_interface_may_be_named():
    assert reachable([], "lo") == "127.0.0.1"


def test_an_unknown_interface_is_named():
    with pytest.raises(InvalidValue, match="no interface 'nowhere'"):
        reachable([], "nowhere")
