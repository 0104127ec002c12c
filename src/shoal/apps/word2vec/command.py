"""`shoal train word2vec`: the processes of a run, and its summary."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from shoal import factories as imports
from shoal.apps.result import RunResult
from shoal.apps.train.resume import begun_with, resumable, resumed_at
from shoal.apps.word2vec.corpus import Corpus, read_lines
from shoal.apps.word2vec.sample import sample_lines
from shoal.apps.word2vec.spec import WordsSpec
from shoal.apps.word2vec.vectors import (
    APPLICATION,
    BINARY,
    VOCABULARY,
    pairs_in,
    questions_in,
)
from shoal.engines.base import SPARSE
from shoal.engines.cluster import run_tasks, worker_tasks
from shoal.engines.local import LocalEngine, spare_processes
from shoal.errors import DataMissing, InvalidValue
from shoal.jobs.spec import converted, dump_job, load_run_job
from shoal.reports.live import Live, progress_console
from shoal.storage.files import read_text, write_whole
from shoal.storage.run_folder import RunFolder

FIGURES = ("words", "seconds", "bytes_pushed", "bytes_pulled")  # of each worker


def train(
    texts: str | Path | Sequence[str | Path] = (),
    *,
    progress: bool | None = None,
    trust: bool = False,
    **options: Any,
) -> RunResult:
    """Train vectors of words on this machine, with workers and servers in processes of their own.

    A script calls it under `if __name__ == "__main__":`.

    Args:
        texts: text files (plain, gzipped or tar.gz), folders of them or patterns; a sample made
            from the seed if none is given.
        progress: show a bar of each worker; None: on a terminal and in a notebook.
        trust: continue (`resume`) from what another user has left, too.
        options: as flags of `shoal train word2vec`, with `_` for `-`: workers, dim, model, epochs,
            analogies, resume and others.

    Returns:
        The figures of the summary, and the run's folder, which `Vectors.load` reads.

    Raises:
        InvalidValue: no such option, a value out of its range, or a text without words that come
            often enough.
        DataMissing, DataCorrupt: a file is not there, or is not what it says.
        NotTrusted: another user has left the run that is resumed, or could have changed it.
        ProcessDied: a process was killed or ended early.

    Example:
        >>> import shoal  # doctest: +SKIP
        >>> result = shoal.word2vec.train("novels.tar.gz", dim=100, workers=2)  # doctest: +SKIP
        >>> shoal.word2vec.Vectors.load(result.run_dir).similar("king")  # doctest: +SKIP
    """
    imports.refuse_while_importing("shoal.word2vec.train()")
    values = {name: value for name, value in options.items() if value is not None}
    if texts:
        values["texts"] = [str(texts)] if isinstance(texts, str | Path) else [*map(str, texts)]
    summary = run_words(spec_from(values), progress_console(progress), trust=trust)
    return RunResult(summary, Path(summary["run_dir"]))


def spec_from(values: Mapping[str, Any]) -> WordsSpec:
    """The specification that options ask for; with `resume`, those of that run that are not given.

    Raises:
        InvalidValue: as `converted`
        DataMissing, DataCorrupt: no such run
    """
    if not values.get("resume"):
        return converted(dict(values), WordsSpec)
    run = Path(values["resume"])
    before = load_run_job(run)
    if before.pop("application", None) != APPLICATION:
        raise DataMissing(f"{run} is of another run than one of `shoal train word2vec`")
    spec = converted({**before, "resume_at": -1, **values}, WordsSpec)
    if spec.dim != before.get("dim", spec.dim):
        raise InvalidValue(f"{run} has vectors of {before['dim']} elements: --dim cannot change")
    return spec


def run_words(
    spec: WordsSpec,
    console: Console,
    started_at: float | None = None,
    corpus: Corpus | None = None,
    trust: bool = False,
) -> dict[str, Any]:
    """Run it here and return its summary.

    corpus: the text, where it is read already
    trust:  continue from what another user has left, too

    Raises:
        NotTrusted: another user has left the run that it continues
        DataMissing, DataCorrupt: a file that is not there, or is not what it says
        InvalidValue: a text without words that come often enough
        ShoalError: whatever a process of the run raised
    """
    started_at = time.time() if started_at is None else started_at
    passed = resumed_at(spec.resume, spec.resume_at, trust)
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
    if passed and corpus.words != read_text(Path(spec.resume) / VOCABULARY).splitlines():
        raise InvalidValue(f"{spec.resume} was trained on another text: its vocabulary differs")
    folder = RunFolder.create(Path(spec.out), spec.title or f"word2vec-{spec.model}", started_at)
    folder.write_job(dump_job(spec, APPLICATION))
    write_whole(folder.path / VOCABULARY, "\n".join(corpus.words) + "\n")
    with LocalEngine(folder) as engine:
        saved = engine.sockets / "corpus.npz"  # goes with the run's sockets
        corpus.save(saved)
        begun = begun_with(spec.resume, passed)
        cluster = run_tasks(engine, spec, started_at, init=begun, passed=passed, preload=SPARSE)
        workers = worker_tasks(
            engine,
            spec.workers,
            "shoal.apps.word2vec.worker:run_words_worker",
            spec=msgspec.to_builtins(spec),
            started_at=started_at,
            corpus=str(saved),
            passed=passed,
        )
        for task in (*cluster, *workers):
            engine.start(task)
        watcher = Live(console, folder.events, spec.workers, spec.epochs)
        with watcher, resumable(folder, "train word2vec", spec, passed=passed):
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
        "vectors": str(folder.path / BINARY),
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
