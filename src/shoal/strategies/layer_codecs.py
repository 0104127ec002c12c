"""Codecs by layer: which codec each parameter of a model gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from shoal.errors import InvalidValue
from shoal.factories import load
from shoal.registry import unknown
from shoal.tables.spec import Span

EVERY, EXACT = "*", "exact"
OF_FILE = ".py:"
Codecs = str | Mapping[str, str]


def with_codecs(spans: Sequence[Span], codecs: Codecs, server_codec: str = "") -> dict[str, Any]:
    """Return the codecs of a table and of its spans, as fields of `TableSpec`.

    Args:
        spans: the parameters. Those with the codec "exact" are vectors or small, and are neither
            pushed nor pulled with one unless they are named.
        codecs: one codec for all of them, or codecs by pattern of names ("conv?.*") or number
            ("0"). The first pattern counts that fits a parameter; one that fits none has no codec.
        server_codec: the codec of rows that are pulled.

    >>> spans = Span(0, "a.weight (64, 64)"), Span(4096, "a.bias (64,)", "exact")
    >>> [span.codec for span in with_codecs(spans, "int:8")["spans"]]
    ['int:8', 'exact']
    >>> [span.codec for span in with_codecs(spans, {"*.bias": "fp16", "*": "int:4"})["spans"]]
    ['int:4', 'fp16']
    """
    if isinstance(codecs, str):
        codecs = {EVERY: codecs} if codecs not in ("", "none") else {}
    if server_codec == "none":
        server_codec = ""
    usual, coded = codecs.get(EVERY, ""), bool(codecs or server_codec)
    chosen = [
        _codec_of(number, span, codecs) if codecs else span.codec
        for number, span in enumerate(spans)
    ]
    kept = tuple(
        msgspec.structs.replace(span, codec=codec if coded else "")
        for span, codec in zip(spans, chosen, strict=True)
    )
    return {"codec": "" if spans else usual, "server_codec": server_codec, "spans": kept}


def _codec_of(number: int, span: Span, codecs: Mapping[str, str]) -> str:
    for pattern, codec in codecs.items():
        if pattern == EVERY:
            return codec if span.codec != EXACT else EXACT
        if fits(pattern, number, span):
            return span.codec if codec == "none" and span.codec else codec
    return span.codec or "none"


def fits(pattern: str, number: int, span: Span) -> bool:
    """Return whether a pattern names a parameter, by its number or its name."""
    return pattern == str(number) or fnmatchcase(span.name.split(" ")[0], pattern)


def check_patterns(layers: Sequence[Sequence[Span]], codecs: Codecs) -> None:
    """Refuse patterns that fit no parameter of a model.

    Args:
        layers: the parameters of each buffer.
        codecs: the codecs by pattern.

    Raises:
        UnknownName: a pattern fits none.
        InvalidValue: the same, and the parameters have no names.
    """
    if isinstance(codecs, str) or not any(layers):
        return
    named = [(number, span) for spans in layers for number, span in enumerate(spans)]
    for pattern in codecs:
        if pattern != EVERY and not any(fits(pattern, *each) for each in named):
            names = [span.name.split(" ")[0] for _, span in named]
            if set(names) <= {"", "parameter"}:
                raise InvalidValue(
                    f"codecs: pattern {pattern!r} fits no parameter, because these have no names "
                    "here: give shoal.Optimizer the model as module=, or use their numbers"
                )
            raise unknown("parameter, as a pattern of codecs", pattern, names)


def code_in(codecs: object) -> tuple[str, ...]:
    """Return the files that codecs are from, such as of "mine.py:Mine:4".

    What is neither a codec nor a table of codecs, as a job file may have, is from none.

    >>> code_in({"*.weight": "mine.py:Mine:4+int:8", "*": "int:8"})
    ('mine.py',)
    """
    texts = [*codecs.values()] if isinstance(codecs, Mapping) else [codecs]
    parts = [part.partition(OF_FILE) for text in texts for part in str(text).split("+")]
    return tuple(dict.fromkeys(f"{file}.py" for file, of_file, _ in parts if of_file))


def registered(codecs: Codecs) -> Codecs:
    """Import the files that codecs are from, and return the codecs by their names.

    Raises:
        NotImportable: a file cannot be imported, or has no such class.
        InvalidValue: the class is no codec, or the file does not register it.
    """
    if not code_in(codecs):
        return codecs
    if isinstance(codecs, str):
        return "+".join(_registered(part) for part in codecs.split("+"))
    return {pattern: str(registered(text)) for pattern, text in codecs.items()}


def _registered(part: str) -> str:
    from shoal import codecs

    file, of_file, rest = part.partition(OF_FILE)
    if not of_file:
        return part
    name, colon, options = rest.partition(":")
    kind = load(f"{file}.py:{name}")
    if not isinstance(kind, type) or not issubclass(kind, codecs.Codec):
        raise InvalidValue(f"{file}.py:{name} is no codec: a class that inherits from Codec")
    if kind.name not in codecs.codecs or codecs.codecs[kind.name] is not kind:
        raise InvalidValue(
            f"{file}.py does not register its codec, so servers would not find it: add the line "
            f"codecs.add({name}.name, {name}) behind the class"
        )
    return f"{kind.name}{colon}{options}"


def check_codecs(codecs: Codecs, server_codec: str = "", summed: bool = False) -> None:
    """Refuse codecs that do not exist, and those that are not for pushes or pulls.

    Args:
        codecs: the codecs of what is pushed, or of what is summed over the workers.
        server_codec: the codec of what is pulled.
        summed: whether there are no servers.

    Raises:
        UnknownName, InvalidValue: as `codec_of`; or the codec for pulls leaves something out.
    """
    texts = {codecs} if isinstance(codecs, str) else {*codecs.values()}
    if not (texts | {server_codec}) - {"", "none"}:
        return
    from shoal.codecs import codec_of, pulled_codec_of, summed_codec_of  # compile loops: seconds

    for each in texts - {"", "none"}:
        (summed_codec_of if summed else codec_of)(each)
    if server_codec not in ("", "none"):
        pulled_codec_of(server_codec)
