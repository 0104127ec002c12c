"""Text as numbers of words, read once for all workers."""

from __future__ import annotations

import tarfile
from collections.abc import Iterable, Iterator
from itertools import chain, pairwise
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import numpy as np

from shoal.apps.word2vec.detect import BEGINNING, check_segmented, kind_of
from shoal.apps.word2vec.numbering import BREAK, numbered
from shoal.apps.word2vec.tokens import AUTO, SPACE, WORDS
from shoal.data.streams import BLOCK_BYTES, LINE_BYTES_MAX, files_of, opened, pieces
from shoal.errors import DataCorrupt, DataMissing
from shoal.storage.files import damaged, read_arrays

UNREADABLE = (OSError, EOFError, tarfile.TarError, UnicodeDecodeError)


class LeftOut(NamedTuple):
    """The parts of a text that are not in its corpus, as counts.

    numbers:     the number of tokens between blanks with digits that are in no word
    symbols:     the number of tokens without letters and digits
    rare:        the number of occurrences of words that come fewer than `min_count` times
    rare_words:  the number of these words
    """

    numbers: int = 0
    symbols: int = 0
    rare: int = 0
    rare_words: int = 0

    def __str__(self) -> str:
        """Return the counts as a text.

        >>> print(LeftOut(numbers=12, rare=2000, rare_words=1500))
        12 numbers, 2,000 tokens of 1,500 words below --min-count
        >>> print(LeftOut())
        nothing
        """
        said = [
            f"{count:,} {what}"
            for count, what in (
                (self.numbers, "numbers"),
                (self.symbols, "symbols"),
                (self.rare, f"tokens of {self.rare_words:,} words below --min-count"),
            )
            if count
        ]
        return ", ".join(said) or "nothing"


class Corpus:
    """The words of a text that are not rare, most frequent first.

    words:    the vocabulary
    counts:   (n,), the number of occurrences of each word
    ids:      int32, the text: numbers of words, and BREAK after each sentence
    tokens:   the rule by which words were found: `space`, `words` or a language
    because:  the reason for `tokens`, if it was chosen by the text; else ""
    left_out:  the parts of the text that were left out
    """

    def __init__(
        self,
        words: list[str],
        counts: np.ndarray,
        ids: np.ndarray,
        tokens: str = WORDS,
        because: str = "",
        left_out: LeftOut | None = None,
    ) -> None:
        self.words = words
        self.counts = counts
        self.ids = ids
        self.tokens = tokens
        self.because = because
        self.left_out = left_out or LeftOut()

    @staticmethod
    def of(
        lines: Iterable[str], min_count: int, tokens: str = AUTO, source: str = "the text"
    ) -> Corpus:
        """Return the corpus of some lines, each of which is a sentence.

        tokens:  the value of `--tokens`
        source:  the name of the text in errors

        >>> corpus = Corpus.of(["The cat sat.", "the dog, the cat"], min_count=2)
        >>> corpus.words, corpus.counts.tolist(), corpus.ids.tolist()
        (['the', 'cat'], [3, 2], [0, 1, -1, 0, 0, 1, -1])
        >>> corpus.tokens, corpus.because, corpus.left_out.rare_words
        ('words', 'the text is prose', 2)
        >>> Corpus.of(["item_17 17", "17 item_4"], min_count=1).words
        ['17', 'item_17', 'item_4']

        Raises:
            InvalidValue: the text has no blanks between words, and `tokens` is not `space`; or as
                in `language_of`
            UnknownName: as in `language_of`
        """
        because = ""
        rest = iter(lines)
        if tokens != SPACE:
            beginning = list(_first(rest, BEGINNING))
            check_segmented(beginning, source)
            if tokens == AUTO:
                tokens, because = kind_of(beginning)
            rest = chain(beginning, rest)
        everything, names, numbers, symbols = numbered(rest, tokens)
        counts = np.bincount(everything[everything >= 0], minlength=len(names))
        kept = [n for n in np.argsort(-counts, kind="stable") if counts[n] >= min_count]
        renumbered = np.full(len(names) + 1, BREAK - 1, np.int32)  # the last one is for BREAK
        renumbered[kept] = np.arange(len(kept), dtype=np.int32)
        renumbered[-1] = BREAK
        ids = renumbered[everything]
        rare = int(counts.sum() - counts[kept].sum()), len(names) - len(kept)
        left_out = LeftOut(numbers, symbols, *rare)
        words = [names[n] for n in kept]
        return Corpus(words, counts[kept], ids[ids >= BREAK], tokens, because, left_out)

    @property
    def total(self) -> int:
        """The number of words of the text, without the rare ones."""
        return int(self.counts.sum())

    def save(self, path: Path) -> None:
        with path.open("wb") as file:
            np.savez(file, ids=self.ids, counts=self.counts)

    def keep_chances(self, sample: float) -> np.ndarray:
        """Return each word's chance to be kept: Mikolov et al. 2013, section 2.3, as word2vec.c."""
        if not sample:
            return np.ones(len(self.words), np.float32)
        share = np.maximum(self.counts, 1) / (sample * max(self.total, 1))
        chances: np.ndarray = np.minimum(1.0, (np.sqrt(share) + 1) / share)
        return chances.astype(np.float32)


def _first(lines: Iterator[str], characters: int) -> Iterator[str]:
    """Yield lines until they have that many characters together."""
    for line in lines:
        yield line
        characters -= len(line)
        if characters <= 0:
            break


def load_ids(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Load (ids, counts) of a saved corpus.

    Raises:
        DataCorrupt: the file is malformed, or a number is out of the range that loops rely on
    """
    ids, counts = read_arrays(path, "ids", "counts")
    if ids.dtype != np.int32 or counts.dtype != np.int64 or ids.ndim != 1 or counts.ndim != 1:
        raise damaged(path, "it has no numbers of words and their counts")
    if len(ids) and not BREAK <= int(ids.min()) <= int(ids.max()) < len(counts):
        raise damaged(path, "it names words that it does not count")
    if len(ids) and ids[-1] != BREAK:
        raise damaged(path, "its last sentence has no end")
    if len(counts) and int(counts.min()) < 0:
        raise damaged(path, "a count is negative")
    return ids, counts


def shares(ids: np.ndarray, workers: int) -> list[slice]:
    """Split the text into about equal parts of whole sentences, one for each worker."""
    ends = np.flatnonzero(ids == BREAK) + 1
    wanted = [len(ids) * worker // workers for worker in range(1, workers)]
    places = np.minimum(np.searchsorted(ends, wanted), len(ends) - 1)
    return [slice(*edge) for edge in pairwise([0, *ends[places].tolist(), len(ids)])]


def read_lines(paths: Iterable[str]) -> Iterator[str]:
    """Yield the lines of text files, plain or gzipped, and of the files in tar archives.

    A line that is longer than a block (`streams.BLOCK_BYTES`) comes in pieces. A path may be a
    folder or a pattern.

    Raises:
        DataMissing: there is no such file
        DataCorrupt: a text is not UTF-8, a word is too long, or an archive is not whole
    """
    for path in chain.from_iterable(map(files_of, paths)):
        if not path.is_file():
            raise DataMissing(f"no text at {path}")
        try:
            for line in _pieces_of(path):
                yield line.decode("utf-8-sig")
        except UNREADABLE as error:
            raise DataCorrupt(f"{path} cannot be read as text: {error}") from None


def _pieces_of(path: Path) -> Iterator[bytes]:
    if not path.name.endswith((".tar.gz", ".tgz", ".tar")):
        with opened(path) as file:
            yield from pieces(path, file)
        return
    with opened(path) as file:
        forward: Any = Forward(file)
        with tarfile.open(fileobj=forward, mode="r:") as archive:
            for member in archive:
                cast(Any, archive).members.clear()  # tarfile would keep all of them
                content = archive.extractfile(member) if member.isfile() else None
                if content is not None:
                    yield from pieces(path / member.name, content)


class Forward:
    """A file that tarfile reads from front to back; a header that is too long is refused."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._at = 0

    def tell(self) -> int:
        return self._at

    def seek(self, at: int) -> None:
        while self._at < at and self.read(min(BLOCK_BYTES, at - self._at)):
            pass

    def read(self, count: int) -> bytes:
        if count > LINE_BYTES_MAX:
            raise tarfile.ReadError(f"a header of {count} bytes")
        data = self._file.read(count)
        self._at += len(data)
        return data
