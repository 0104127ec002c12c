"""Random and mutated frames against live nodes and machines: no crash, no effect on tables.

`python tests/real/test_fuzz.py 1000000` runs more of them and prints what happened.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from random import Random

import pytest
import torch

from shoal.client.client import Client
from shoal.engines.cluster import start_cluster
from shoal.engines.processes import Processes
from shoal.errors import ShoalError
from shoal.protocol.messages.base import Part
from shoal.protocol.messages.membership import Frozen
from shoal.protocol.messages.requests import Nudge, Probe, Request
from shoal.storage.run_folder import RunFolder
from shoal.tables.spec import Access, TableSpec
from shoal.testing.messages import EXAMPLES
from shoal.transport import Identity, transport_for
from shoal.transport.wire import PUT, SHARED, TAKEN, encode, signal
from tests.tools import fuzz_machines
from tests.tools import fuzz_sockets as authenticated

pytestmark = pytest.mark.real


def frames(random):
    """One malformed or mutated frame after the other."""
    parts = (Part(0, 0, 1000),)
    valid = [
        encode(Request((1, 2), 3, 5, 0, 0, parts, 1, parts), 4000) + random.randbytes(4000),
        encode(Nudge("x"), 4000, SHARED) + signal(PUT, 4000),
        encode(Nudge("x"), 4000, SHARED) + signal(PUT, random.randrange(1 << 33)),
        signal(TAKEN, random.randrange(1 << 33)),
        encode(Probe((1, 2), 3, 5)),
        encode(Frozen((1, 2), ((1, 2),))),
        *(encode(message) for message in EXAMPLES),
    ]
    while True:
        frame = bytearray(random.choice(valid))
        kind = random.randrange(4)
        if kind == 0:
            frame = bytearray(random.randbytes(random.randrange(1, 200)))
        elif kind == 1:
            for _ in range(random.randrange(1, 5)):
                frame[random.randrange(min(len(frame), 80))] = random.randrange(256)
        elif kind == 2:
            frame = frame[: random.randrange(1, len(frame))]
        yield bytes(frame)


def attack(addresses, count, seed):
    """Send that many frames, a few a connection; whoever says hello may speak, and is nobody."""
    random = Random(seed)
    source = frames(random)
    sent = 0
    while sent < count:
        address = random.choice(addresses)
        me = Identity(f"stranger-{sent}", "worker")
        try:
            connection = transport_for(address).connect(address, me, 5.0)
        except ShoalError:
            continue
        sock = connection._sock
        sock.setblocking(True)
        sock.settimeout(5)
        for _ in range(random.randrange(1, 30)):
            try:
                sock.sendall(next(source))
                sent += 1
            except OSError:
                break
        connection.close()
    return sent


def memory_of(processes):
    """Kilobytes that each process has."""
    found = {}
    for name in list(processes.running):
        status = Path(f"/proc/{processes.pid(name)}/status").read_text()
        found[name] = int(status.split("VmRSS:")[1].split()[0])
    return found


def siege(folder, count, seed=0):
    """A scheduler and two servers with two replicas; a client whose requests are timed."""
    with Processes(RunFolder.create(folder, "siege")) as processes:
        client = Client(start_cluster(processes, 2, 1, replicas=2))
        client.create_table(TableSpec("w", 1000, merge="sum", access=Access("sum")))
        client.push("w", torch.arange(1000.0)).wait()
        names = ["scheduler", "server-0", "server-1"]
        addresses = [processes.address(name) for name in names]
        began, sent, rounds, slowest, memory = time.monotonic(), 0, 0, 0.0, {}
        while sent < count:
            sent += attack(addresses, min(2000, count - sent), seed + rounds)
            asked = time.monotonic()
            client.push("w", torch.zeros(1000)).wait()  # the others are served meanwhile
            slowest = max(slowest, time.monotonic() - asked)
            rounds += 1
            for part in (0.1, 0.5):
                if part not in memory and sent >= part * count:
                    memory[part] = memory_of(processes)
        seconds = time.monotonic() - began
        unchanged = torch.equal(client.pull("w").wait(), torch.arange(1000.0))
        after = memory_of(processes)
        alive = not processes.exits(0.1) and sorted(processes.running) == names
        log = processes.folder.log("server-0").read_text()
        kinds = sorted(
            {line.split(": ")[1].split(" x")[0] for line in log.splitlines() if " x" in line}
        )
        client.close()
        processes.finish()
    return {
        "frames": sent,
        "seconds": round(seconds, 1),
        "tables_unchanged": unchanged,
        "alive": alive,
        "slowest_request_s": round(slowest, 3),
        "growth": {  # since a tenth of them, and since half: what is a leak goes on
            part: {name: round(after[name] / before[name] - 1, 4) for name in before}
            for part, before in memory.items()
        },
        "counted": kinds,
    }


def test_malformed_frames_change_nothing(tmp_path):
    report = siege(tmp_path, 2000)
    assert report["tables_unchanged"]
    assert report["alive"]
    assert "BadMagic" in report["counted"]


def test_messages_that_no_member_sends_end_nothing(tmp_path):
    report = authenticated.siege(tmp_path, 4000)
    assert report["ended"] == report["net"] == []
    assert max(report["growth_kib"].values()) < 30 << 10
    assert report["steps_after"] > 0
    assert {"BadContent", "BadMessage"} <= {*report["counted"]}


@pytest.mark.filterwarnings("ignore:invalid value encountered")  # a push of NaNs, in place
def test_machines_raise_nothing_at_messages_that_no_member_sends():
    report = fuzz_machines.fuzz(6000, seed=100)
    assert report.problems == {}
    assert report.counted["handled"] > 1000


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        print(json.dumps(siege(Path(place), int(sys.argv[1]))))
