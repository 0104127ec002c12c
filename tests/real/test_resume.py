"""A run that is resumed from a checkpoint goes on bitwise, whatever its rounds push."""

import json
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("resume")]  # they share a run

STEPS, AT = 24, 10
SCRIPT = """
import json, torch, shoal
from msgspec.structs import replace
from zlib import crc32
from shoal.keys import KeyRange

ROWS, STEPS = 12_000, 24
RATE = {"schedule": "exponential", "schedule_gamma": 0.9}
METHODS = {
    "adam": shoal.tables.Access("adam", {"lr": 0.01}),
    "in pieces": shoal.tables.Access("adam", {"lr": 0.01}),
    "scheduled": shoal.tables.Access("sgd", {"lr": 0.1, "momentum": 0.9, **RATE}),
}

with shoal.init() as context:
    client, rank = context.client, context.rank
    for name, access in METHODS.items():
        size = 1700 if name == "in pieces" else 0  # several on a server, whatever its number
        spec = shoal.TableSpec(name, ROWS, access=access, fragment_rows=size)
        client.create_table(replace(spec, consistency=shoal.bsp()))
    found = {}
    for step in range(context.resumed_at, STEPS):
        draw = torch.Generator().manual_seed(100 * step + rank)
        pushed = []
        for name in METHODS:
            start, stop = sorted(torch.randint(ROWS, (2,), generator=draw).tolist())
            chosen = [KeyRange(0, ROWS), KeyRange(start, stop + 1), KeyRange(0, 700)][step % 3]
            values = torch.randn(len(chosen), generator=draw)
            pushed.append(client.push(name, values, chosen, weight=rank + 1.0))
            if step % 4 == 1:
                keys = torch.randint(start, stop + 1, (40,), generator=draw)
                within = KeyRange(start, stop + 1)
                values = torch.randn(40, generator=draw)
                pushed.append(client.push(name, values, keys, within=within))
        client.advance().wait()
        for each in pushed:
            each.wait()
        rows = [client.blocking.pull(name) for name in METHODS]
        found[step] = [crc32(each.numpy()) for each in rows]
    client.advance(last=True).wait()
    client.barrier("done")
    if rank == 0:
        print(json.dumps(found))
"""


def run(folder, *words):
    """What rank 0 has read after each step."""
    ended = shoal("run", "--out", folder, *words, written(folder)).communicate(timeout=120)
    assert ended[0], ended[1]
    return json.loads(ended[0])


def written(folder):
    path = folder / "script.py"
    path.write_text(SCRIPT)
    return path


def shoal(*words):
    command = [sys.executable, "-m", "shoal", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def after(clock, read):
    return {step: each for step, each in read.items() if int(step) >= clock}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run on two servers that has left checkpoints: its folder, and what it read."""
    out = tmp_path_factory.mktemp("runs")
    read = run(out, "--servers", 2, "--checkpoint-every", AT)
    assert len(read) == STEPS
    return next(out.glob("script-*")), read


@pytest.mark.parametrize(("servers", "replicas"), [(1, 1), (2, 2), (3, 1), (5, 3)])
def test_a_run_of_partial_pushes_resumes_bitwise(whole, servers, replicas, tmp_path):
    folder, read = whole
    more = ["--servers", servers, "--replicas", replicas, "--checkpoint-every", AT]
    again = run(tmp_path, *more, "--resume", folder, "--resume-at", AT)
    assert again == after(AT, read)
    if servers == 3:
        folder = next(tmp_path.glob("script-*"))
        assert run(tmp_path, "--servers", 2, "--resume", folder) == after(2 * AT, read)


def by_hand(folder, script, roles, scheduler):
    """What a cluster of three servers and two workers says: output, and errors of rank 0."""
    address = f"unix://{folder}/hand.sock"
    listen = ["--listen", address, "--workers", 2, "--servers", 3]
    started = [shoal("scheduler", *listen, *scheduler)]
    started += [shoal("server", "--scheduler", address, *roles) for _ in range(3)]
    workers = ["--scheduler", address, *roles, script]
    started += [shoal("worker", "--rank", rank, *workers) for rank in (1, 0)]
    return [process.communicate(timeout=120) for process in started][-1]


def test_a_cluster_started_by_hand_resumes_bitwise(whole, tmp_path):
    folder, read = whole
    roles, script = ["--resume", folder, "--resume-at", AT], written(tmp_path)
    _, refused = by_hand(tmp_path, script, roles, [])
    assert "has fragment_rows 4000 and in" in refused
    assert "6000; declare it with fragment_rows=6000, or start the scheduler with" in refused
    again, errors = by_hand(tmp_path, script, roles, roles)
    assert again, errors
    assert json.loads(again) == after(AT, read)
