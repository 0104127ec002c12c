"""How a text says which codec."""

import pytest

from shoal.codecs import codec_of, codecs
from shoal.errors import InvalidValue, UnknownName


@pytest.mark.parametrize(
    "text",
    [
        "int:8",
        "int:4",
        "int:8:scale=power:block=32",
        "qsgd:4",
        "qsgd:4:norm=l2",
        "ternary:fit=3",
        "topk:0.01+int:8",
    ],
)
def test_a_codec_as_text_is_the_text_that_makes_it(text):
    assert str(codec_of(text)) == text
    assert codec_of(str(codec_of(text))) == codec_of(text)


def test_every_codec_has_a_summary_and_a_source():
    assert len([*codecs]) == 17
    assert all(codecs[name].summary and codecs[name].source for name in codecs)


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("qgsd:4", UnknownName, "unknown codec 'qgsd'.*did you mean 'qsgd'"),
        ("", UnknownName, "unknown codec ''"),
        ("qsgd:4:nrom=l2", UnknownName, "option of codec 'qsgd' 'nrom'.*did you mean 'norm'"),
        ("int:3", InvalidValue, "codec 'int:3', bits: invalid enum value 3"),
        ("levels:1,2", InvalidValue, "rising numbers from 0.*not '1,2'"),
        ("levels:0,2,1", InvalidValue, "rising numbers from 0"),
        ("levels:0,x", InvalidValue, "rising numbers from 0"),
        ("powersgd:2+int:8", InvalidValue, "powersgd stands alone"),
        ("qsgd:9", InvalidValue, "bits: expected `int` <= 8"),
        ("qsgd:1", InvalidValue, "bits: expected `int` >= 2"),
        ("qsgd:four", InvalidValue, "bits: expected `int`, got `str`"),
        ("qsgd:4:norm=l1", InvalidValue, "norm: invalid enum value 'l1'"),
        ("int:8:block=12", InvalidValue, "block: expected `int` that's a multiple of 8"),
        ("int:8:4", InvalidValue, "'4' has no name"),
        ("fp16:2", InvalidValue, "'2' has no name"),
        ("int:8:bits=4", InvalidValue, "has bits twice"),
        ("int:", InvalidValue, "bits: "),
        ("topk:0", InvalidValue, "share: expected `float` > 0"),
        ("topk:1.5", InvalidValue, "share: expected `float` <= 1"),
        ("int:8+topk:0.1", InvalidValue, "the codec before . sends some of the values"),
        ("topk:0.1+topk:0.1", InvalidValue, "the one behind it encodes these"),
        ("topk:0.1+int:8+int:4", InvalidValue, "sends some of the values"),
        ("topk:0.1+", UnknownName, "unknown codec ''"),
    ],
)
def test_what_is_no_codec_is_refused(text, kind, message):
    with pytest.raises(kind, match=message):
        codec_of(text)
