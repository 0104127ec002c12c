"""`shoal bench word2vec`: skip-gram on text, beside gensim where it is installed.

The text is the novels of a data folder (SHOAL_DATA, text/novels_train.tar.gz), or else a sample
made from the seed. Both train on the same words with the same parameters, gensim with as many
threads as we have workers. The ceiling is our own loop in one thread and without an exchange, times
the workers. Where the folder has text/eval, vectors of the whole text are compared as well: the
mean and its standard error over as many seeds as there are rounds, with the same seeds for gensim.
`--rounds 5` takes half an hour on two cores.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, median, stdev

import numpy as np
from msgspec.structs import replace
from rich.console import Console

from shoal.apps.bench.rows import Batches, Row, beside, quality, rate
from shoal.apps.word2vec.command import WordsApplication
from shoal.apps.word2vec.corpus import Corpus, read_lines
from shoal.apps.word2vec.model import noise_pool, running_sum, subsampled, train_block
from shoal.apps.word2vec.numbering import BREAK
from shoal.apps.word2vec.sample import sample_lines
from shoal.apps.word2vec.spec import WordsSpec
from shoal.apps.word2vec.vectors import Vectors
from shoal.apps.word2vec.worker import POOL
from shoal.runs.run import run_here
from shoal.storage.run_folder import RunFolder

TEXT = "text/novels_train.tar.gz"
WORKERS = (1, 2)
SPEED_IDS = 2_000_000  # of the text, for rows of speed
EPOCHS = 5  # over all of it, for rows of quality
ALONE_BLOCKS = 20
QUIET = Console(stderr=True, quiet=True)

COUNT = len(WORKERS)
ROUNDS = 3


def rows(folder: RunFolder, rounds: int, data_dirs: Sequence[Path] = ()) -> Iterator[Row]:
    spec = WordsSpec(out=str(folder.path), epochs=1)
    found = [each / "text" for each in data_dirs if (each / TEXT).is_file()]
    lines = read_lines([str(found[0] / Path(TEXT).name)]) if found else sample_lines(spec.seed)
    corpus = Corpus.of(lines, spec.min_count)
    for workers in WORKERS:
        yield _speed(replace(spec, workers=workers), beginning(corpus, SPEED_IDS), rounds)
    if found and (found[0] / "eval").is_dir():
        for workers in WORKERS:
            asked = replace(spec, epochs=EPOCHS, workers=workers)
            yield from _quality(asked, corpus, found[0] / "eval", rounds)


def beginning(corpus: Corpus, ids: int) -> Corpus:
    """Return the first sentences of a text, of about `ids` words, with the text's vocabulary."""
    ends = np.flatnonzero(corpus.ids == BREAK) + 1
    some = corpus.ids[: ends[min(int(np.searchsorted(ends, ids)), len(ends) - 1)]]
    return Corpus(corpus.words, np.bincount(some[some >= 0], minlength=len(corpus.words)), some)


def _speed(spec: WordsSpec, corpus: Corpus, rounds: int) -> Row:
    ours: Batches = []
    alone: Batches = []
    peers: list[float] = []
    for number in range(rounds):
        asked = replace(spec, seed=number + 1, title=f"{spec.workers}-{number}")
        alone.append([_alone(asked, corpus) * corpus.total / spec.workers])
        summary = run_here(WordsApplication(asked, corpus))
        ours.append([corpus.total / summary["words_per_s"]])
        seconds, vectors = _gensim(asked, corpus)
        if vectors is not None:
            peers.append(seconds)
    name = f"skip-gram {spec.workers} worker{'s' if spec.workers > 1 else ''}"
    row = rate(name, corpus.total, "M words/s", ours, alone)
    return beside(row, "gensim", corpus.total / median(peers) / 1e6) if peers else row


def _quality(spec: WordsSpec, corpus: Corpus, folder: Path, seeds: int) -> Iterator[Row]:
    """Yield rows of the quality of vectors of the whole text; the ceiling is the peer's best."""
    questions, pairs = folder / "questions-words.txt.gz", folder / "wordsim353.tsv.gz"
    kinds = (("analogies", "accuracy"), ("similarities", "spearman"))
    ours: dict[str, list[float]] = {name: [] for name, _ in kinds}
    theirs: dict[str, list[float]] = {name: [] for name, _ in kinds}
    for seed in range(1, seeds + 1):
        asked = replace(spec, seed=seed, title=f"whole-{spec.workers}-{seed}")
        wanted = replace(asked, analogies=str(questions), similarities=str(pairs))
        summary = run_here(WordsApplication(wanted, corpus))
        vectors = _gensim(asked, corpus)[1]
        for name, figure in kinds:
            ours[name].append(summary[name][figure])
            if vectors is not None:
                found = getattr(vectors, name)(questions if name == "analogies" else pairs)
                theirs[name].append(found[figure])
    for name, figure in kinds:
        label = f"{name}, {spec.workers} worker{'s' if spec.workers > 1 else ''}"
        row = quality(label, fmean(ours[name]), figure, max(theirs[name], default=1.0))
        row |= {"error": _standard_error(ours[name]), "runs": ours[name]}
        if theirs[name]:
            row = beside(row, "gensim", fmean(theirs[name]))
            row |= {"peer_error": _standard_error(theirs[name]), "peer_runs": theirs[name]}
        yield row


def _standard_error(figures: Sequence[float]) -> float:
    """Return the standard error of the mean of figures; 0 for fewer than two."""
    return stdev(figures) / len(figures) ** 0.5 if len(figures) > 1 else 0.0


def _alone(spec: WordsSpec, corpus: Corpus) -> float:
    """Return the seconds a raw word of the bare loop, on some blocks."""
    random = np.random.default_rng(0)
    shape = (len(corpus.words), spec.dim)
    inputs, outputs = random.normal(0, 0.01, shape).astype(np.float32), np.zeros(shape, np.float32)
    keep, noise = corpus.keep_chances(spec.sample), running_sum(corpus.counts)
    seconds, words = 0.0, 0
    for number in range(ALONE_BLOCKS):
        text = corpus.ids[number * spec.block_words :][: spec.block_words]
        pool = noise_pool(noise, POOL, random)
        begin = time.perf_counter()
        ids = subsampled(text, keep, random)
        train_block(ids, inputs, outputs, pool, spec.window, spec.negative, spec.lr, number, False)
        if number:  # the first compiles
            seconds += time.perf_counter() - begin
            words += int((text >= 0).sum())
    return seconds / max(words, 1)


def _gensim(spec: WordsSpec, corpus: Corpus) -> tuple[float, Vectors | None]:
    """Return the seconds that gensim trains, and its vectors; (0.0, None) without gensim."""
    try:
        from gensim.models import Word2Vec
    except ImportError:
        return 0.0, None
    names = np.array([*corpus.words, "\n"], dtype=object)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        assert BREAK == -1  # the last name is a sentence's end
        file.write(" ".join(names[corpus.ids]).replace(" \n ", "\n"))
        file.flush()
        model = Word2Vec(
            vector_size=spec.dim,
            window=spec.window,
            negative=spec.negative,
            sample=spec.sample,
            min_count=spec.min_count,
            alpha=spec.lr,
            min_alpha=spec.min_lr,
            sg=1,
            workers=spec.workers,
            seed=spec.seed,
        )
        model.build_vocab(corpus_file=file.name)
        begin = time.perf_counter()
        model.train(corpus_file=file.name, total_words=corpus.total, epochs=spec.epochs)
        seconds = time.perf_counter() - begin
    return seconds, Vectors(list(model.wv.index_to_key), model.wv.vectors)
