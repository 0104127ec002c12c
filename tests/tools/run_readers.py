"""What reads each kind of file of a run (`run_files`)."""

import hashlib
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from io import StringIO
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from click.testing import CliRunner
from rich.console import Console
from torch import Tensor

from shoal import errors
from shoal.apps.chaos.write_log import judge
from shoal.apps.ctr.columns.reader import TableReader
from shoal.apps.ctr.columns.values import read_seen
from shoal.apps.ctr.command import _tables as tables_in_events
from shoal.apps.ctr.readers import Reader
from shoal.apps.ctr.scores import figures
from shoal.apps.ctr.spec import CtrSpec, Format, spec_of
from shoal.apps.train import setup as train_setup
from shoal.apps.train.command import TrainApplication, summarise
from shoal.apps.word2vec.corpus import load_ids, read_lines
from shoal.apps.word2vec.vectors import pairs_in, questions_in
from shoal.cli.group import main
from shoal.cli.training import job_values
from shoal.client.places import read_address, token_at
from shoal.data.cache import kept
from shoal.data.datasets import load_csv
from shoal.data.images import read_images
from shoal.data.readers import read_cifar, read_idx
from shoal.engines.local import reported
from shoal.engines.roles import restored
from shoal.errors import ProcessDied, ShoalError
from shoal.protocol.checkpoint_clocks import CheckpointClocks
from shoal.protocol.scheduler.leases.ledger import LedgerRecord
from shoal.protocol.scheduler.options import SchedulerOptions
from shoal.pytorch.worker_state import WorkerStates
from shoal.reports.comparison import CellRuns, load_comparison
from shoal.reports.events import load_run, read_events, time_to, write_tables
from shoal.reports.figures import figures_of
from shoal.reports.live import Live
from shoal.runs.job import from_mapping
from shoal.runs.job_file import load_job
from shoal.runs.resume import resumed_at, resumed_from
from shoal.storage.checkpoints import Checkpoints
from shoal.storage.journal import Journal
from shoal.storage.run_folder import RunFolder
from shoal.storage.shards import SavedShards
from shoal.tables.opening import open_shard
from shoal.tables.spec import TableSpec
from tests.tools.run_files import CLOCKS, JOB, SPECS, module, push, ranges_of

Reads = Callable[[Path, Path], Any]  # of the run's folder and of the file


class Said(ShoalError):
    """A command ended with a typed error, which it printed."""


def command(*arguments: str) -> None:
    """A command of the program, in this process.

    Raises:
        Said: it ended with a typed error
    """
    result = CliRunner().invoke(main, arguments, catch_exceptions=False)
    if result.exit_code:
        name = result.stderr.partition(":")[0]
        assert issubclass(getattr(errors, name), ShoalError)
        raise Said(result.stderr)


def digest(tensors: Iterable[Mapping[str, Tensor]]) -> str:
    found = hashlib.sha256()
    for state in tensors:
        for name, tensor in sorted(state.items()):
            found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            found.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def merged(folder: Path) -> str:
    saved = SavedShards(folder)
    return digest(saved.merged(name) for name in sorted(saved.tables))


def opened(folder: Path, specs: Iterable[TableSpec] = SPECS) -> str:
    """All tables on one server, and on the first of two, which then trains."""
    saved = SavedShards(folder)
    known = [spec for spec in specs if spec.name in saved.tables]
    whole = [saved.beginning(open_shard)(spec, spec.keys) for spec in known]
    content = digest(shard.state() for shard in whole)
    for shard in (*whole, *(saved.beginning(open_shard)(s, ranges_of(s)[0]) for s in known)):
        push(shard, 7)
        push(shard, 8)
        shard.state()
    return content


def exported(folder: Path) -> None:
    command("export", str(folder), "--out", str(folder / "out.safetensors"))
    command("export", str(folder), "--format", "text", "--out", str(folder / "out"))


def resumed(run: Path) -> str:
    """As `shoal train --resume`, up to the start of its processes."""
    clock = resumed_at(str(run))
    folder = RunFolder(run).checkpoint(clock)
    return f"{clock} {resumed_from(str(run), clock)} {merged(folder)}"


def checkpoint(run: Path) -> str:
    folder = RunFolder(run).checkpoint(CLOCKS[-1])
    return merged(folder) + opened(folder)


def pruned(run: Path) -> None:
    """As a server does, which goes on where it cannot."""
    Checkpoints(RunFolder(run).checkpoints).keep(1)


def taken_up(run: Path) -> str:
    restored_module = module()
    states = WorkerStates(RunFolder(run).checkpoints, 0, CheckpointClocks())
    if states.take_up(CLOCKS[-1], restored_module) is None:
        return "a new state"
    drawn = torch.rand(2), torch.from_numpy(np.random.rand(2)), torch.tensor(random.random())
    return digest(
        [{**dict(restored_module.named_buffers()), **{str(i): t for i, t in enumerate(drawn)}}]
    )


def restarted(run: Path) -> str:
    journal = Journal(run / "scheduler.state")
    machine = restored(SchedulerOptions(2, 2), journal, LedgerRecord())
    effects: list[Any] = []
    machine._persist(effects)
    return hashlib.sha256(msgspec.msgpack.encode(effects[0].record)).hexdigest()


def followed(run: Path) -> None:
    with Live(Console(file=StringIO()), run / "events.jsonl", 2, 2) as live:
        live.tick()


def drawn(run: Path) -> None:
    """What `shoal report` draws of a run."""
    figures_of([CellRuns("run", {}, {0: load_run(run)})], 0.5)


def compared(run: Path) -> None:
    found = load_comparison(run / "compared")
    found.table()
    found.unlike_weights()
    figures_of(found.cells, found.threshold())


def table_rows(path: Path, kind: Format) -> Iterator[Any]:
    return iter(TableReader(path, kind, CtrSpec(batch_size=16)))


def weights(run: Path) -> None:
    job = msgspec.structs.replace(JOB, init=str(RunFolder(run).model))
    dataset = load_csv("data.csv", [run / "data", run / "cache"])
    train_setup.build_model(job, dataset)


def trained(run: Path) -> None:
    from shoal.apps.train.command import trained_model

    trained_model(JOB, {"run_dir": str(run)}, [run / "data", run / "cache"])


def reported_error(path: Path) -> None:
    if path.exists():  # else nothing was reported
        error = reported(path)
        if isinstance(error, ProcessDied):
            raise error


def why_ended(run: Path) -> None:
    """`shoal why` of a run that has ended: it says so, and why."""
    RunFolder(run).scheduler.unlink(missing_ok=True)
    try:
        command("why", str(run))
    except Said as said:
        if "DataMissing" not in said.message or "has ended" not in said.message:
            raise


def ledger(run: Path) -> str:
    """As `shoal train --resume --on-worker-loss reassign`."""
    job = msgspec.structs.replace(JOB, resume=str(run), on_worker_loss="reassign")
    return str(TrainApplication(job, []).ledger_before(2))


# ---------------------------------------------------------------------------- by kind


def exact(read: Callable[[Path], str]) -> Reads:
    """A reader of the run's folder, which returns what was written or raises."""
    return named(read, lambda run, file: read(run))


def of_run(read: Callable[[Path], Any]) -> Reads:
    """A reader of the run's folder, whose files have no checksum."""
    return named(read, lambda run, file: drained(read(run)))


def of_file(read: Callable[[Path], Any]) -> Reads:
    """A reader of the file, which has no checksum."""
    return named(read, lambda run, file: drained(read(file)))


def named(read: Callable[[Path], Any], reader: Reads) -> Reads:
    reader.__name__ = read.__name__
    return reader


def drained(content: Any) -> None:
    if isinstance(content, Iterator):
        for _ in content:
            pass


class Kind(msgspec.Struct):
    """A kind of file: patterns of its names in the run's folder, and what reads it.

    appended:  whether it is a log, whose first entries are right as well
    """

    files: str
    readers: tuple[Reads, ...]
    appended: bool = False

    def found(self, run: Path) -> list[Path]:
        return list(run.glob(self.files))


KINDS: dict[str, Kind] = {
    "final shards": Kind("shards/*.safetensors", (exact(merged), exact(opened), of_run(exported))),
    "checkpoint": Kind(
        "checkpoints/*/shard-*.safetensors",
        (
            exact(resumed),
            exact(checkpoint),
            of_run(lambda run: exported(RunFolder(run).checkpoint(CLOCKS[-1]))),
            of_run(pruned),
        ),
    ),
    "worker's state": Kind("checkpoints/*/worker-*.safetensors", (exact(taken_up), exact(resumed))),
    "journal": Kind("scheduler.state", (exact(restarted),)),
    "lease log": Kind("checkpoints/leases", (exact(ledger),), appended=True),
    "events": Kind(
        "events.jsonl",
        (
            of_run(load_run),
            of_run(drawn),
            of_run(lambda run: time_to(load_run(run).events)),
            of_run(lambda run: write_tables(RunFolder(run))),
            of_run(followed),
            of_run(lambda run: tables_in_events(read_events(RunFolder(run).events))),
            of_run(lambda run: summarise(JOB, RunFolder(run), 0.0)),
        ),
    ),
    "events of `why`": Kind("events.jsonl", (of_run(why_ended),)),
    "comparison": Kind("compared/comparison.toml", (of_run(compared),)),
    "cells": Kind("compared/cells.json", (of_run(compared),)),
    "job": Kind(
        "job.toml",
        (
            of_run(lambda run: from_mapping(job_values(None, {"resume": str(run)}))),
            of_file(load_job),
        ),
    ),
    "job of ctr": Kind("ctr/job.toml", (of_run(lambda run: spec_of(run / "ctr")),)),
    "summary": Kind("summary.json", (of_run(load_run),)),
    "result": Kind(
        "workers/*/result.json", (of_run(lambda run: summarise(JOB, RunFolder(run), 0.0)),)
    ),
    "texts of categories": Kind("workers/0/values.json", (of_file(read_seen),)),
    "report of an error": Kind("logs/*.error", (of_file(reported_error),)),
    "address": Kind("scheduler", (of_run(lambda run: read_address(RunFolder(run))),)),
    "token": Kind("token", (of_run(lambda run: token_at(str(run))),)),
    "model": Kind("model.safetensors", (of_run(weights), of_run(trained))),
    "data": Kind(
        "data/data.csv", (of_run(lambda run: load_csv("data.csv", [run / "data", run / "c"])),)
    ),
    "data, IDX": Kind("data/images.idx*", (of_file(read_idx),)),
    "data, CIFAR-10": Kind("data/cifar.bin", (of_file(read_cifar),)),
    "data, images": Kind("data/images.tar", (of_file(read_images),)),
    "data, decoded": Kind(
        "cache/*.npy",
        (of_run(lambda run: kept(run / "cache", run / "data" / "large.idx", read_idx)),),
    ),
    "rows": Kind("data/rows.*", (of_file(lambda path: iter(Reader(path, 16))),)),
    "table, CSV": Kind("data/table.csv*", (of_file(lambda path: table_rows(path, "csv")),)),
    "table, Parquet": Kind(
        "data/table.parquet", (of_file(lambda path: table_rows(path, "parquet")),)
    ),
    "text": Kind("data/text.*", (of_file(lambda path: read_lines([str(path)])),)),
    "questions": Kind("data/questions.txt", (of_file(questions_in),)),
    "pairs": Kind("data/pairs.txt", (of_file(pairs_in),)),
    "corpus": Kind("data/corpus.npz", (of_file(load_ids),)),
    "scores": Kind("data/test.npz", (of_file(lambda path: figures([path])),)),
    "writes of chaos": Kind("writes/*.writes", (of_run(lambda run: judge(run / "writes", {})),)),
}
