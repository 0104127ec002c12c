"""Word embeddings: files for other programs, nearest words, analogies and similarities."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path

import numpy as np

from shoal.apps.word2vec.tokens import WORDS, check_tokens, folding
from shoal.data.streams import lines, opened
from shoal.errors import DataCorrupt, DataMissing, InvalidValue, UnknownName
from shoal.extras import require
from shoal.runs.job_file import load_run_job
from shoal.storage.files import naming, read_text, write_whole
from shoal.storage.run_folder import RunFolder

APPLICATION = "word2vec"
VOCABULARY, BINARY = "vocabulary.txt", "vectors.bin"  # files in a run's folder
SCORES = "scores.json"  # of the vectors, written last
QUESTIONS_A_BLOCK = 512


class Vectors:
    """Words and their vectors.

    Args:
        words: the vocabulary, most frequent first.
        vectors: (n, dim) float32.
        tokens: the value of `--tokens`. A word that is not in the vocabulary is looked up as that
            rule writes it: in lower case, with composed accents.

    Example:
        >>> vectors = Vectors(["a", "b", "c"], np.array([[1, 0], [0.8, 0.6], [0, 1]], np.float32))
        >>> [(word, round(cosine, 2)) for word, cosine in vectors.similar("a", count=1)]
        [('b', 0.8)]
    """

    def __init__(self, words: list[str], vectors: np.ndarray, tokens: str = WORDS) -> None:
        self.words = words
        self.vectors = vectors
        self.numbers = {word: number for number, word in enumerate(words)}
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        self._unit = vectors / np.maximum(norms, 1e-12)
        self._fold = folding(tokens)

    @staticmethod
    def load(run: str | Path) -> Vectors:
        """Load the vectors of a run of `shoal train word2vec`; the current ones while it trains.

        Raises:
            DataMissing: there is no such run, or it has no vectors.
            DataCorrupt, UnknownFormat: a file of the run is not as it was written.
        """
        from shoal.apps.weights import weights_of  # it imports torch

        folder = RunFolder(Path(run))
        job = load_run_job(folder.path)
        if job.get("application") != APPLICATION:
            raise DataMissing(f"{folder.job} is of another run than one of `shoal train word2vec`")
        words = read_text(folder.path / VOCABULARY).splitlines()
        tokens = str(job.get("tokens", WORDS))
        with naming(folder.job):
            check_tokens(tokens)
        weights = weights_of(folder.path, max_rows=len(words))
        try:
            rows = weights.rows("in", np.arange(len(words), dtype=np.uint64))
            return Vectors(words, rows, tokens)
        finally:
            weights.close()

    def __getitem__(self, word: str) -> np.ndarray:
        """Return the vector of a word, (dim,) float32.

        Raises:
            UnknownName: the vocabulary has no such word.
        """
        vector: np.ndarray = self.vectors[self._number(word)]
        return vector

    def similar(
        self, *words: str, minus: Sequence[str] = (), count: int = 10
    ) -> list[tuple[str, float]]:
        """Return the words nearest to a sum of words, and the cosines of their angles to it.

        With unit vectors u the sum is that of u(w) over `words`, less that over `minus`; the given
        words are left out (Mikolov et al. 2013, "Linguistic Regularities", section 5).

        Args:
            words: one or more.
            minus: words that are subtracted: king, woman, minus man.
            count: the number of nearest words.

        Raises:
            UnknownName: a word is not in the vocabulary.
            InvalidValue: no words, a count below 1, or a `minus` that is a text.
        """
        if not words or count < 1 or isinstance(minus, str):
            raise InvalidValue("similar takes one word or more, a list `minus`, and a count from 1")
        plus, less = ([self._number(word) for word in some] for some in (words, minus))
        wanted = self._unit[plus].sum(0) - self._unit[less].sum(0)
        cosines = self._unit @ (wanted / max(float(np.linalg.norm(wanted)), 1e-12))
        cosines[[*plus, *less]] = -np.inf
        nearest = np.argsort(-cosines)[: min(count, len(self.words) - len({*plus, *less}))]
        return [(self.words[number], float(cosines[number])) for number in nearest]

    def _number(self, word: str) -> int:
        number = self._known(word)
        if number < 0:
            close = get_close_matches(self._fold(word), self.words, n=3)
            hint = f" (known: {', '.join(close)}, ...)" if close else ""
            raise UnknownName(f"the vocabulary has no word {word!r}{hint}")
        return number

    def _known(self, word: str) -> int:
        """Return the number of a word, as given or as the vocabulary writes it; -1 if unknown."""
        number = self.numbers.get(word)
        return self.numbers.get(self._fold(word), -1) if number is None else number

    def save(self, path: Path, binary: bool) -> None:
        """Write the format of word2vec.c, for gensim's KeyedVectors.load_word2vec_format."""

        def write(fresh: Path) -> None:
            with fresh.open("xb") as file:
                file.write(f"{len(self.words)} {self.vectors.shape[1]}\n".encode())
                for word, vector in zip(self.words, self.vectors.astype(np.float32), strict=True):
                    if binary:
                        file.write(word.encode() + b" " + vector.tobytes() + b"\n")
                    else:
                        file.write(f"{word} {' '.join(f'{x:.6g}' for x in vector)}\n".encode())

        write_whole(path, write)

    def analogies(self, path: Path) -> dict[str, float | int]:
        """Count the questions `a b c d` (a is to b as c to d) that have the answer d.

        The answer is the word whose unit vector is nearest to b - a + c, except these three words
        (Mikolov et al. 2013, "Linguistic Regularities", section 5). Questions with an unknown word
        are left out.
        """
        found = ([*map(self._known, words)] for words in questions_in(path))
        questions = np.array([each for each in found if min(each) >= 0], np.int64).reshape(-1, 4)
        right = 0
        for start in range(0, len(questions), QUESTIONS_A_BLOCK):
            a, b, c, d = questions[start : start + QUESTIONS_A_BLOCK].T
            scores = (self._unit[b] - self._unit[a] + self._unit[c]) @ self._unit.T
            rows = np.arange(len(d))
            for given in (a, b, c):
                scores[rows, given] = -np.inf
            right += int((scores.argmax(1) == d).sum())
        accuracy = right / len(questions) if len(questions) else 0.0
        return {"accuracy": accuracy, "right": right, "questions": len(questions)}

    def similarities(self, path: Path) -> dict[str, float | int]:
        """Compute Spearman's correlation of cosines with people's scores of pairs of words."""
        spearmanr = require("scipy.stats", "the correlation with similarities").spearmanr
        ours, theirs, pairs = [], [], 0
        for one, other, score in pairs_in(path):
            pairs += 1
            numbers = self._known(one), self._known(other)
            if min(numbers) >= 0:
                ours.append(float(self._unit[numbers[0]] @ self._unit[numbers[1]]))
                theirs.append(score)
        value = float(spearmanr(ours, theirs).statistic) if len(ours) > 1 else 0.0
        return {"spearman": value, "pairs": len(ours), "left_out": pairs - len(ours)}


def questions_in(path: Path) -> Iterator[list[str]]:
    """Yield the four words of each question of a file.

    Raises:
        DataMissing, DataCorrupt: there is no such file, or a line is no question
    """
    for number, line in enumerate(_lines(path), 1):
        words = line.split()
        if not words or words[0].startswith(":"):
            continue
        if len(words) != 4:
            raise DataCorrupt(f"{path}, line {number}: expected four words, not {line!r}")
        yield words


def pairs_in(path: Path) -> Iterator[tuple[str, str, float]]:
    """Yield the pairs of words of a file, with people's scores of their similarity.

    Raises:
        DataMissing, DataCorrupt: there is no such file, or a line is no pair with a score
    """
    for number, line in enumerate(_lines(path), 1):
        if not line.strip() or line.startswith("#"):
            continue
        fields = line.split("\t") if "\t" in line else line.split()
        try:
            yield fields[0], fields[1], float(fields[2])
        except (IndexError, ValueError):
            if number > 1:  # the first line may be a heading
                raise DataCorrupt(
                    f"{path}, line {number}: expected two words and a score, not {line!r}"
                ) from None


def _lines(path: Path) -> Iterator[str]:
    """Yield the lines of a text file, gzipped or not."""
    if not path.is_file():
        raise DataMissing(f"no file {path}")
    with opened(path) as file:
        for number, line in lines(path, file):
            try:
                yield line.decode("utf-8-sig").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise DataCorrupt(
                    f"{path}, line {number}: not UTF-8 text ({error.reason})"
                ) from None
