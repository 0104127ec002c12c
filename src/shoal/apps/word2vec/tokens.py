"""Tokens: the words of a token between blanks, by the rule of `--tokens`."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator
from functools import cache
from itertools import chain
from typing import NamedTuple

from shoal.errors import InvalidValue
from shoal.registry import unknown

AUTO, SPACE, WORDS = "auto", "space", "words"
FORMATS = dict.fromkeys(map(ord, "\u00ad\u200e\u200f\u2060\ufeff"))  # invisible, in no word
APOSTROPHES = "'’·״׳"  # between two letters they are part of a word
SEGMENT_FIRST = (
    "Segment the text first (with jieba, MeCab or PyThaiNLP, say), write the words with blanks "
    "between them, and use --tokens space"
)
Fold = Callable[[str], str]
Cut = Callable[[str], list[str]]


class Parts(NamedTuple):
    """The parts of a token between blanks.

    words:    the words of the token
    numbers:  whether digits without a letter are left out
    symbols:  whether the token has neither letters nor digits, and is left out
    """

    words: list[str]
    numbers: bool = False
    symbols: bool = False


class Language(NamedTuple):
    """The rules of a language.

    fold:  the function that writes a token in lower case
    cut:   the function that cuts a word into its words, if there is one
    """

    fold: Fold
    cut: Cut | None = None


def _composed(token: str) -> str:
    """Return a token in Unicode's composed form (NFC), without the invisible FORMATS."""
    return unicodedata.normalize("NFC", token).translate(FORMATS)


def fold(token: str) -> str:
    """Return a token as the vocabulary of `words` writes it: composed, in lower case.

    >>> fold("E\u0301te\u0301"), fold("İzmir"), fold("co\u00adop")
    ('été', 'izmir', 'coop')
    """
    if token.isascii():
        return token.lower()
    return _composed(token).replace("İ", "i").lower()  # "İ".lower() has a second dot


def _fold_turkic(token: str) -> str:
    return _composed(token).replace("İ", "i").replace("I", "ı").lower()


def _fold_hebrew(token: str) -> str:
    """Fold a token; a quotation mark before the last letter becomes that of an acronym."""
    return re.sub('(?<=[א-ת])"(?=[א-ת](?![א-ת"]))', "״", fold(token))


def _elided(articles: str) -> Cut:
    """Return a function that cuts an elided word off the word that follows it.

    >>> _elided("l d")("l’eau"), _elided("l d")("aujourd'hui")
    (["l'", 'eau'], ["aujourd'hui"])
    """
    pattern = re.compile(f"({'|'.join(articles.split())})['’](?=.)")

    def cut(word: str) -> list[str]:
        found = pattern.match(word)
        return [f"{found[1]}'", word[found.end() :]] if found else [word]

    return cut


ALIKE = """
    af am ar as be bg bn br bs cs cy da de el en eo es et eu fa fi fo fy ga gd gl gu hi hr hu hy id
    is ka kk kn ko ku ky la lb lt lv mg mk ml mn mr ms mt nb ne nl nn no oc or pa pl ps pt ro ru sa
    sd si sk sl so sq sr sv sw ta te tg tk tl tt ug uk ur uz vo xh yi yo zu
"""  # languages for which `words` is right
LANGUAGES = dict.fromkeys(ALIKE.split(), Language(fold))
LANGUAGES |= {
    "az": Language(_fold_turkic),
    "tr": Language(_fold_turkic),
    "ca": Language(fold, _elided("d l m n s t")),
    "fr": Language(fold, _elided("c d j jusqu l lorsqu m n puisqu qu quoiqu s t")),
    "he": Language(_fold_hebrew),
    "it": Language(
        fold,
        _elided(
            "agl all c coll d dagl dall degl dell gl l m negl nell pell quell quest s sugl sull t "
            "un v"
        ),
    ),
}
UNCUT = {  # languages whose words are found with a dictionary
    "bo": "Tibetan", "dz": "Dzongkha", "ja": "Japanese", "km": "Khmer", "lo": "Lao",
    "my": "Burmese", "th": "Thai", "vi": "Vietnamese", "yue": "Cantonese", "zh": "Chinese",
}  # fmt: skip


def language_of(tokens: str) -> Language:
    """Return the rules of a value of `--tokens` other than `space`.

    Raises:
        InvalidValue: the words of the language are found with a dictionary
        UnknownName: there is no such language
    """
    code = re.split("[-_]", tokens.lower())[0]  # pt-BR is pt
    if code in UNCUT:
        blanks = "blanks inside words" if code == "vi" else "no blanks between words"
        raise InvalidValue(
            f"--tokens {tokens}: {UNCUT[code]} has {blanks}, which are found with a dictionary. "
            f"{SEGMENT_FIRST}"
        )
    if code not in LANGUAGES and tokens != WORDS:
        raise unknown("kind of tokens", tokens, [AUTO, SPACE, WORDS, *LANGUAGES])
    return LANGUAGES.get(code, Language(fold))


def check_tokens(tokens: str) -> None:
    """Refuse a text that is no value of `--tokens`.

    Raises:
        InvalidValue, UnknownName: as in `language_of`
    """
    if tokens not in (AUTO, SPACE):
        language_of(tokens)


def folding(tokens: str) -> Fold:
    """Return the function that writes a word as the vocabulary does, to look it up."""
    return fold if tokens in (AUTO, SPACE) else language_of(tokens).fold


def taking_apart(tokens: str) -> Callable[[str], Parts]:
    """Return the function that finds the words of a token, by a language's rules or as `words`.

    A word is a run of letters, with their marks, and of digits and underscores between them. An
    apostrophe between letters is part of the word. Digits alone are no word.

    >>> apart = taking_apart("words")
    >>> [apart(token).words for token in ("Don't,", "_well-known_", "mp3", "new_york", "हिन्दी।")]
    [["don't"], ['well', 'known'], ['mp3'], ['new_york'], ['हिन्दी']]
    >>> apart("1914-18"), apart("--")
    (Parts(words=[], numbers=True, symbols=False), Parts(words=[], numbers=False, symbols=True))
    """
    fold, cut = language_of(tokens)

    def apart(token: str) -> Parts:
        token = fold(token)
        if token.isalpha():
            return Parts([token] if cut is None else cut(token))
        runs = [each[0].strip("_") for each in runs_in(token)]
        words = [run for run in runs if any(map(str.isalpha, run))]
        others = [run for run in runs if not any(map(str.isalpha, run))]
        numbers = any(any(map(str.isnumeric, run)) for run in others)
        if cut is not None:
            words = [part for word in words for part in cut(word)]
        return Parts(words, numbers, symbols=not words and not numbers)

    return apart


def runs_in(token: str) -> Iterator[re.Match[str]]:
    """Find the runs of letters, marks, digits and underscores, joined by apostrophes."""
    return _runs(token.isascii()).finditer(token)


@cache
def _runs(ascii_only: bool) -> re.Pattern[str]:
    joiners = "\u200c\u200d"  # they control whether letters join, as in Persian and Malayalam
    inside = r"\w" if ascii_only else rf"\w{marks()}{joiners}"
    return re.compile(rf"\w[{inside}]*(?:(?<!_)[{APOSTROPHES}](?!_)\w[{inside}]*)*")


@cache
def marks() -> str:
    """Return all combining marks, which `\\w` lacks: vowels of Hindi and Thai, accents."""
    places = chain(range(0x300, 0x20000), range(0xE0100, 0xE01F0))
    return "".join(c for c in map(chr, places) if unicodedata.category(c)[0] == "M")
