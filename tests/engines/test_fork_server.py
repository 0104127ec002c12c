import json
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path
from threading import Thread

import pytest

from shoal.engines.addresses import advertised

pytestmark = pytest.mark.usefixtures("processes_are_those_of_users")
PARENT = Path(__file__).parent / "scripts" / "parent.py"


def fork_server(tmp_path):
    ours, theirs = socket.socketpair()
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "shoal.engines.fork_server",
            str(theirs.fileno()),
            str(tmp_path / "s"),
            str(os.getpid()),
        ],
        pass_fds=(theirs.fileno(),),
        stderr=subprocess.PIPE,
        text=True,
    )
    theirs.close()
    return ours, process


def command(tmp_path, name, entry, args):
    return (
        json.dumps(
            {
                "name": name,
                "launch": f"launch of {name}",
                "label": "this host",
                "entry": entry,
                "args": args,
                "log": str(tmp_path / "log"),
                "error": str(tmp_path / "error"),
            }
        ).encode()
        + b"\n"
    )


def read_reports(sock, count):
    data = b""
    while data.count(b"\n") < count:
        data += (more := sock.recv(1 << 16))
        assert more, "the fork server has died"
    return [json.loads(line) for line in data.splitlines()]


def test_a_fork_server_reports_starts_and_exits_and_ends_with_its_commands(tmp_path):
    ours, process = fork_server(tmp_path)
    ours.sendall(command(tmp_path, "a", "shoal.keys:KeyRange", {"start": 5, "stop": 2}))
    started, exited = read_reports(ours, 2)
    assert started == {"name": "a", "launch": "launch of a", "pid": started["pid"]}
    assert exited == {**started, "code": 1}
    assert json.loads((tmp_path / "error").read_text())["type"] == "InvalidValue"
    ours.close()
    assert process.communicate(timeout=10)[1] == ""
    assert process.returncode == 0


def test_a_fork_server_ends_quietly_if_nobody_reads_its_reports(tmp_path):
    (tmp_path / "s").mkdir()
    ours, process = fork_server(tmp_path)
    ours.sendall(command(tmp_path, "a", "shoal.keys:KeyRange", {"start": 0, "stop": 2}))
    ours.recv(1, socket.MSG_PEEK)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    ours.close()  # as a process does that is killed: the fork server's next read is reset
    assert process.communicate(timeout=10)[1] == ""
    assert process.returncode == 0
    assert not (tmp_path / "s").exists()


def test_a_fork_server_outlives_the_thread_that_started_it(tmp_path):
    started = []
    thread = Thread(target=lambda: started.append(fork_server(tmp_path)))
    thread.start()
    thread.join()
    [(ours, process)] = started
    ours.sendall(command(tmp_path, "a", "shoal.keys:KeyRange", {"start": 0, "stop": 2}))
    begun, exited = read_reports(ours, 2)
    assert (begun["name"], exited["name"], exited["code"]) == ("a", "a", 0)
    ours.close()
    assert process.communicate(timeout=10)[1] == ""
    assert process.returncode == 0


def test_a_fork_server_ends_with_its_parent_though_others_hold_its_commands(tmp_path):
    """As processes do that the parent has forked."""
    (tmp_path / "s").mkdir()
    ours, theirs = socket.socketpair()
    with subprocess.Popen(
        [sys.executable, PARENT, str(theirs.fileno()), str(tmp_path / "s")],
        pass_fds=(theirs.fileno(),),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    ) as parent:
        theirs.close()
        ours.sendall(command(tmp_path, "a", "shoal.keys:KeyRange", {"start": 0, "stop": 2}))
        assert read_reports(ours, 2)
        parent.kill()
    ours.settimeout(10)
    assert ours.recv(1) == b""  # the fork server's end of it is closed
    ours.close()
    assert not (tmp_path / "s").exists()


def test_advertised_replaces_the_host_of_a_listening_address():
    assert advertised("tcp://0.0.0.0:4567", "") == "tcp://0.0.0.0:4567"
    assert advertised("tcp://0.0.0.0:4567", "tcp://a.example:9") == "tcp://a.example:9"
    assert advertised("tcp://0.0.0.0:4567", "tcp://a.example:0") == "tcp://a.example:4567"
    assert advertised("unix:///a.sock", "unix:///b.sock") == "unix:///b.sock"


def test_the_fork_server_imports_little_before_it_is_told_to():
    """A scheduler is forked before torch is imported, and is up in a tenth of a second."""
    code = "import sys, shoal.engines.fork_server; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    names = {*done.stdout.decode().split()}
    assert not names & {"torch", "numpy", "ssl", "shoal.transport", "shoal.client.places"}
    assert len([name for name in names if name.startswith("shoal")]) < 20
