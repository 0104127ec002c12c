"""Numbers of the words of a text, in the order in which the words first come."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from itertools import chain

import numpy as np

from shoal.apps.word2vec.tokens import SPACE, taking_apart

BREAK = -1  # between sentences
NUMBER, SYMBOL = -2, -3  # for tokens that are left out; below them: tokens of several parts
SENTENCE_WORDS = 10_000  # a longer line is cut
BLOCK = 1 << 20  # tokens that are turned into words at once
TAKEN_MAX = 1 << 19  # tokens that are remembered


def numbered(lines: Iterable[str], tokens: str) -> tuple[np.ndarray, list[str], int, int]:
    """Return a text as the numbers of its words; each line is a sentence.

    Returns:
        (int32, BREAK after each sentence; the words; the number of tokens with numbers, and of
        tokens of symbols, that are left out)

    >>> numbers, words, *left_out = numbered(["The 2 cats -- the cat", "7"], "words")
    >>> numbers.tolist(), words, left_out
    ([0, 1, 0, 2, -1], ['the', 'cats', 'cat'], [2, 1])
    """
    taken = Whole() if tokens == SPACE else Taken(tokens)
    text = array("i")
    left_out = {NUMBER: 0, SYMBOL: 0}
    for block in _blocks(lines, taken):
        numbers = taken.words_of(block)
        for what in left_out:
            left_out[what] += int((numbers == what).sum())
        text.frombytes(cut(without_left_out(numbers), SENTENCE_WORDS).tobytes())
    everything = np.frombuffer(text, np.int32) if text else np.empty(0, np.int32)
    return everything, [*taken.words], left_out[NUMBER], left_out[SYMBOL]


def _blocks(lines: Iterable[str], taken: Whole | Taken) -> Iterator[np.ndarray]:
    """Yield the numbers of the tokens of whole lines, in blocks of BLOCK or more."""
    block = array("i")
    for line in lines:
        block.fromlist([*map(taken.__getitem__, line.split())])
        block.append(BREAK)
        if len(block) >= BLOCK:
            yield np.frombuffer(block, np.int32)
            block = array("i")
    if block:
        yield np.frombuffer(block, np.int32)


class Whole(dict[str, int]):
    """The numbers of tokens between blanks, each of which is a word."""

    def __missing__(self, token: str) -> int:
        self[token] = number = len(self)
        return number

    @property
    def words(self) -> Iterable[str]:
        return self

    def words_of(self, tokens: np.ndarray) -> np.ndarray:
        """Return the numbers as they are, because each token is a word."""
        return tokens


class Taken(dict[str, int]):
    """The numbers of tokens between blanks, each of which is taken apart into words once.

    A token of one word has the number of that word. NUMBER or SYMBOL stands for a token that is
    left out, and a number below them for a token of several words, or of words and numbers.
    """

    def __init__(self, tokens: str) -> None:
        self.words: dict[str, int] = {}
        self._several: dict[tuple[int, ...], int] = {}
        self._apart = taking_apart(tokens)

    def __missing__(self, token: str) -> int:
        found = self._apart(token)
        parts = [self.words.setdefault(word, len(self.words)) for word in found.words]
        parts += [NUMBER] * found.numbers + [SYMBOL] * found.symbols
        if len(self) >= TAKEN_MAX:
            self.clear()
        if len(parts) == 1:
            number = parts[0]
        else:
            number = self._several.setdefault(tuple(parts), SYMBOL - 1 - len(self._several))
        self[token] = number
        return number

    def words_of(self, tokens: np.ndarray) -> np.ndarray:
        """Return the words of tokens, both by number; NUMBER and SYMBOL stay."""
        places = np.flatnonzero(tokens < SYMBOL)
        if not len(places):
            return tokens
        known = list(self._several)
        parts = [known[SYMBOL - 1 - number] for number in tokens[places].tolist()]
        lengths = np.ones(len(tokens), np.int64)
        lengths[places] = [len(each) for each in parts]
        words = np.repeat(tokens, lengths)
        words[words < SYMBOL] = [*chain.from_iterable(parts)]
        return words


def without_left_out(numbers: np.ndarray) -> np.ndarray:
    """Return the numbers without those of tokens left out, and without empty sentences.

    >>> without_left_out(np.array([NUMBER, BREAK, 0, SYMBOL, BREAK, BREAK])).tolist()
    [0, -1]
    """
    numbers = numbers[numbers >= BREAK]
    ends = numbers == BREAK
    ends[1:] &= ends[:-1]
    whole: np.ndarray = numbers[~ends]
    return whole


def cut(numbers: np.ndarray, words: int) -> np.ndarray:
    """Cut sentences into sentences of at most `words` words.

    >>> cut(np.array([0, 1, 2, BREAK, 3, 4, BREAK]), 2).tolist()
    [0, 1, -1, 2, -1, 3, 4, -1]
    """
    ends = np.flatnonzero(numbers == BREAK)
    lengths = np.diff(ends, prepend=-1)
    if not len(ends) or lengths.max() <= words + 1:
        return numbers
    place = np.arange(len(numbers)) - np.repeat(ends - lengths + 1, lengths)  # in the sentence
    too_many = (place % words == 0) & (place > 0) & (numbers >= 0)
    shorter: np.ndarray = np.insert(numbers, np.flatnonzero(too_many), BREAK)
    return shorter
