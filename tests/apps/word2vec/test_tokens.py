"""The words of tokens between blanks: scripts with combining marks, languages, what is left out."""

import random
import re
import unicodedata

import pytest

from shoal.apps.word2vec.tokens import (
    AUTO,
    LANGUAGES,
    SPACE,
    UNCUT,
    WORDS,
    check_tokens,
    folding,
    taking_apart,
)
from shoal.errors import InvalidValue, UnknownName

ENGLISH = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")  # words of letters and apostrophes


@pytest.mark.parametrize(
    ("token", "words"),
    [
        ("“Don’t,", ["don’t"]),
        ("rock'n'roll.", ["rock'n'roll"]),
        ("'tis", ["tis"]),
        ("dogs'", ["dogs"]),
        ("well-known", ["well", "known"]),
        ("word—word", ["word", "word"]),
        ("_emphasis_,", ["emphasis"]),
        ("_Nautilus_'s", ["nautilus", "s"]),
        ("mp3", ["mp3"]),
        ("1990's", ["1990's"]),
        ("item_17", ["item_17"]),
        ("new_york", ["new_york"]),
        ("हिन्दी।", ["हिन्दी"]),
        ("(தமிழ்)", ["தமிழ்"]),
        ("שָׁלוֹם,", ["שָׁלוֹם"]),
        ("مُحَمَّد؟", ["مُحَمَّد"]),
        ("می‌خواهم", ["می‌خواهم"]),  # with a zero-width non-joiner
        ("അവന്‍", ["അവന്‍"]),  # which ends with a zero-width joiner
        ("ΟΔΟΣ.", ["οδος"]),
        ("col·lecció", ["col·lecció"]),
        ("co\u00adop", ["coop"]),
        ("zero\u200bwidth", ["zero", "width"]),
        ("\ufeffThe", ["the"]),
        ("İzmir", ["izmir"]),
        ("한국어를", ["한국어를"]),
        ("x²", ["x²"]),
        ("☀️", []),
        ("_", []),
        ("", []),
    ],
)
def test_words_of_a_token(token, words):
    assert taking_apart(WORDS)(token).words == words


@pytest.mark.parametrize("text", ["été naïve garçon", "हिन्दी क़लम", "Việt Nam", "한국어 İzmir"])
def test_words_do_not_depend_on_how_accents_are_encoded(text):
    apart = taking_apart(WORDS)
    found = {
        form: [
            word for token in unicodedata.normalize(form, text).split() for word in apart(token)[0]
        ]
        for form in ("NFC", "NFD")
    }
    assert found["NFC"] == found["NFD"]
    assert len(found["NFC"]) == len(text.split())
    assert found["NFC"] == [unicodedata.normalize("NFC", word) for word in found["NFC"]]


@pytest.mark.parametrize(
    ("token", "left_out"),
    [
        ("1914-1918", (True, False)),
        ("3.14", (True, False)),
        ("٣٤", (True, False)),
        ("covid-19", (True, False)),
        ("--", (False, True)),
        ("😀", (False, True)),
        ("_", (False, True)),
        ("mp3", (False, False)),
        ("cat,", (False, False)),
    ],
)
def test_numbers_and_symbols_are_left_out_and_said(token, left_out):
    assert taking_apart(WORDS)(token)[1:] == left_out


def test_no_letter_is_lost_and_no_word_has_a_blank():
    drawn = random.Random(0)
    letters = "abÉßяΣשم한हथाிா\u0301\u064b漢ก"
    others = "0٣_-'’.,·\u200b\u200c\u00ad😀²"
    for _ in range(5000):
        token = "".join(drawn.choice(letters + others) for _ in range(drawn.randrange(1, 12)))
        words, numbers, symbols = taking_apart(WORDS)(token)
        kept = [c for c in folding(WORDS)(token) if c.isalpha()]
        assert [c for c in "".join(words) if c.isalpha()] == kept, token
        assert all(len(word.split()) == 1 and word.strip("_") == word for word in words), token
        assert symbols == (not words and not numbers), token
        assert numbers <= any(c.isnumeric() for c in token), token


def test_english_prose_is_cut_at_whatever_is_no_letter():
    drawn = random.Random(1)
    letters, between = "abcxyzABCéÖ", [".", ",", "--", "—", "'", "’", '"', "(", "!", "-", "_ ", " "]
    for _ in range(300):
        runs = ("".join(drawn.choices(letters, k=drawn.randrange(1, 9))) for _ in range(20))
        line = "".join(run + drawn.choice(between) for run in runs)
        words = [word for token in line.split() for word in taking_apart("en")(token).words]
        assert words == ENGLISH.findall(line.lower()), line


@pytest.mark.parametrize(
    ("language", "text", "words"),
    [
        ("fr", "L’homme qu'il n'aime jusqu’à", "l' homme qu' il n' aime jusqu' à"),
        ("fr", "aujourd'hui presqu'île d' d'", "aujourd'hui presqu'île d d"),
        ("fr-CA", "l'eau", "l' eau"),
        ("it", "l'anno dell’arte un'idea po'", "l' anno dell' arte un' idea po"),
        ("ca", "d'aigua l'home", "d' aigua l' home"),
        ("en", "l'homme d'Arcy", "l'homme d'arcy"),
        ("tr", "IŞIK İzmir ılık", "ışık izmir ılık"),
        ("az_AZ", "BAKI", "bakı"),
        ("he", 'צה"ל "הארץ" ג\'ירפה', "צה״ל הארץ ג'ירפה"),
        ("hi", "हिन्दी भाषा है।", "हिन्दी भाषा है"),
    ],
)
def test_languages_with_rules_of_their_own(language, text, words):
    apart = taking_apart(language)
    assert " ".join(word for token in text.split() for word in apart(token).words) == words


@pytest.mark.parametrize("language", [*UNCUT, "zh-Hans", "TH"])
def test_a_language_that_needs_a_dictionary_is_refused_by_name(language):
    with pytest.raises(InvalidValue, match=r"found with a dictionary.*--tokens space") as refused:
        check_tokens(language)
    assert UNCUT[language[:3].rstrip("-").lower()] in str(refused.value)


def test_other_names_are_refused_and_known_ones_are_not():
    for known in (AUTO, SPACE, WORDS, *LANGUAGES, "pt-BR"):
        check_tokens(known)
    for other in ("", "spaces", "xx", "english", "Words"):
        with pytest.raises(UnknownName, match=f"unknown kind of tokens '{other}'"):
            check_tokens(other)
    with pytest.raises(UnknownName, match="did you mean 'space'"):
        check_tokens("spaces")
    assert not set(LANGUAGES) & set(UNCUT)
