"""Codecs: how float32 values become fewer bytes, and values again. Pure: arrays in, arrays out.

A codec is immutable and has no state: what an encoding leaves out is in the caller's residual
(`Codec.encode`), and random bits come from the caller's key. Nothing here knows of tables, layers
or messages.

>>> import numpy as np
>>> from shoal.codecs import codec_of
>>> codec = codec_of("int:8")
>>> data = np.empty(codec.nbytes(3), np.uint8)
>>> codec.encode(np.array([1.0, 0.5, -0.25], np.float32), data)
7
>>> values = np.empty(3, np.float32)
>>> codec.decode(data, values)
>>> values.round(2).tolist()
[1.0, 0.5, -0.25]
"""

from shoal.codecs.base import FINE, Codec, Given, NamedCodec, residual_of
from shoal.codecs.named import codec_of, codecs, pulled_codec_of, summed_codec_of

__all__ = [
    "FINE",
    "Codec",
    "Given",
    "NamedCodec",
    "codec_of",
    "codecs",
    "pulled_codec_of",
    "residual_of",
    "summed_codec_of",
]
