"""`shoal train ctr`: the processes of a run, and its summary."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from shutil import rmtree
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from shoal import factories as imports
from shoal.apps.ctr.columns.doubts import unique_ids
from shoal.apps.ctr.columns.values import merged, read_seen, write_seen
from shoal.apps.ctr.leased_rows import write_rows
from shoal.apps.ctr.lines import CATEGORIES, INTEGERS
from shoal.apps.ctr.sample import write_sample
from shoal.apps.ctr.scores import METRICS, PROGRESSIVE, TEST, figures
from shoal.apps.ctr.shuffling import Labels, counted
from shoal.apps.ctr.sources import Source, check_alike, check_trainable
from shoal.apps.ctr.spec import APPLICATION, CtrSpec, job_text, spec_of
from shoal.apps.ctr.tables import factor_options
from shoal.apps.result import RunResult
from shoal.engines.base import SPARSE, Input
from shoal.engines.placing import all_of
from shoal.engines.processes import Processes
from shoal.errors import InvalidValue
from shoal.extras import require
from shoal.reports.events import lost_members, read_events
from shoal.reports.live import live, progress_console, show_losses
from shoal.runs.application import Application, Display
from shoal.runs.job_file import converted
from shoal.runs.ranks import telling_ranks, world_here
from shoal.runs.run import run_here
from shoal.runs.trust import trusting
from shoal.storage.run_folder import RunFolder, shard_files
from shoal.tables.spec import TableSpec

# the figures of each worker
FIGURES = (
    "rows",
    "seconds",
    "skipped",
    "in_runs",
    "read",
    "clicks",
    "bytes_pushed",
    "bytes_pulled",
)


def train(
    train: str | Path = "",
    test: str | Path = "",
    *,
    progress: bool | None = None,
    trust: bool = False,
    **options: Any,
) -> RunResult:
    """Train a click-through-rate model here, with workers and servers in processes of their own.

    A script calls it under `if __name__ == "__main__":`.

    Args:
        train: a file, a folder of files or a pattern, in one of the formats; a sample made from the
            seed if it is not given.
        test: a file, a folder or a pattern with the rows that are scored at the end.
        progress: whether to show a bar for each worker; None: on a terminal and in a notebook.
        trust: whether to continue (`resume`) even a run that another user has left.
        options: the flags of `shoal train ctr`, with `_` for `-`: workers, servers, model, epochs,
            batch_size, label, resume and others. Columns may be given as a list.

    Returns:
        The figures of the summary, `test` (auc, log_loss), `progressive`, `rows_per_s` and others,
        and the run's folder, with which `Scorer` predicts.

    Raises:
        InvalidValue: no such option, a value out of its range, or options that contradict each
            other.
        DataMissing, DataCorrupt: a file is missing or malformed.
        NotTrusted: another user has left the run that is resumed, or could have changed it.
        ProcessDied: a process was killed or ended early.

    Example:
        >>> import shoal  # doctest: +SKIP
        >>> result = shoal.ctr.train("clicks.csv", label="clicked", workers=2)  # doctest: +SKIP
        >>> with shoal.ctr.Scorer(result.run_dir) as scorer:  # doctest: +SKIP
        ...     scorer.predict({"city": ["Oslo"], "age": [31]})
    """
    imports.refuse_while_importing("shoal.ctr.train()")
    values = {name: value for name, value in options.items() if value is not None}
    for name, path in (("train", train), ("test", test), ("valid", values.get("valid"))):
        if isinstance(path, Path):
            path = str(path)
        if path:
            values[name] = path
    for name in ("categorical", "numeric"):
        if isinstance(values.get(name), list | tuple):
            values[name] = ",".join(map(str, values[name]))
    if (world := world_here()) is not None:
        values.setdefault("workers", world.size)
    with trusting(trust), telling_ranks(world):
        summary = run_here(
            CtrApplication(spec_from(values)), progress_console(progress), world=world
        )
    for text in summary["warnings"]:
        warnings.warn(text, stacklevel=2)
    return RunResult(summary, Path(summary["run_dir"]))


def spec_from(values: Mapping[str, Any]) -> CtrSpec:
    """Return the specification of some options; with `resume`, the others are those of that run.

    Raises:
        InvalidValue: as `converted`
        DataMissing, DataCorrupt: as `spec_of`
    """
    if not values.get("resume"):
        return converted(dict(values), CtrSpec)
    before = msgspec.structs.asdict(spec_of(Path(values["resume"])))
    return converted({**before, "resume_at": -1, **values}, CtrSpec)


class CtrApplication(Application[CtrSpec]):
    """Training of a click-through-rate model."""

    name = APPLICATION
    command = "train ctr"
    entry = "shoal.apps.ctr.worker:run_ctr_worker"
    preload = SPARSE

    def __init__(self, spec: CtrSpec) -> None:
        super().__init__(spec)
        self._doubts: list[str] = []
        self._read: dict[str, Any] = {}  # figures of rows that are read for all workers
        self._sample: tuple[str, ...] = ()  # options whose files are of the run's own sample

    @property
    def title(self) -> str:
        return f"ctr-{self.spec.model}"

    def check(self) -> None:
        require("sklearn", METRICS)  # fail before the training, not after it
        if self.spec.codec or self.spec.server_codec:
            from shoal.tables.opening import checked  # needs torch

            factors = factor_options(self.spec)
            checked(TableSpec("factors", 0, (self.spec.factors,), kind="sparse", **factors))

    def prepare(self, console: Console) -> None:
        spec = self.spec
        if self.start.ledger is not None:
            _check_same_batches(spec)
        if spec.train:
            source = Source(spec, spec.train)
            spec = source.described()  # all later reads and predictions use it
            check_trainable(spec, spec.train)
            self._doubts = source.doubts()
        else:
            if spec.format not in ("auto", "dummy"):
                raise InvalidValue(
                    f"--format {spec.format} needs a training file: the sample is dummy"
                )
            spec = msgspec.structs.replace(spec, format="dummy")
        for path in filter(None, (spec.valid, spec.test)):
            check_alike(spec, path)
            check_trainable(spec, path)
        if self.start.shards:
            spec = msgspec.structs.replace(spec, init=self.start.shards)
            shard_files(Path(spec.init))
            if RunFolder(Path(spec.init)).job.exists():
                spec_of(Path(spec.init))  # refuses keys of another rule
        self.spec = spec

    def set_up(self, folder: RunFolder) -> None:
        spec = self.spec
        if not spec.train:
            train, test = write_sample(folder.path, spec.seed)
            self._sample = ("train",) if spec.test else ("train", "test")
            spec = msgspec.structs.replace(spec, train=str(train), test=spec.test or str(test))
        if spec.model == "deepfm" and not spec.fields:
            spec = msgspec.structs.replace(spec, fields=_fields(spec))
        self.spec = spec

    def job(self) -> str:
        return job_text(self.spec)

    def shards_before(self, clock: int) -> str:
        return super().shards_before(clock) or self.spec.init

    @property
    def worker_files(self) -> tuple[Input, ...]:
        return tuple(
            all_of(("spec", name), Path(getattr(self.spec, name))) for name in self._sample
        )

    def worker_inputs(self, processes: Processes) -> dict[str, Any]:
        """Read the rows once, where any worker may get the batches of another."""
        if self.spec.on_worker_loss != "reassign":
            return {}
        rows = processes.folder.path / "rows"
        processes.at_stop.callback(rmtree, rows, ignore_errors=True)
        source, labels = Source(self.spec, self.spec.train), Labels()
        write_rows(rows, counted(source, labels))
        if source.keys:
            write_seen(processes.folder.values(0), source.keys)
        self._read = {
            "read": labels.rows,
            "clicks": labels.clicks,
            "skipped": source.skipped,
            "in_runs": labels.in_runs and not self.spec.shuffle,
        }
        return {"rows": rows}

    def display(self, console: Console, folder: RunFolder) -> Display:
        with imports.uninterrupted():
            import sklearn.metrics  # noqa: F401  it takes a second, while the processes start
        return live(console, folder, self.spec.workers, self.spec.epochs)

    def summarise(self, folder: RunFolder, started_at: float) -> dict[str, Any]:
        summary = _summarise(self.spec, folder, started_at, self._read)
        summary["warnings"] += self._doubts
        return summary


def _check_same_batches(spec: CtrSpec) -> None:
    """Refuse to continue a run with leases whose numbers of batches would name other rows."""
    before = spec_of(Path(spec.resume))
    for name, was, now in (
        ("--batch-size", before.batch_size, spec.batch_size),
        ("--seed", before.seed, spec.seed),
        ("--shuffle", bool(before.shuffle), bool(spec.shuffle)),
    ):
        if was != now:
            raise InvalidValue(f"{spec.resume} leases batches of its rows: {name} cannot change")


def _fields(spec: CtrSpec) -> int:
    """Return the number of fields: of the run `init`, of the columns, or of the first rows."""
    if spec.init:
        return spec_of(Path(spec.init)).fields
    if spec.format == "criteo":
        return INTEGERS + CATEGORIES
    if spec.categorical or spec.numeric:
        return len(spec.columns(spec.categorical)) + len(spec.columns(spec.numeric))
    first = Source(spec, spec.train).first()
    return int(first.fields.max()) + 1 if len(first.fields) else 1


def _summarise(
    spec: CtrSpec, folder: RunFolder, started_at: float, read: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the figures of a run.

    read:  figures of the rows that were read for all workers, as a worker's result has them; empty
           where workers have read them
    """
    results = folder.results(spec.workers, FIGURES)
    rows = sum(result["rows"] for result in results)
    at_the_end = [folder.worker(rank) for rank in range(spec.workers) if folder.result(rank)]
    progressive = [each / PROGRESSIVE for each in at_the_end]
    for result, path in zip(results, progressive, strict=True):
        result["progressive"] = figures([path])
    tested = [path for path in (folder.worker(0) / TEST,) if path.exists()]
    events = list(read_events(folder.events, torn=True))
    readers = [*results, read] if read else results
    return {
        "model": spec.model,
        "test": (figures(tested) or None) if tested else None,
        "progressive": figures(progressive),
        "valid": (valid := results[0].get("valid", [])),
        "best_epoch": _best(valid).get("epoch"),
        "rows": rows,
        "rows_per_s": sum(r["rows"] / max(r["seconds"], 1e-9) for r in results),
        "tables": _tables(events),
        "skipped": sum(each["skipped"] for each in readers),
        "warnings": _warnings(spec, readers) + _unique(spec, folder),
        **lost_members(events, once=spec.strategy == "sync"),
        "train_s": max(result["seconds"] for result in results),
        "wall_s": time.time() - started_at,
        "bytes_pushed": sum(result["bytes_pushed"] for result in results),
        "bytes_pulled": sum(result["bytes_pulled"] for result in results),
        "workers": spec.workers,
        "servers": spec.servers,
        "run_dir": str(folder.path),
        "by_worker": results,
    }


def _best(valid: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of the epoch with the lowest log loss; {} if there is none."""
    finite = (each for each in valid if each["log_loss"] is not None)
    return min(finite, key=itemgetter("log_loss"), default={})


def _warnings(spec: CtrSpec, results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return warnings about the rows of the training."""
    found = []
    if any(result["in_runs"] for result in results):
        found.append(
            "the labels come in long runs, and --shuffle reaches over fewer rows than the file "
            "has: shuffle the file, or raise --shuffle"
        )
    clicks, rows = (sum(result[name] for result in results) for name in ("clicks", "read"))
    if clicks in (0, rows):
        found.append("all rows have the same label, so nothing was learnt")
        if spec.positive:
            which = "every" if clicks else "no"
            found[-1] += f": --positive {spec.positive!r} is {which} row's label"
    return found


def _unique(spec: CtrSpec, folder: RunFolder) -> list[str]:
    """Return warnings about columns whose values nearly all occur once."""
    seen = merged([read_seen(folder.values(rank)) for rank in range(spec.workers)])
    return unique_ids(seen, spec.columns(spec.categorical), spec.columns(spec.numeric))


def _tables(events: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """Return the rows and the evictions of each table, summed over all servers."""
    found: dict[str, dict[str, int]] = {}
    for event in events:
        if event.get("kind") == "table":
            size = found.setdefault(event["table"], {"rows": 0, "evicted": 0})
            for what in size:
                size[what] += event[what]
    return found


def show_summary(console: Console, summary: dict[str, Any]) -> None:
    """Print the figures as a table, and the warnings."""
    table = Table(box=None, show_header=False)
    test = summary["test"] or {}
    valid = _best(summary["valid"])
    for name, value in (
        (f"valid AUC, epoch {valid.get('epoch')}", valid.get("auc")),
        (f"valid log loss, epoch {valid.get('epoch')}", valid.get("log_loss")),
        ("test AUC", test.get("auc")),
        ("test log loss", test.get("log_loss")),
        ("progressive log loss", summary["progressive"].get("log_loss")),
        ("rows/s in training", summary["rows_per_s"]),
        ("seconds of training", summary["train_s"]),
        ("seconds with start-up and test", summary["wall_s"]),
    ):
        if value is not None:
            digits = 4 if "loss" in name or "AUC" in name else 1
            table.add_row(name, f"{value:,.{digits}f}")
    for name, size in summary["tables"].items():
        if name != "bias":
            evicted = f", {size['evicted']:,} evicted" if size["evicted"] else ""
            table.add_row(f"keys in {name}", f"{size['rows']:,}{evicted}")
    if valid:
        table.add_row("epochs", f"{len(summary['valid'])}, and the best was {valid['epoch']}")
    if summary["skipped"]:
        table.add_row("lines left out", str(summary["skipped"]))
    show_losses(table, summary)
    table.add_row("run", summary["run_dir"])
    console.print(table)
    for text in summary["warnings"]:
        console.print(f"warning: {text}", style="yellow", highlight=False)
