"""The codecs by name, and how a text says which: NAME[:VALUE][:OPTION=VALUE]...[+CODEC]"""

from __future__ import annotations

import msgspec

from shoal.codecs.base import Codec, NamedCodec
from shoal.codecs.casts import BF16, FP16
from shoal.codecs.floats import FP4, FP8
from shoal.codecs.grids import QSGD, Int
from shoal.codecs.levels import Levels
from shoal.codecs.lossless import LZ4, Lossless, Packed, ZLib, ZStd
from shoal.codecs.natural import Natural
from shoal.codecs.power import PowerSGD
from shoal.codecs.signs import OneBit, Sign, Ternary
from shoal.codecs.sparse import Chain, RandomK, Sparse, TopK
from shoal.errors import InvalidValue
from shoal.registry import Registry, unknown

DELTA = "delta:"  # before the codec of differences to the rows that workers have

codecs: Registry[type[NamedCodec]] = Registry("codec")
_ALL: tuple[type[NamedCodec], ...] = (
    *(FP16, BF16, FP8, FP4, Int, QSGD, Natural, Ternary, OneBit, Sign, TopK, RandomK),
    *(Levels, PowerSGD, ZLib, LZ4, ZStd),
)
for _codec in _ALL:
    codecs.add(_codec.name, _codec)


def codec_of(text: str) -> Codec:
    """Return the codec that a text describes, for values that are pushed to servers.

    Raises:
        UnknownName: no such codec, or it has no such option.
        InvalidValue: a value of the wrong type, or out of its range; or the codec is for sums over
            the workers only.

    >>> codec_of("int:4:scale=power")
    Int(bits=4, scale='power', block=512, after=0)
    >>> str(codec_of("int:bits=4:block=64")), str(codec_of("int"))
    ('int:4:block=64', 'int:8')
    """
    if text.startswith(DELTA):
        raise InvalidValue(
            f"codec {text!r} is for rows that workers pull (server_codec): servers know what all "
            "workers have. What a worker pushes is a change already"
        )
    codec = _named(text)
    if not isinstance(codec, Codec):
        raise InvalidValue(
            f"codec {text!r} is for sums over the workers: strategy 'allreduce', those with set "
            "exchange=allreduce, and shoal.ddp_hook. Servers add up what is pushed, one by one"
        )
    return codec


def summed_codec_of(text: str) -> NamedCodec:
    """Return the codec that a text describes, for values that are summed over the workers.

    Raises:
        UnknownName: as `codec_of`.
        InvalidValue: as `codec_of`; or its number of bytes is another on each worker.

    >>> summed_codec_of("powersgd:4")
    PowerSGD(rank=4, after=0)
    """
    codec = _named(text)
    if isinstance(codec, Codec) and codec.varies:
        raise InvalidValue(
            f"codec {text!r} makes another number of bytes on each worker, and what they gather "
            "has one size: leave out the lossless stage"
        )
    return codec


def _named(text: str) -> NamedCodec:
    before, plus, behind = text.rpartition("+")
    if plus:
        first, second = _named(before), _named(behind)
        if not isinstance(first, Codec) or not isinstance(second, Codec):
            raise InvalidValue(f"codec {text!r}: {PowerSGD.name} stands alone")
        if isinstance(second, Lossless):
            if first.varies:
                raise InvalidValue(f"codec {text!r}: one lossless stage is enough")
            return Packed(first=first, second=second)
        if not isinstance(first, Sparse) or isinstance(second, Sparse | Chain) or first.varies:
            raise InvalidValue(
                f"codec {text!r}: the codec before + sends some of the values ("
                f"{TopK.name} or {RandomK.name}), and the one behind it encodes these; or the last "
                "one is lossless"
            )
        return Chain(first, second)
    name, *given = text.split(":")
    kind = codecs[name]
    options: dict[str, str] = {}
    for number, each in enumerate(given):
        option, equals, value = each.partition("=")
        if not equals:
            option, value = kind.argument, each
            if number or not option:
                raise InvalidValue(
                    f"codec {text!r}: {each!r} has no name; a codec is NAME[:VALUE][:OPTION=VALUE]"
                )
        if option not in kind.__struct_fields__:
            raise unknown(f"option of codec {name!r}", option, kind.__struct_fields__)
        if option in options:
            raise InvalidValue(f"codec {text!r} has {option} twice")
        options[option] = value
    try:
        return msgspec.convert(options, kind, strict=False)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$.")
        raise InvalidValue(
            f"codec {text!r}, {where.rstrip('`') or 'options'}: {what[0].lower()}{what[1:]}"
        ) from None


def pulled_codec_of(text: str) -> Codec:
    """Return the codec that a text describes, for rows that are pulled: there is no residual.

    Behind "delta:" stands the codec of differences, which may leave out what comes later.

    Raises:
        UnknownName: as `codec_of`.
        InvalidValue: as `codec_of`; or what the codec leaves out would have to come later.

    >>> pulled_codec_of("delta:topk:0.01")
    TopK(share=0.01, after=0)
    """
    codec = codec_of(text.removeprefix(DELTA))
    if codec.varies:
        raise InvalidValue(
            f"codec {text!r} makes a number of bytes that is not known before, as that of rows "
            "that are pulled has to be: leave out the lossless stage"
        )
    if not codec.stateless and not text.startswith(DELTA):
        known = ", ".join(name for name in codecs if codecs[name].stateless)
        raise InvalidValue(
            f"codec {text!r} leaves out what has to come later, and rows that are pulled have no "
            f"residual: for these there are {known}, or {DELTA}{text} under bsp"
        )
    return codec
