"""Runs over TLS: on machines that share nothing but the network, as ranks, and by hand."""

import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from shoal.apps.keys import add_certificate, make_authority
from shoal.apps.train.command import TrainApplication
from shoal.engines.hosts import NAMESPACES, Hosts
from shoal.reports.events import read_events
from shoal.runs.job import from_mapping
from shoal.runs.run import run_here
from shoal.testing.machines import MachinesEngine
from tests.real.test_launchers import SHOAL, TRAIN, done, losses, slurm
from tests.real.test_machines import DIGITS
from tests.real.texts import text
from tests.transport.rigs import authority, free_port, keys_of

pytestmark = pytest.mark.real
needs_namespaces = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("tc"), reason="needs namespaces"
)
SNIFF = """
import socket, sys
sniffer = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
print("ready", flush=True)
while True:
    sys.stdout.buffer.write(sniffer.recv(65536))
    sys.stdout.buffer.flush()
"""


@contextmanager
def sniffed(hosts, into):
    """Write all that passes between the machines into a file, while the block lasts."""
    hub = f"--net={NAMESPACES / hosts._hub}"
    with into.open("wb") as file:
        sniffer = subprocess.Popen(["nsenter", hub, sys.executable, "-c", SNIFF], stdout=file)
        while not into.stat().st_size:
            assert sniffer.poll() is None
        try:
            yield
        finally:
            sniffer.kill()
            sniffer.wait()


def train_apart(tmp_path, title):
    """Train on two machines; the run's folder, and what passed between them."""
    seen = tmp_path / f"{title}.bytes"
    with Hosts("ab") as hosts, sniffed(hosts, seen):
        engine = MachinesEngine(
            hosts, tmp_path / title, lambda name: "ab"[int(name.partition("-")[2] or 0) % 2]
        )
        job = from_mapping(DIGITS | {"out": str(tmp_path / "runs"), "title": title})
        summary = run_here(TrainApplication(job, []), engine=engine)
    return Path(summary["run_dir"]), seen.read_bytes()


def steps(run):
    events = read_events(run / "events.jsonl")
    return {(e["node"], e["step"]): e["loss"] for e in events if e["kind"] == "step"}


@needs_namespaces
def test_machines_say_nothing_in_the_open(tmp_path, monkeypatch):
    monkeypatch.delenv("SHOAL_TLS", raising=False)
    plain, open_bytes = train_apart(tmp_path, "plain")
    monkeypatch.setenv("SHOAL_TLS", str(keys_of("node")))
    encrypted, closed_bytes = train_apart(tmp_path, "encrypted")
    assert steps(plain) == steps(encrypted)
    for words in (b"SHOL", b"worker", b"server"):
        assert words in open_bytes
        assert words not in closed_bytes
    logs = {
        run: "".join(each.read_text() for each in run.glob("logs/*")) for run in (plain, encrypted)
    }
    assert text("encrypted.plain_link") in logs[plain]
    assert text("encrypted.plain_link") not in logs[encrypted]


def test_ranks_of_two_hosts_train_over_tls_bit_by_bit(tmp_path):
    here = tmp_path / "here"
    train = [*TRAIN, "--strategy", "sync", "--workers", "4"]
    subprocess.run([*train, "--out", str(here)], check=True, capture_output=True)
    apart = tmp_path / "apart"
    words = [*TRAIN, "--strategy", "sync", "--tls", str(keys_of("node")), "--require-tls"]
    done(*slurm([*words, "--out", str(apart)]))
    assert losses(apart) == losses(here)
    [run] = apart.iterdir()
    assert "listening at tls://" in (run / "logs" / "scheduler.log").read_text()


@pytest.mark.parametrize(
    ("stranger", "told"),
    [
        ("plain", text("encrypted.plain")),
        ("another authority", text("encrypted.another_authority")),
    ],
)
def test_roles_by_hand_talk_over_tls_and_refuse_others(tmp_path, stranger, told):
    """A worker that cannot come in ends with the reason; those that can train on."""
    address = f"tls://127.0.0.1:{free_port()}"
    job = tmp_path / "job.toml"
    job.write_text('data = "digits"\nepochs = 1\nworkers = 1\nservers = 1\n')
    env = {**os.environ, "SHOAL_TOKEN": "a token of sixteen characters"}
    env["SHOAL_TLS"] = str(keys_of("node"))
    started = []

    def start(*words, **more):
        process = subprocess.Popen(
            [*SHOAL, *words], cwd=tmp_path, env=env | more, stderr=subprocess.PIPE, text=True
        )
        started.append(process)
        return process

    start("scheduler", "--listen", address, "--workers", "1", "--servers", "1")
    start("server", "--scheduler", address)
    if stranger == "plain":
        other = start(
            "worker", "--scheduler", address.replace("tls:", "tcp:"), "--rank", "0", str(job)
        )
    else:
        theirs = str(keys_of("node", "others"))
        other = start("worker", "--scheduler", address, "--rank", "0", str(job), SHOAL_TLS=theirs)
    _, errors = other.communicate(timeout=60)
    assert other.returncode != 0
    assert told in errors
    start("worker", "--scheduler", address, "--rank", "0", str(job))
    for each in started:
        if each is not other:
            _, errors = each.communicate(timeout=60)
            assert each.returncode == 0, errors


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--tls", "nowhere"], text("encrypted.nowhere")),
        (["--transport", "tls"], text("encrypted.needs_certificate")),
    ],
)
def test_a_run_without_a_certificate_is_refused_before_it_begins(tmp_path, words, told):
    env = {name: value for name, value in os.environ.items() if name != "SHOAL_TLS"}
    out = tmp_path / "runs"
    train = [*TRAIN, "--workers", "1", "--out", str(out), *words]
    ended = subprocess.run(
        train, cwd=tmp_path, env=env, check=False, capture_output=True, text=True
    )
    assert ended.returncode == 2
    assert told in ended.stderr
    assert not out.exists()


def test_folders_of_keys_are_shown_and_checked(tmp_path):
    make_authority(tmp_path / "keys", "mine")
    own = add_certificate(tmp_path / "keys", "node-0")
    shown = subprocess.run([*SHOAL, "keys", str(own)], check=True, capture_output=True, text=True)
    assert "'node-0', by 'mine', until" in shown.stdout
    (own / "key.pem").chmod(0o644)
    ended = subprocess.run([*SHOAL, "keys", str(own)], check=False, capture_output=True, text=True)
    assert ended.returncode == 2
    assert f"chmod 600 {own / 'key.pem'}" in ended.stderr
    assert authority().exists()
