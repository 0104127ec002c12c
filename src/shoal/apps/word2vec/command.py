"""`shoal train word2vec`: the processes of a run, and its summary."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from shoal.apps.word2vec.corpus import Corpus, read_lines
from shoal.apps.word2vec.sample import sample_lines
from shoal.apps.word2vec.spec import WordsSpec
from shoal.apps.word2vec.vectors import pairs_in, questions_in
from shoal.engines.base import SPARSE
from shoal.engines.cluster import run_tasks, worker_tasks
from shoal.engines.local import LocalEngine, spare_processes
from shoal.errors import InvalidValue
from shoal.jobs.spec import dump_job
from shoal.reports.live import Live
from shoal.storage.files import write_whole
from shoal.storage.run_folder import RunFolder

FIGURES = ("words", "seconds", "bytes_pushed", "bytes_pulled")  # of each worker


def run_words(
    spec: WordsSpec, console: Console, started_at: float | None = None, corpus: Corpus | None = None
) -> dict[str, Any]:
    """Run it here and return its summary.

    corpus: the text, where it is read already

    Raises:
        DataMissing, DataCorrupt: a file that is not there, or is not what it says
        InvalidValue: a text without words that come often enough
        ShoalError: whatever a process of the run raised
    """
    started_at = time.time() if started_at is None else started_at
    if spec.analogies:
        deque(questions_in(Path(spec.analogies)), maxlen=0)
    if spec.similarities:
        deque(pairs_in(Path(spec.similarities)), maxlen=0)
    if corpus is None:
        lines: Iterable[str] = read_lines(spec.texts) if spec.texts else sample_lines(spec.seed)
        with console.status("reading the text"):
            corpus = Corpus.of(lines, spec.min_count)
    if len(corpus.words) < 2:
        raise InvalidValue(
            f"the text has {len(corpus.words)} words that come {spec.min_count} times or more; "
            "use a longer one, or a lower --min-count"
        )
    folder = RunFolder.create(Path(spec.out), spec.title or f"word2vec-{spec.model}")
    folder.write_job(dump_job(spec, "word2vec"))
    write_whole(folder.path / "vocabulary.txt", "\n".join(corpus.words) + "\n")
    with LocalEngine(folder) as engine:
        saved = engine.sockets / "corpus.npz"  # goes with the run's sockets
        corpus.save(saved)
        cluster = run_tasks(engine, spec, started_at, preload=SPARSE)
        workers = worker_tasks(
            engine,
            spec.workers,
            "shoal.apps.word2vec.worker:run_words_worker",
            spec=msgspec.to_builtins(spec),
            started_at=started_at,
            corpus=str(saved),
        )
        for task in (*cluster, *workers):
            engine.start(task)
        watcher = Live(console, folder.events, spec.workers, spec.epochs)
        with watcher:
            engine.join(watcher.tick, spare=spare_processes(spec.servers, spec.replicas))
    summary = _summarise(spec, corpus, folder, started_at)
    folder.write_summary(summary)
    return summary


def _summarise(
    spec: WordsSpec, corpus: Corpus, folder: RunFolder, started_at: float
) -> dict[str, Any]:
    results = folder.results(spec.workers, FIGURES)
    return {
        "model": spec.model,
        "vocabulary": len(corpus.words),
        "words": sum(result["words"] for result in results),
        "words_per_s": sum(result["words"] for result in results)
        / max(1e-9, *(result["seconds"] for result in results)),
        "analogies": results[0].get("analogies"),
        "similarities": results[0].get("similarities"),
        "wall_s": time.time() - started_at,
        "bytes_pushed": sum(result["bytes_pushed"] for result in results),
        "bytes_pulled": sum(result["bytes_pulled"] for result in results),
        "workers": spec.workers,
        "servers": spec.servers,
        "vectors": str(folder.path / "vectors.bin"),
        "run_dir": str(folder.path),
        "by_worker": results,
    }


def show_summary(console: Console, summary: dict[str, Any]) -> None:
    """The figures as a table."""
    table = Table(box=None, show_header=False)
    table.add_row("vocabulary", f"{summary['vocabulary']:,}")
    table.add_row("words/s", f"{summary['words_per_s']:,.0f}")
    if summary["analogies"]:
        found = summary["analogies"]
        table.add_row("analogies", f"{found['accuracy']:.4f} of {found['questions']:,}")
    if summary["similarities"]:
        found = summary["similarities"]
        table.add_row("similarities", f"{found['spearman']:.4f} (Spearman, {found['pairs']} pairs)")
    table.add_row("seconds", f"{summary['wall_s']:.1f}")
    table.add_row("vectors", f"{summary['vectors']}, and vectors.txt beside it")
    console.print(table)
