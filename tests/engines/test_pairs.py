"""NAME=VALUE words: what is written is read again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.engines.pairs import pairs_of, values_of, words_of
from shoal.errors import InvalidValue

NUMBERS = st.integers() | st.floats(allow_nan=False) | st.booleans()


@given(st.dictionaries(st.from_regex(r"[a-z_]+", fullmatch=True), NUMBERS | st.text()))
def test_values_survive_their_words(values):
    assert values_of(words_of(values), "--set") == values


def test_a_value_may_have_equals_signs_and_a_later_word_wins():
    assert pairs_of(["a=b=c", "d=", "a=1"], "--set") == {"a": "1", "d": ""}


@pytest.mark.parametrize("word", ["tau", "", "tau:3"])
def test_a_word_without_an_equals_sign_is_refused_with_its_flag(word):
    with pytest.raises(InvalidValue, match=f"--set: '{word}' is not NAME=VALUE"):
        pairs_of(["a=1", word], "--set")
