"""`shoal train word2vec`: the processes of a run, and its summary."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from rich.console import Console
from rich.table import Table

from shoal import factories as imports
from shoal.apps.result import RunResult
from shoal.apps.word2vec.corpus import Corpus, read_lines
from shoal.apps.word2vec.sample import sample_lines
from shoal.apps.word2vec.spec import WordsSpec
from shoal.apps.word2vec.tokens import AUTO, SPACE, WORDS
from shoal.apps.word2vec.vectors import (
    APPLICATION,
    BINARY,
    SCORES,
    VOCABULARY,
    pairs_in,
    questions_in,
)
from shoal.engines.base import SPARSE
from shoal.engines.options import flag_of
from shoal.engines.processes import Processes
from shoal.errors import DataMissing, InvalidValue
from shoal.extras import require
from shoal.reports.events import lost_members, read_events
from shoal.reports.live import live, progress_console, show_losses
from shoal.runs.application import Application, Display
from shoal.runs.job_file import converted, load_run_job
from shoal.runs.ranks import telling_ranks, world_here
from shoal.runs.run import run_here
from shoal.runs.trust import trusting
from shoal.storage.files import read_object, read_text, write_whole
from shoal.storage.run_folder import RunFolder

MEANINGS = {  # by whether --tokens is space: its meaning, and the alternative
    True: ("each token between blanks as it is", "--tokens words cuts at punctuation"),
    False: (
        "letters in lower case, cut at punctuation",
        "--tokens space takes each token between blanks as it is",
    ),
}
FIGURES = ("words", "seconds", "bytes_pushed", "bytes_pulled")  # the figures of each worker


def train(
    texts: str | Path | Sequence[str | Path] = (),
    *,
    progress: bool | None = None,
    trust: bool = False,
    **options: Any,
) -> RunResult:
    """Train word embeddings on this machine, with workers and servers in processes of their own.

    A script calls it under `if __name__ == "__main__":`.

    Args:
        texts: text files (plain, gzipped or tar.gz), folders of them or patterns; a sample made
            from the seed if none is given.
        progress: whether to show a bar for each worker; None: on a terminal and in a notebook.
        trust: whether to continue (`resume`) even a run that another user has left.
        options: the flags of `shoal train word2vec`, with `_` for `-`: workers, dim, model, epochs,
            analogies, tokens, resume and others.

    Returns:
        The figures of the summary, and the run's folder, which `Vectors.load` reads.

    Raises:
        InvalidValue: no such option, a value out of its range, a text without blanks between words,
            or without words that come often enough.
        UnknownName: there is no such language (`tokens`).
        DataMissing, DataCorrupt: a file is missing or malformed.
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
    if (world := world_here()) is not None:
        values.setdefault("workers", world.size)
    with trusting(trust), telling_ranks(world):
        summary = run_here(
            WordsApplication(spec_from(values)), progress_console(progress), world=world
        )
    return RunResult(summary, Path(summary["run_dir"]))


def spec_from(values: Mapping[str, Any]) -> WordsSpec:
    """Return the specification of some options; with `resume`, the others are those of that run.

    Raises:
        InvalidValue: as in `converted`; or options that the run cannot change
        DataMissing, DataCorrupt: there is no such run, or its job is malformed
    """
    if not values.get("resume"):
        return converted(dict(values), WordsSpec)
    run = Path(values["resume"])
    before = load_run_job(run)
    if before.pop("application", None) != APPLICATION:
        raise DataMissing(f"{run} is of another run than one of `shoal train word2vec`")
    before.setdefault("tokens", WORDS)  # for runs from before there was a choice
    asked = {**values, "tokens": before["tokens"]}
    spec = converted({**before, "resume_at": -1, **asked}, WordsSpec)
    if values.get("tokens", AUTO) not in (AUTO, spec.tokens):
        raise InvalidValue(f"{run} was trained with --tokens {spec.tokens}, which cannot change")
    if spec.dim != before.get("dim", spec.dim):
        raise InvalidValue(f"{run} has vectors of {before['dim']} elements: --dim cannot change")
    return spec


class WordsApplication(Application[WordsSpec]):
    """Training of word embeddings.

    corpus:  the text, if it has been read already
    """

    name = APPLICATION
    command = "train word2vec"
    entry = "shoal.apps.word2vec.worker:run_words_worker"
    preload = SPARSE

    def __init__(self, spec: WordsSpec, corpus: Corpus | None = None) -> None:
        super().__init__(spec)
        self._given = corpus

    @property
    def title(self) -> str:
        return f"word2vec-{self.spec.model}"

    def check(self) -> None:
        if self.spec.similarities:
            require("scipy.stats", "--similarities")

    def prepare(self, console: Console) -> None:
        spec, corpus = self.spec, self._given
        if self.start.ledger is not None:
            _check_same_blocks(spec)
        if spec.analogies:
            deque(questions_in(Path(spec.analogies)), maxlen=0)
        if spec.similarities:
            deque(pairs_in(Path(spec.similarities)), maxlen=0)
        if corpus is None:
            with console.status("reading the text"):
                corpus = read_corpus(spec)
        self._corpus = corpus
        self.spec = replace(spec, tokens=corpus.tokens)  # for the runs that continue this one
        if len(corpus.words) < 2:
            other = "" if corpus.tokens == SPACE else ", or --tokens space"
            raise InvalidValue(
                f"the text has {len(corpus.words)} words that come {spec.min_count} times or more "
                f"(left out: {corpus.left_out}); use a longer one, or a lower --min-count{other}"
            )
        for line in told(corpus):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
        known = read_text(Path(spec.resume) / VOCABULARY) if self.start.clock else ""
        if self.start.clock and corpus.words != known.splitlines():
            raise InvalidValue(f"{spec.resume} was trained on another text: its vocabulary differs")

    def set_up(self, folder: RunFolder) -> None:
        write_whole(folder.path / VOCABULARY, "\n".join(self._corpus.words) + "\n")

    def worker_inputs(self, processes: Processes) -> dict[str, Any]:
        saved = processes.private / "corpus.npz"  # deleted with the run's sockets
        self._corpus.save(saved)
        return {"corpus": saved, "vocabulary": processes.folder.path / VOCABULARY}

    def display(self, console: Console, folder: RunFolder) -> Display:
        return live(console, folder, self.spec.workers, self.spec.epochs)

    def summarise(self, folder: RunFolder, started_at: float) -> dict[str, Any]:
        return _summarise(self.spec, self._corpus, folder, started_at)


def _check_same_blocks(spec: WordsSpec) -> None:
    """Refuse to continue a run with leases whose numbers of blocks would name other text."""
    before = spec_from({"resume": spec.resume})
    for name in ("block_words", "seed"):
        if getattr(before, name) != getattr(spec, name):
            flag = flag_of(WordsSpec, name)
            raise InvalidValue(f"{spec.resume} leases blocks of its text: {flag} cannot change")


def read_corpus(spec: WordsSpec) -> Corpus:
    """Read the text that a run trains on.

    Raises:
        DataMissing, DataCorrupt: a file is missing or malformed
        InvalidValue: the text has no blanks between words
    """
    if not spec.texts:
        return Corpus.of(sample_lines(spec.seed), spec.min_count, spec.tokens)
    lines, source = read_lines(spec.texts), ", ".join(spec.texts[:3])
    return Corpus.of(lines, spec.min_count, spec.tokens, source)


def told(corpus: Corpus) -> tuple[str, str]:
    """Return the lines that are printed before training: the kind of tokens and the vocabulary.

    >>> for line in told(Corpus.of(["17 4 9023 17"], min_count=2, tokens="space")): print(line)
    tokens: space, each token between blanks as it is
    vocabulary: 1 words; left out: 2 tokens of 2 words below --min-count
    """
    kind, other = MEANINGS[corpus.tokens == SPACE]
    because = f" ({corpus.because}; {other})" if corpus.because else ""
    return (
        f"tokens: {corpus.tokens}, {kind}{because}",
        f"vocabulary: {len(corpus.words):,} words; left out: {corpus.left_out}",
    )


def _summarise(
    spec: WordsSpec, corpus: Corpus, folder: RunFolder, started_at: float
) -> dict[str, Any]:
    results = folder.results(spec.workers, FIGURES)
    scores = read_object(folder.path / SCORES)
    return {
        "model": spec.model,
        "tokens": corpus.tokens,
        "vocabulary": len(corpus.words),
        "left_out": corpus.left_out._asdict(),
        "words": sum(result["words"] for result in results),
        "words_per_s": sum(result["words"] for result in results)
        / max(1e-9, *(result["seconds"] for result in results)),
        "analogies": scores.get("analogies"),
        "similarities": scores.get("similarities"),
        **lost_members(list(read_events(folder.events, torn=True)), once=False),
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
    """Print the figures as a table."""
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
    show_losses(table, summary)
    table.add_row("vectors", f"{summary['vectors']}, and vectors.txt beside it")
    console.print(table)
