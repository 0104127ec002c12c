"""Text as words by number: read once, for all workers."""

from __future__ import annotations

import re
import tarfile
from array import array
from collections.abc import Iterable, Iterator
from itertools import chain, pairwise
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from shoal.data.streams import BLOCK_BYTES, LINE_BYTES_MAX, files_of, opened, pieces
from shoal.errors import DataCorrupt, DataMissing
from shoal.storage.files import damaged, read_arrays

WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
BREAK = -1  # between sentences
SENTENCE_WORDS = 10_000  # a longer line is cut
UNREADABLE = (OSError, EOFError, tarfile.TarError, UnicodeDecodeError)


class Corpus:
    """The words of a text that are not rare, most frequent first.

    words:   the vocabulary
    counts:  (n,) how often each comes
    ids:     int32, the text: numbers of words, and BREAK after each sentence
    """

    def __init__(self, words: list[str], counts: np.ndarray, ids: np.ndarray) -> None:
        self.words = words
        self.counts = counts
        self.ids = ids

    @staticmethod
    def of(lines: Iterable[str], min_count: int) -> Corpus:
        """The corpus of some lines, each a sentence.

        >>> corpus = Corpus.of(["The cat sat.", "the dog, the cat"], min_count=2)
        >>> corpus.words, corpus.counts.tolist(), corpus.ids.tolist()
        (['the', 'cat'], [3, 2], [0, 1, -1, 0, 0, 1, -1])
        """
        numbers: dict[str, int] = {}
        text = array("i")
        for line in lines:
            found = WORD.findall(line.lower())
            for start in range(0, len(found), SENTENCE_WORDS):
                some = found[start : start + SENTENCE_WORDS]
                text.extend([numbers.setdefault(word, len(numbers)) for word in some])
                text.append(BREAK)
        everything = np.frombuffer(text, np.int32) if text else np.empty(0, np.int32)
        counts = np.bincount(everything[everything >= 0], minlength=len(numbers))
        names = list(numbers)
        kept = [n for n in np.argsort(-counts, kind="stable") if counts[n] >= min_count]
        renumbered = np.full(len(names) + 1, BREAK - 1, np.int32)  # the last: of BREAK itself
        renumbered[kept] = np.arange(len(kept), dtype=np.int32)
        renumbered[-1] = BREAK
        ids = renumbered[everything]
        return Corpus([names[n] for n in kept], counts[kept], ids[ids >= BREAK])

    @property
    def total(self) -> int:
        """Words of the text, rare ones left out."""
        return int(self.counts.sum())

    def save(self, path: Path) -> None:
        with path.open("wb") as file:
            np.savez(file, ids=self.ids, counts=self.counts)

    def keep_chances(self, sample: float) -> np.ndarray:
        """How likely each word stays: Mikolov et al. 2013, section 2.3, as word2vec.c has it."""
        if not sample:
            return np.ones(len(self.words), np.float32)
        share = np.maximum(self.counts, 1) / (sample * max(self.total, 1))
        chances: np.ndarray = np.minimum(1.0, (np.sqrt(share) + 1) / share)
        return chances.astype(np.float32)


def load_ids(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """(ids, counts) of a saved corpus.

    Raises:
        DataCorrupt: it is none; loops count on the numbers of words
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
    """An equal part of the text for each worker, of whole sentences."""
    ends = np.flatnonzero(ids == BREAK) + 1
    wanted = [len(ids) * worker // workers for worker in range(1, workers)]
    places = np.minimum(np.searchsorted(ends, wanted), len(ends) - 1)
    return [slice(*edge) for edge in pairwise([0, *ends[places].tolist(), len(ids)])]


def read_lines(paths: Iterable[str]) -> Iterator[str]:
    """The lines of text files, of gzipped ones and of those in tar archives; of a line that is
    longer than a block (`streams.BLOCK_BYTES`) its pieces. A path may be a folder or a pattern.

    Raises:
        DataMissing: no such file
        DataCorrupt: not UTF-8, words that are too long, or an archive that is not whole
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
                cast(Any, archive).members.clear()  # it would keep all of them
                content = archive.extractfile(member) if member.isfile() else None
                if content is not None:
                    yield from pieces(path / member.name, content)


class Forward:
    """A file as tarfile reads it, from front to back; a header that is too long is refused."""

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
