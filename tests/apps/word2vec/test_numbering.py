"""Words by number, beside plain Python."""

import random

import numpy as np
import pytest

from shoal.apps.word2vec import numbering
from shoal.apps.word2vec.numbering import BREAK, numbered
from shoal.apps.word2vec.tokens import SPACE, WORDS, taking_apart


def reference(lines, tokens, sentence):
    """`numbered` as one would write it."""
    known, numbers, left_out = {}, [], [0, 0]
    for line in lines:
        words = []
        for token in line.split():
            if tokens == SPACE:
                words.append(token)
            else:
                parts = taking_apart(tokens)(token)
                words += parts.words
                left_out[0] += parts.numbers
                left_out[1] += parts.symbols
        for start in range(0, len(words), sentence):
            some = words[start : start + sentence]
            numbers += [known.setdefault(word, len(known)) for word in some] + [BREAK]
    return numbers, list(known), *left_out


@pytest.mark.parametrize("tokens", [SPACE, WORDS])
@pytest.mark.parametrize(("block", "taken"), [(1, 1), (7, 3), (1 << 20, 1 << 19)])
def test_a_text_by_number_is_as_plain_python_has_it(tokens, block, taken, monkeypatch):
    monkeypatch.setattr(numbering, "BLOCK", block)
    monkeypatch.setattr(numbering, "TAKEN_MAX", taken)
    monkeypatch.setattr(numbering, "SENTENCE_WORDS", 4)
    drawn = random.Random(0)
    kinds = ["a", "A", "b,", "a-b", "c_1", "17", "covid-19", "--", "हिन्दी।", "x-7-y", "\u200b"]
    lines = [
        drawn.choice([" ", "\t", "\u00a0", "\u3000"]).join(
            drawn.choice(kinds) for _ in range(drawn.choice([0, 0, 1, 3, 4, 5, 8, 13]))
        )
        for _ in range(300)
    ]
    found = numbered(lines, tokens)
    assert found[0].dtype == np.int32
    assert (found[0].tolist(), *found[1:]) == reference(lines, tokens, 4)


@pytest.mark.parametrize("lines", [[], [""], ["  \n"], ["-- 17"]])
def test_a_text_without_words(lines):
    numbers, words, *_ = numbered(lines, WORDS)
    assert numbers.tolist() == words == []
