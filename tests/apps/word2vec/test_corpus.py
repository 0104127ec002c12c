"""The vocabulary of a text is its own tokens, or says what is left out."""

import random
import unicodedata
from collections import Counter

import numpy as np
import pytest

from shoal.apps.word2vec.corpus import Corpus, read_lines
from shoal.errors import InvalidValue

NOTHING = (0, 0, 0, 0)  # numbers, symbols, rare words each time and once
SEPARATED = {  # texts whose tokens blanks separate already
    "node ids": ["17 4 9023 17", "4 17 17 88"],
    "items": ["item_17 item_4 item_9023", "item_4 item_17"],
    "40 items": [" ".join(f"item_{n}" for n in range(1, 41))],
    "phrases": ["new_york is big", "new_york u.s. covid-19 mp3 2024"],
    "Hindi": ["हिन्दी भाषा", "क़लम ज़मीन"],
    "Hindi sentences": ["यह हिन्दी भाषा है। वह भारत की राजभाषा है।"],
    "Tamil": ["தமிழ் மொழி"],
    "Thai": ["ที่ ดี"],
    "Hebrew": ["שָׁלוֹם"],
    "decomposed": [unicodedata.normalize("NFD", "été naïve garçon")],
    "Turkish": ["İstanbul İZMİR"],
    "Chinese": ["我 爱 北京"],
    "Vietnamese": ["hoạt_động kinh_tế"],
    "format characters": ["co\u00adop zero\u200bwidth non\u00a0break"],
    "code": ["😀 c++ node.js #tag @user"],
    "case": ["AbC abc ABC aBc", "\u3000x\ty\r\n"],
    "one": ["one"],
}


@pytest.mark.parametrize("tokens", [{}, {"tokens": "space"}], ids=["default", "space"])
@pytest.mark.parametrize("lines", SEPARATED.values(), ids=SEPARATED)
def test_each_token_between_blanks_is_a_word(lines, tokens):
    corpus = Corpus.of(lines, 1, **tokens)
    counted = Counter(token for line in lines for token in line.split())
    assert dict(zip(corpus.words, corpus.counts.tolist(), strict=True)) == counted
    assert corpus.tokens == "space"
    assert corpus.left_out == NOTHING
    names = np.array([*corpus.words, "\n"])
    assert " ".join(names[corpus.ids]).split(" \n") == [
        *(("" if at == 0 else " ") + " ".join(line.split()) for at, line in enumerate(lines)), ""
    ]  # fmt: skip


def test_walks_of_node_ids_have_the_vocabulary_of_gensim(tmp_path):
    """gensim's LineSentence: `str.split` of each line; words below min_count are left out."""
    drawn = random.Random(0)
    path = tmp_path / "walks.txt"
    with path.open("w") as file:
        for _ in range(2000):
            walk = (int(drawn.paretovariate(0.7)) for _ in range(drawn.randrange(1, 80)))
            file.write(" ".join(map(str, walk)) + "\n")
    counted = Counter(token for line in path.read_text().splitlines() for token in line.split())
    expected = {token: count for token, count in counted.items() if count >= 5}
    corpus = Corpus.of(read_lines([str(path)]), 5)
    assert len(expected) > 200
    assert dict(zip(corpus.words, corpus.counts.tolist(), strict=True)) == expected
    rare = [count for count in counted.values() if count < 5]
    assert corpus.left_out == (0, 0, sum(rare), len(rare))


def test_prose_is_cut_into_words_and_what_is_left_out_is_counted():
    lines = ["In 1914 -- the war began.", "The war, the war! 1914-18 ..."]
    corpus = Corpus.of(lines, 2)
    assert corpus.words == ["the", "war"]
    assert corpus.tokens == "words"
    assert corpus.left_out == (2, 2, 2, 2)
    assert str(corpus.left_out) == "2 numbers, 2 symbols, 2 tokens of 2 words below --min-count"
    whole = Corpus.of(lines, 1, "space")
    assert whole.left_out == NOTHING
    assert set(whole.words) == {token for line in lines for token in line.split()}


def test_a_text_is_what_its_beginning_is():
    prose, walks = ["The cat sat, and the dog."] * 60_000, ["17 4 9023"] * 200_000
    assert Corpus.of(prose + walks, 1).tokens == "words"
    assert Corpus.of(walks + prose, 1).tokens == "space"


def test_a_text_without_blanks_between_words_is_refused_unless_its_tokens_are_taken_as_they_are():
    lines = ["ประเทศไทยตั้งอยู่ในเอเชียตะวันออกเฉียงใต้"]
    for tokens in ("auto", "words", "hi"):
        with pytest.raises(InvalidValue, match=r"a\.txt is in Thai"):
            Corpus.of(lines, 1, tokens, "a.txt")
    assert Corpus.of(lines, 1, "space").words == lines
