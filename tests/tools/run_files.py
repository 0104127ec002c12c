"""Writes the files of a small run, of every kind that Shoal reads.

They are written by the functions that runs write them with, and are the same each time.
"""

import json
import random
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.torch import save_file
from torch import nn

from shoal.apps.ctr.columns.values import ColumnKeys, write_seen
from shoal.apps.ctr.scores import Scores
from shoal.apps.ctr.spec import CtrSpec
from shoal.apps.train import setup as train_setup
from shoal.apps.word2vec.corpus import Corpus
from shoal.data.cache import kept
from shoal.data.datasets import load_csv
from shoal.data.readers import read_idx
from shoal.keys import KeyRange, slot_of, split_evenly
from shoal.protocol.checkpoint_clocks import CheckpointClocks
from shoal.protocol.machine import Save
from shoal.protocol.messages.base import SCHEDULER
from shoal.protocol.scheduler.leases.ledger import Granted, LedgerRecord, Span
from shoal.protocol.scheduler.leases.log import LeaseGranted, LedgerBegun, WorkerGone
from shoal.protocol.views import View
from shoal.pytorch.worker_state import WorkerStates
from shoal.runs.grid import comparison_from, dump_comparison
from shoal.runs.job import JobSpec
from shoal.runs.job_file import dump_job
from shoal.simulation.scenario import Scenario
from shoal.storage.checkpoints import Writer
from shoal.storage.comparison_folder import ComparisonFolder
from shoal.storage.event_log import EventLog
from shoal.storage.files import FORMAT, FORMAT_KEY
from shoal.storage.journal import Journal
from shoal.storage.lease_log import LeaseLogFile
from shoal.storage.run_folder import RunFolder
from shoal.storage.shards import save_shards
from shoal.tables.opening import open_shard
from shoal.tables.spec import Access, TableSpec
from tests.data import files as data_files

CLOCKS = (10, 20, 30)
JOB = JobSpec(
    data="csv:data.csv", layers=[["Linear", 4], "ReLU", ["Linear", 3]], workers=2, epochs=2
)
SPECS = (
    TableSpec("w", 20, (2,), access=Access("adam", {"lr": 0.1}), fragment_rows=3),
    TableSpec("e", 0, (3,), kind="sparse", access=Access("adagrad"), fragment_rows=16),
    TableSpec("b", 0, (2,), kind="sparse", max_rows=60, evict="lfu", access=Access("adam")),
    TableSpec("kv", kind="custom", access=Access("lists")),
)


def write_files(folder: Path) -> None:
    """Write every kind of file."""
    run = RunFolder(folder)
    for each in ("logs", "writes", "data", "texts", "cache"):
        (folder / each).mkdir(parents=True)
    run.write_job(dump_job(JOB))
    (folder / "ctr").mkdir()
    RunFolder(folder / "ctr").write_job(dump_job(CtrSpec(model="deepfm", fields=3), "ctr"))
    run.write_summary({"accuracy": 0.5, "run_dir": "run", "by_worker": [{"samples": 3}]})
    _write_events(run)
    _write_shards(run)
    _write_state_of_worker(run)
    _write_journal(folder / "scheduler.state")
    _write_leases(run)
    run.scheduler.write_text("unix:///tmp/nowhere/scheduler.sock")
    run.token.write_text("0123456789abcdef")
    for rank in range(JOB.workers):
        figures = ("accuracy", "loss", "best_accuracy", "staleness", "samples", "seconds", "steps")
        numbers = dict.fromkeys(
            (*figures, "bytes_pushed", "bytes_pulled", "bytes_sent", "bytes_received"), 1 + rank
        )
        run.write_result(rank, numbers)
    column = ColumnKeys("city", 10)
    column.of(["Oslo", "São Paulo", "007"])
    write_seen(run.values(0), {"city": column})
    run.error("worker-0").write_text(
        json.dumps({"type": "DataCorrupt", "message": "text", "story": ["1.0 a", "2.0 b"]})
    )
    _write_data(folder)
    _write_comparison(folder / "compared")


def _write_comparison(path: Path) -> None:
    options = {"strategy": ["sync", "ssp"], "staleness": [1, 2], "seeds": 2}
    options |= {"simulated": True, "pace": "1,2"}
    comparison = comparison_from({}, options)
    folder = ComparisonFolder(path)
    path.mkdir()
    folder.write_comparison(dump_comparison(comparison))
    folder.write_cells([(cell.name, cell.folder, {**cell.values}) for cell in comparison.cells()])


def _write_events(run: RunFolder) -> None:
    header = {"t": 0.0, "kind": "format", "node": "", FORMAT_KEY: FORMAT}
    run.events.write_text(json.dumps(header) + "\n")
    logs = {name: EventLog(run.events, name, 0.0) for name in ("scheduler", "worker-0", "worker-1")}
    for log in logs.values():
        log.elapsed = lambda: 1.25  # type: ignore[method-assign]
    logs["scheduler"].write("view", view=(1, 1), reason="", whole=True, servers=2, workers=2)
    for rank in range(2):
        log = logs[f"worker-{rank}"]
        log.write("begin", rank=rank, samples=20, batches=4, weights="0123456789abcdef")
        for step in range(3):
            log.write("step", step=step, epoch=0, loss=0.5 / (1 + step), samples=5, staleness=0,
                      idle_s=0.25, bytes_sent=100 * step, bytes_received=50 * step)  # fmt: skip
        log.write("eval", step=3, epoch=0, accuracy=0.96, loss=0.25, seconds=0.125)
        log.write("logged", rank=rank, step=3, figures={"loss": 0.25, "odd": None})
    logs["scheduler"].write("lost", name="worker-1", how="killed")
    logs["scheduler"].write("dropped", name="worker-1", reason="slow")
    logs["scheduler"].write("ending", reason="all workers have finished")
    logs["worker-0"].write("table", table="w", rank=0, rows=10, evicted=0)
    logs["worker-0"].write("end", rank=0)
    for log in logs.values():
        log.close()


def ranges_of(spec: TableSpec) -> list[KeyRange]:
    return [KeyRange(0, 9), KeyRange(9, 20)] if spec.kind == "dense" else split_evenly(4096, 2)


def _keys(held: KeyRange, count: int, first: int = 0) -> list[int]:
    return [key for key in range(first, first + count) if slot_of(key) in held]


def push(shard: Any, step: int) -> None:
    spec = shard.spec
    if spec.kind == "custom":
        lists = {k: np.arange(k % 3, dtype=np.float32) for k in _keys(shard.held, 15 + step)}
        shard.handler.rows.update(lists)
        return
    keys = None if spec.kind == "dense" else _keys(shard.held, 12 if step > 1 else 50, 10 * step)
    staged = shard.stage(shard.held, -1 if keys is None else len(keys))
    if keys is not None:
        staged.keys[:] = keys
    staged.values[:] = step
    shard.apply(staged, None)


def _write_shards(run: RunFolder) -> None:
    shards = [[open_shard(spec, ranges_of(spec)[server]) for spec in SPECS] for server in range(2)]
    names = tuple(spec.name for spec in SPECS)
    writer, before = Writer(lambda: run.checkpoints), -1
    for step, clock in enumerate(CLOCKS, 1):
        for server in shards:
            for number, shard in enumerate(server):
                push(shard, step)
                changes = getattr(shard, "changes", lambda: None)() if before >= 0 else None
                state = shard.state(copied=True) if changes is None else changes
                since = -1 if changes is None else before
                writer.put(Save(clock, number, shard.spec, shard.held, state, names, since))
        before = clock
    writer.close()
    for rank, server in enumerate(shards):
        save_shards(run.shards, rank, [(0, shard) for shard in server])


def module() -> nn.Module:
    return nn.BatchNorm1d(3)


def _write_state_of_worker(run: RunFolder) -> None:
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    states = WorkerStates(run.checkpoints, 0, CheckpointClocks(10))
    states.reached(View(1, 1, (), ()), CLOCKS[-1], module())


def _write_journal(path: Path) -> None:
    """The last journal of a simulated scheduler."""
    scenario = Scenario(3)
    scenario.world.run(until=60.0, most_events=120_000)
    disk = scenario.world.nodes[SCHEDULER].disk
    assert disk is not None
    Journal(path).write(disk.record)


def _write_leases(run: RunFolder) -> None:
    entries = (
        LedgerBegun(LedgerRecord(2, 4), 0),
        LeaseGranted(2, 4, Granted(7, 0, Span(0, 0, 2))),
        LeaseGranted(2, 4, Granted(8, 0, Span(0, 2, 2))),
        WorkerGone(8, 1),
        LeaseGranted(2, 4, Granted(7, 2, Span(0, 3, 1))),
        LeaseGranted(2, 4, Granted(7, 3, Span(1, 0, 2))),
    )
    log = LeaseLogFile(run.leases)
    for entry in entries:
        log.append(msgspec.json.encode(entry))
    log.close()


def _write_data(folder: Path) -> None:
    draw, data = np.random.default_rng(0), folder / "data"
    rows = "\n".join(f"{a:.2f},{b:.2f},{i % 3}" for i, (a, b) in enumerate(draw.random((40, 2))))
    (data / "data.csv").write_text(f"one,two,class\n{rows}\n")
    data_files.write(data / "images.idx", data_files.idx((30, 8, 8)))
    data_files.write(data / "images.idx.gz", data_files.idx((30, 8, 8)))
    data_files.write(data / "cifar.bin", data_files.cifar([1, 2, 3]))
    members = {f"{i}/{i:05d}.jpg": data_files.jpeg((i, 0, 0)) for i in range(3)}
    data_files.write(data / "images.tar", data_files.tar(members))
    data_files.write(data / "large.idx", data_files.idx((300, 30, 30)))
    kept(folder / "cache", data / "large.idx", read_idx)
    libsvm = "\n".join(f"{i % 2} {i}:1.5 {i * 7}:0.25" for i in range(40))
    (data / "rows.libsvm").write_text(libsvm + "\n")
    criteo = "\t".join(["1", *["3"] * 13, *["ab12"] * 26])
    (data / "rows.criteo").write_text(f"{criteo}\n" * 5)
    table = {"kind": [f"k{i % 5}" for i in range(60)], "size": [i / 3 for i in range(60)]}
    table["label"] = [i % 2 for i in range(60)]
    lines = "".join(f"{k},{s:.4f},{n}\n" for k, s, n in zip(*table.values(), strict=True))
    for name in ("table.csv", "table.csv.gz"):
        data_files.write(data / name, b"kind,size,label\n" + lines.encode())
    pq.write_table(pa.table(table), data / "table.parquet", row_group_size=20)
    text = "The cat sat on the mat. The dog sat too.\n" * 10
    data_files.write(data / "text.txt", text.encode())
    data_files.write(data / "text.txt.gz", text.encode())
    Corpus.of(text.splitlines(), 1).save(data / "corpus.npz")
    (data / "questions.txt").write_text(": capitals\na b c d\ne f g h\n")
    (data / "pairs.txt").write_text("cat dog 5.5\nmat sat 1.5\n")
    scores = Scores()
    scores.add(np.linspace(-1, 1, 8, dtype=np.float32), np.array([0, 1] * 4, np.float32))
    scores.save(data / "test.npz")
    (folder / "writes" / "00.writes").write_bytes(
        b"".join(what + key.to_bytes(8, "little") for key in range(9) for what in (b"i", b"a"))
    )
    trained = train_setup.build_model(JOB, load_csv("data.csv", [data, folder / "cache"]))
    save_file(trained.state_dict(), RunFolder(folder).model)
