"""Which address of this host others of a torchrun job are given."""

import pytest

from shoal.engines import torchrun
from shoal.engines.torchrun import reachable
from shoal.errors import InvalidValue

MASTER = {"MASTER_PORT": "29500"}


def test_the_address_is_of_the_interface_that_leads_to_the_master(monkeypatch):
    ways = {"tcp://10.1.2.3:29500": "tcp://10.1.2.9:0"}
    monkeypatch.setattr(torchrun, "own_address", lambda way, interface: ways[way])
    assert reachable({**MASTER, "MASTER_ADDR": "10.1.2.3"}) == "10.1.2.9"


def test_a_master_whose_own_name_is_loopback_is_reached_by_the_default_route(monkeypatch):
    """As on Debian, where a host's own name is 127.0.1.1."""
    ways = {"tcp://node-0:29500": "tcp://127.0.0.1:0", torchrun.ELSEWHERE: "tcp://10.1.2.9:0"}
    monkeypatch.setattr(torchrun, "own_address", lambda way, interface: ways[way])
    assert reachable({**MASTER, "MASTER_ADDR": "node-0"}) == "10.1.2.9"


def test_a_host_without_an_address_for_others_is_told_what_to_set(monkeypatch):
    def unreachable(way, interface):
        raise OSError(101, "Network is unreachable")

    monkeypatch.setattr(torchrun, "own_address", unreachable)
    with pytest.raises(InvalidValue, match="set SHOAL_INTERFACE"):
        reachable({**MASTER, "MASTER_ADDR": "node-0"})


def test_an_interface_may_be_named():
    assert reachable({**MASTER, "MASTER_ADDR": "none", "SHOAL_INTERFACE": "lo"}) == "127.0.0.1"


def test_an_unknown_interface_is_named():
    with pytest.raises(InvalidValue, match="no interface 'nowhere'"):
        reachable({**MASTER, "MASTER_ADDR": "none", "SHOAL_INTERFACE": "nowhere"})
