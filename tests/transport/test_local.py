"""Unix sockets: private directories, socket files that come and go, and other people's files."""

import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from shoal.errors import AddressInUse, AddressInvalid, HandshakeFailed
from shoal.testing.connections import CALLER, LISTENER, connected, meet
from shoal.transport.base import Identity
from shoal.transport.local import NAME_BYTES_MAX, PATH_BYTES_MAX, LocalTransport, path_of

OPEN = Identity("server-a", "server")  # without a token
LISTENS = Path(__file__).parent / "scripts" / "listens.py"


@pytest.fixture
def transport():
    return LocalTransport()


@pytest.fixture
def address(tmp_path):
    return f"unix://{tmp_path}/it.sock"


def left_behind(path):
    """A socket file whose process was killed."""
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(str(path))
    sock.listen()
    sock.close()


def works(transport, listener, me=CALLER):
    caller, end = meet(transport, listener, me)
    caller.close()
    end.connection.close()
    return True


@pytest.mark.parametrize(
    "bad",
    ["unix://it.sock", "unix://./it.sock", "unix://", "unix:/x", "/x", "tcp:///x", "unix:///a\0b"],
)
def test_a_relative_path_is_refused(bad):
    with pytest.raises(AddressInvalid, match="unix:///PATH"):
        path_of(bad)


def test_a_name_that_is_too_long_is_refused(transport):
    assert path_of("unix:///" + "x" * (PATH_BYTES_MAX - 1)).name
    folder = "f" * PATH_BYTES_MAX
    assert path_of(f"unix:///{folder}/" + "x" * NAME_BYTES_MAX).name
    for name in ("x" * (NAME_BYTES_MAX + 1), "é" * (NAME_BYTES_MAX // 2 + 1)):
        long = f"{folder}/{name}"
        with pytest.raises(AddressInvalid, match="80 bytes"):
            transport.connect(f"unix:///{long}", CALLER, 1.0)


@pytest.mark.parametrize("length", [PATH_BYTES_MAX, PATH_BYTES_MAX + 1, 4000])
def test_a_folder_may_be_longer_than_a_sockets_address(transport, tmp_path, length):
    """The kernel takes 107 bytes; a user's temporary folder may have more."""
    name, folder = "it.sock", tmp_path
    while (missing := length - len(f"{folder}/{name}")) > 0:
        folder /= "f" * max(min(missing - 1, 200), 1)
    address = f"unix://{folder}/{name}"
    assert len(address) >= length + len("unix://")
    with pytest.raises(HandshakeFailed, match="No such file"):
        transport.connect(address, CALLER, 1.0)
    folder.mkdir(parents=True, mode=0o700)
    listener = transport.listen(address, LISTENER)
    with pytest.raises(AddressInUse):
        transport.listen(address, LISTENER)
    assert works(transport, listener)
    listener.close()
    assert not list(folder.iterdir())
    with socket.socket(socket.AF_UNIX) as left:
        descriptor = os.open(folder, os.O_PATH)
        left.bind(f"/proc/self/fd/{descriptor}/{name}")
        os.close(descriptor)
    listener = transport.listen(address, LISTENER)
    assert works(transport, listener)
    listener.close()
    (folder / name).write_text("precious")
    with pytest.raises(AddressInvalid, match=f"{name} is a file that is no socket"):
        transport.listen(address, LISTENER)


def test_a_missing_directory_is_made_for_its_owner_only(transport, tmp_path):
    listener = transport.listen(f"unix://{tmp_path}/new/er/it.sock", LISTENER)
    for made in ("new", "new/er"):
        assert (tmp_path / made).stat().st_mode & 0o777 == 0o700
    assert works(transport, listener)
    listener.close()


@pytest.mark.parametrize("mode", [0o755, 0o701, 0o710, 0o770, 0o1777])
def test_an_open_directory_needs_a_token(transport, tmp_path, mode):
    directory = tmp_path / "open"
    directory.mkdir()
    directory.chmod(mode)
    address = f"unix://{directory}/it.sock"
    with pytest.raises(AddressInvalid, match=r"open to other users \(mode .*0700, or a token"):
        transport.listen(address, OPEN)
    assert not list(directory.iterdir())
    listener = transport.listen(address, LISTENER)
    assert works(transport, listener)
    listener.close()
    directory.chmod(0o700)
    transport.listen(address, OPEN).close()


def test_a_directory_of_another_user_needs_a_token(transport, address, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(AddressInvalid, match="open to other users"):
        transport.listen(address, OPEN)


def test_a_closed_listener_removes_its_socket_file(transport, address):
    listener = transport.listen(address, LISTENER)
    path = path_of(address)
    assert path.is_socket()
    listener.close()
    assert not path.exists()
    listener.close()


def test_a_listener_whose_file_is_gone_closes_quietly(transport, address):
    listener = transport.listen(address, LISTENER)
    path_of(address).unlink()
    listener.close()


def test_a_closed_listener_leaves_its_successors_file(transport, address):
    first = transport.listen(address, LISTENER)
    path_of(address).rename(path_of(address).with_name("moved"))
    second = transport.listen(address, LISTENER)
    first.close()
    assert works(transport, second)
    second.close()
    first.close()


def test_a_stale_socket_file_is_taken_over(transport, address):
    left_behind(path_of(address))
    listener = transport.listen(address, LISTENER)
    assert works(transport, listener)
    listener.close()


def test_a_killed_processs_socket_file_is_taken_over(transport, address):
    with subprocess.Popen(
        [sys.executable, LISTENS, address], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout.readline() == "listening\n"
        with pytest.raises(AddressInUse):
            transport.listen(address, LISTENER)
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert path_of(address).is_socket()
    listener = transport.listen(address, LISTENER)
    assert works(transport, listener)
    listener.close()


def test_one_of_many_listeners_takes_over_a_stale_file(transport, address):
    """All see that it was left behind; one gets it, and the others are told that it is taken."""
    for _ in range(10):
        left_behind(path_of(address))
        got, start = [], threading.Barrier(8)

        def contend(got=got, start=start):
            start.wait()
            try:
                got.append(transport.listen(address, LISTENER))
            except AddressInUse as error:
                got.append(error)

        threads = [threading.Thread(target=contend) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        listeners = [each for each in got if not isinstance(each, AddressInUse)]
        assert len(listeners) == 1
        assert works(transport, listeners[0])
        listeners[0].close()


def test_other_files_are_never_removed(transport, tmp_path):
    file = tmp_path / "model.pt"
    file.write_text("precious")
    with pytest.raises(AddressInvalid, match="no socket"):
        transport.listen(f"unix://{file}", LISTENER)
    assert file.read_text() == "precious"
    (tmp_path / "folder").mkdir()
    with pytest.raises(AddressInvalid, match="no socket"):
        transport.listen(f"unix://{tmp_path}/folder", LISTENER)
    (tmp_path / "link").symlink_to(file)
    with pytest.raises(AddressInvalid, match="no socket"):
        transport.listen(f"unix://{tmp_path}/link", LISTENER)
    assert file.read_text() == "precious"


def test_a_listener_whose_queue_is_full_is_not_taken_over(transport, address):
    with socket.socket(socket.AF_UNIX) as busy:
        busy.bind(str(path_of(address)))
        busy.listen(0)
        callers = [socket.socket(socket.AF_UNIX) for _ in range(4)]
        for caller in callers:
            caller.setblocking(False)
            caller.connect_ex(str(path_of(address)))
        with pytest.raises(AddressInUse):
            transport.listen(address, LISTENER)
        for caller in callers:
            caller.close()


@pytest.mark.parametrize("under", ["file", "file/deeper"])
def test_a_directory_that_cannot_be_made_is_refused(transport, tmp_path, under):
    (tmp_path / "file").touch()
    with pytest.raises(AddressInvalid, match="cannot listen at"):
        transport.listen(f"unix://{tmp_path}/{under}/it.sock", LISTENER)


def test_a_connection_to_nobody_fails_with_the_reason(transport, address, tmp_path):
    with pytest.raises(HandshakeFailed, match="No such file"):
        transport.connect(address, CALLER, 1.0)
    left_behind(path_of(address))
    with pytest.raises(HandshakeFailed, match="Connection refused"):
        transport.connect(address, CALLER, 1.0)
    (tmp_path / "file").touch()
    with pytest.raises(HandshakeFailed, match="no process answers at"):
        transport.connect(f"unix://{tmp_path}/file", CALLER, 1.0)


def test_a_listener_that_does_not_answer_times_out(transport, address):
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(path_of(address)))
        silent.listen()
        with pytest.raises(HandshakeFailed, match="in time"):
            transport.connect(address, CALLER, 0.05)


def test_a_listener_that_hangs_up_fails_the_connection(transport, address):
    with socket.socket(socket.AF_UNIX) as rude:
        rude.bind(str(path_of(address)))
        rude.listen()
        threading.Thread(target=lambda: rude.accept()[0].close()).start()
        with pytest.raises(HandshakeFailed, match="closed the connection"):
            transport.connect(address, CALLER, 5.0)


def test_a_closed_connection_leaves_no_file(transport, tmp_path, address):
    with connected(lambda: (transport, address)):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_listener_without_descriptors_left_refuses_callers(transport, address):
    listener = transport.listen(address, LISTENER)
    callers = [socket.socket(socket.AF_UNIX) for _ in range(3)]
    for caller in callers:
        caller.connect(str(path_of(address)))
    lowest = os.dup(0)
    os.close(lowest)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limits[1]))
    try:
        assert [listener.accept() for _ in callers] == [None] * 3
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    for caller in callers:
        caller.settimeout(5)
        assert caller.recv(1) == b"", "it waits for an answer that will not come"
        caller.close()
    works(transport, listener)
    listener.close()
