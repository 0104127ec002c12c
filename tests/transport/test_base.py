"""Addresses name transports; sinks are as large as payloads; no transport needs torch."""

import subprocess
import sys

import pytest

from shoal.errors import AddressInvalid, BadLength
from shoal.protocol.machine import Discard, Sink
from shoal.transport import transport_for
from shoal.transport.base import Connection, Listener, Transport, place_of, sink_for, transports


@pytest.mark.parametrize("scheme", ["inproc", "unix", "tcp"])
def test_a_scheme_names_a_transport(scheme):
    assert scheme in transports
    assert isinstance(transport_for(f"{scheme}://anything"), Transport)


@pytest.mark.parametrize("bad", ["", "nonsense", "tcp:", "tcp://", "://x", "host:80", "TCP://x:1"])
def test_a_bad_address_is_refused_with_the_valid_forms(bad):
    with pytest.raises(AddressInvalid, match="inproc://NAME, unix:///PATH, tcp://HOST:PORT or tls"):
        transport_for(bad)


def test_an_unknown_scheme_is_refused_with_the_known_ones():
    with pytest.raises(
        AddressInvalid, match=r"unknown transport 'tpc' .known: inproc, tcp, tls, unix.*tcp"
    ):
        transport_for("tpc://x:1")


def test_an_address_without_a_place_is_refused():
    assert place_of("tcp://h:1", "tcp") == "h:1"
    for bad in ("h:1", "unix://h:1", "tcp://", "tcp://h\0:1"):
        with pytest.raises(AddressInvalid, match="use inproc://NAME"):
            place_of(bad, "tcp")


def test_a_sink_is_as_large_as_its_payload():
    sink = Sink([memoryview(bytearray(3)), memoryview(bytearray(4))])
    assert sink_for(sink, 7) is sink
    assert sink_for(Discard("late"), 7) is None
    for nbytes in (6, 8):
        with pytest.raises(BadLength, match=f"{nbytes} bytes for a sink of 7"):
            sink_for(sink, nbytes)


def test_contracts_are_abstract():
    for contract in (Connection, Listener, Transport):
        with pytest.raises(TypeError):
            contract()


@pytest.mark.usefixtures("processes_are_those_of_users")
def test_transports_import_without_torch():
    program = (
        "import sys, shoal.transport, shoal.testing.transports\n"
        "above = ['torch', 'numpy', 'shoal.node', 'shoal.simulation', 'shoal.strategies']\n"
        "assert not [name for name in above if name in sys.modules]\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)
