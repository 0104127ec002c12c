"""TCP: who may listen where, and what an endpoint looks like."""

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from shoal.errors import AddressInUse, AddressInvalid, HandshakeFailed, JoinTimeout, WireError
from shoal.testing.connections import CALLER, LISTENER, connected, meet
from shoal.transport import tcp
from shoal.transport.base import Identity
from shoal.transport.shortcut import without_shortcut
from shoal.transport.tcp import (
    TcpTransport,
    await_name,
    endpoint_of,
    seen_from,
    stays_here,
    tcp_address,
)

TOKEN = "a token of sixteen"
FRIEND = Identity("server-a", "server", "", TOKEN)


@pytest.fixture
def transport():
    return TcpTransport()


@pytest.mark.parametrize(
    ("address", "endpoint"),
    [
        ("tcp://127.0.0.1:4000", ("127.0.0.1", 4000)),
        ("tcp://host-7.example:0", ("host-7.example", 0)),
        ("tcp://[::1]:65535", ("::1", 65535)),
        ("tcp://[fe80::1%eth0]:1", ("fe80::1%eth0", 1)),
    ],
)
def test_a_tcp_address_is_parsed(address, endpoint):
    assert endpoint_of(address) == endpoint
    assert tcp_address(*endpoint) == address


@pytest.mark.parametrize(
    "place",
    [
        "host", "host:", ":80", "host:x", "host:-1", "host:65536", "host:1_0", "host:80 ",
        "host: 80", "host:\u0663", "host:\u00b2", "host:" + "1" * 5000, "::1:80", "[::1]",
        "[::1]80", "[]:80", "[::1:80", "a:b:80", "host:80/path",
    ],
)  # fmt: skip
def test_a_bad_tcp_address_is_refused(transport, place):
    with pytest.raises(AddressInvalid, match="tcp://HOST:PORT"):
        endpoint_of(f"tcp://{place}")
    with pytest.raises(AddressInvalid):
        transport.listen(f"tcp://{place}", FRIEND)
    with pytest.raises(AddressInvalid):
        transport.connect(f"tcp://{place}", CALLER, 1.0)


@pytest.mark.parametrize("host", ["a..b", "x" * 70])
def test_an_impossible_host_is_refused(transport, host):
    with pytest.raises((AddressInvalid, HandshakeFailed)):
        transport.connect(f"tcp://{host}:80", CALLER, 1.0)
    with pytest.raises(AddressInvalid, match="cannot listen"):
        transport.listen(f"tcp://{host}:0", FRIEND)


def test_loopback_hosts_are_recognised():
    assert all(map(stays_here, ["localhost", "127.0.0.1", "127.9.9.9", "::1"]))
    others = [
        "0.0.0.0",
        "::",
        "10.0.0.1",
        "example.org",
        "127.0.0.1.example.org",
        "",
        "localhost.x",
    ]
    assert not any(map(stays_here, others))


@pytest.mark.parametrize(
    ("host", "others"),
    [
        ("0.0.0.0", "other hosts"), ("[::]", "other hosts"), ("10.1.2.3", "other hosts"),
        ("example.org", "other hosts"), ("127.0.0.1", "other users"), ("[::1]", "other users"),
    ],
)  # fmt: skip
def test_listening_needs_a_token(transport, host, others):
    with pytest.raises(AddressInvalid, match=rf"by {others}.*--token-file.*unix://"):
        transport.listen(f"tcp://{host}:0", Identity("server-a", "server"))


def test_a_listener_with_a_token_listens_on_any_host(transport):
    listener = transport.listen("tcp://0.0.0.0:0", FRIEND)
    port = endpoint_of(listener.address)[1]
    assert port > 0
    with pytest.raises(HandshakeFailed, match="token"):
        meet(transport, listener, Identity("worker-b", "worker"))
    caller, end = meet(transport, listener, Identity("worker-b", "worker", "", TOKEN))
    caller.close()
    end.connection.close()
    listener.close()


def test_a_listeners_address_has_its_real_port(transport):
    listener = transport.listen("tcp://127.0.0.1:0", LISTENER)
    assert endpoint_of(listener.address)[1] > 0
    with pytest.raises(AddressInUse, match="another port"):
        transport.listen(listener.address, LISTENER)
    listener.close()


def test_a_listener_may_use_a_host_name(transport):
    with connected(lambda: (transport, "tcp://localhost:0")):
        pass


def test_connections_disable_nagles_algorithm(transport):
    with without_shortcut(), connected(lambda: (transport, "tcp://127.0.0.1:0")) as pair:
        for end in (pair.caller, pair.callee):
            with socket.socket(fileno=socket.dup(end.connection.fileno())) as sock:
                assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_connection_to_nobody_fails(transport):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(HandshakeFailed, match=r"no process answers at tcp://127.*refused"):
            transport.connect(address, CALLER, 5.0)


def test_a_listener_that_does_not_answer_times_out(transport):
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = tcp_address(*other.getsockname())
        with pytest.raises(HandshakeFailed, match="in time"):
            transport.connect(address, CALLER, 0.05)
        caller = socket.create_connection(other.getsockname())
        other.accept()[0].close()  # the first, which gave up
        conversation, _ = other.accept()
        caller.close()
        conversation.close()


def test_a_peer_of_another_protocol_is_recognised(transport):
    with socket.create_server(("127.0.0.1", 0)) as other, ThreadPoolExecutor(1) as pool:
        calling = pool.submit(transport.connect, tcp_address(*other.getsockname()), CALLER, 5.0)
        conversation, _ = other.accept()
        with conversation:
            conversation.sendall(b"SSH-2.0-OpenSSH_9.6 and more\r\n")
            with pytest.raises(WireError, match="Shoal"):
                calling.result()


@pytest.fixture
def names(monkeypatch):
    """A name server that learns a name when it has been asked for it some times."""
    asked = []

    def getaddrinfo(host, port, **_):
        asked.append(host)
        if len(asked) <= 2:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return []

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(tcp, "NAME_S", 0.001)
    return asked


@pytest.mark.parametrize("scheme", ["tcp", "tls"])
def test_a_name_that_no_server_knows_yet_is_waited_for(names, caplog, scheme):
    assert 0 < await_name(f"{scheme}://late.example:4000", 60.0) < 60
    assert names == ["late.example"] * 3
    [record] = caplog.records
    assert "waiting for late.example" in record.getMessage()


def test_the_wait_for_a_name_ends(names):
    with pytest.raises(
        JoinTimeout, match=r"late\.example of tcp://late\.example:4000 .* after 0 s"
    ):
        await_name("tcp://late.example:4000", 0.0)


def test_other_addresses_are_not_looked_up(names):
    assert await_name("unix:///nowhere/s.sock", 0.0) == await_name("inproc://here", 0.0) == 0
    assert names == []


@pytest.mark.parametrize(
    ("bound", "seen"),
    [
        ("tcp://0.0.0.0:4567", "tcp://127.0.0.1:4567"),
        ("tls://0.0.0.0:4567", "tls://127.0.0.1:4567"),
        ("tcp://10.0.0.7:4567", "tcp://10.0.0.7:4567"),
        ("tcp://node-7:4567", "tcp://node-7:4567"),
        ("unix:///a.sock", "unix:///a.sock"),
    ],
)
def test_others_are_told_of_one_interface_where_all_are_listened_at(bound, seen):
    assert seen_from("tcp://127.0.0.1:4000", bound) == seen
