"""Detection of the kind of a text from its beginning: prose, tokens between blanks, or neither."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from functools import cache
from itertools import pairwise
from typing import NamedTuple

from shoal.apps.word2vec.tokens import SEGMENT_FIRST, SPACE, WORDS, runs_in
from shoal.errors import InvalidValue

BEGINNING = 1 << 20  # characters that are looked at
STRANGE = 1 / 3  # share of tokens that are not plain words, above which a text is not prose
ENDED = 1 / 50  # share of plain words with punctuation at the end, below which a text is not prose
DASHES = re.compile(r"[-\u2010-\u2015]*")
ENDS = re.compile(r"[.,;:!?…։]")


class Script(NamedTuple):
    """A script without blanks between words.

    name:     the name of the script, for errors
    letters:  the letters of the script, as a class of a regular expression
    longest:  the mean number of letters per token above which a text is not segmented
    """

    name: str
    letters: str
    longest: int


HAN = "\u3005\u3041-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
SCRIPTS = (
    Script("Chinese or Japanese", HAN, 4),
    Script("Thai", "\u0e01-\u0e5b", 12),
    Script("Lao", "\u0e81-\u0edf", 12),
    Script("Tibetan", "\u0f00-\u0fbc", 12),
    Script("Burmese", "\u1000-\u109f", 12),
    Script("Khmer", "\u1780-\u17dd", 12),
)


def kind_of(beginning: Iterable[str]) -> tuple[str, str]:
    """Return `space` or `words`, the kind of a text's tokens, and the reason, from its first lines.

    Prose is cut into `words`: at least two thirds of its tokens are plain words, in an alphabet
    with capitals, and at least one in fifty has punctuation at its end. In any other text each
    token between blanks is a word.

    >>> kind_of(["The cat sat.", "the dog, the cat"])
    ('words', 'the text is prose')
    >>> kind_of(["17 4 9023 17"])
    ('space', '100 % of the tokens are numbers, or have digits or symbols inside')
    """
    plain = strange = caseless = ended = 0
    for token, count in tokens_in(beginning).items():
        found = _plain_word(token)
        if found is None:
            strange += count if re.search(r"\w", token) else 0
            continue
        word, end = found
        plain += count
        caseless += count if word.upper() == word.lower() else 0
        ended += count if ENDS.search(end) else 0
    if strange > STRANGE * (plain + strange):
        share = 100 * strange / (plain + strange)
        return SPACE, f"{share:.0f} % of the tokens are numbers, or have digits or symbols inside"
    if caseless > plain / 2:
        return SPACE, "the letters have no capitals"
    if ended < ENDED * plain or not plain:
        return SPACE, "the words have no punctuation"
    return WORDS, "the text is prose"


def check_segmented(beginning: Iterable[str], source: str) -> None:
    """Refuse a text that has no blanks between words.

    Raises:
        InvalidValue: most of the text is in a script without blanks, and none have been added
    """
    tokens = tokens_in(beginning)
    everything = sum(len(token) * count for token, count in tokens.items())
    for script in SCRIPTS:
        letters = many = 0
        for token, count in tokens.items():
            if not token.isascii() and (here := _letters_of(script, token)):
                letters += here * count
                many += count
        if 2 * letters > everything and letters > script.longest * many:
            raise InvalidValue(
                f"{source} is in {script.name}, without blanks between words: tokens between "
                f"blanks have {letters / many:.0f} letters on average. {SEGMENT_FIRST}"
            )


def tokens_in(lines: Iterable[str]) -> Counter[str]:
    """Count the tokens between blanks."""
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(line.split())
    return counts


def _plain_word(token: str) -> tuple[str, str] | None:
    """Return the plain word of a token, and the text behind it; None if there is none.

    A plain word has letters only, with dashes and apostrophes inside.

    >>> _plain_word("“well-known,”"), _plain_word("_don't_"), _plain_word("u.s."), _plain_word("a1")
    (('well-known', ',”'), ("don't", ''), None, None)
    """
    runs = list(runs_in(token))
    if not runs or any(re.search(r"[\d_]", run[0].strip("_")) for run in runs):
        return None
    if any(not DASHES.fullmatch(token, a.end(), b.start()) for a, b in pairwise(runs)):
        return None
    word = token[runs[0].start() : runs[-1].end()].strip("_")
    return (word, token[runs[-1].end() :]) if word else None


@cache
def _pattern(script: Script) -> re.Pattern[str]:
    return re.compile(f"[{script.letters}]+")


def _letters_of(script: Script, token: str) -> int:
    return sum(map(len, _pattern(script).findall(token)))
