"""A codec of one's own: every value as a multiple of 2**-bits, in two bytes.

    shoal train digits --codec examples/own_codec.py:FixedPoint:10

`shoal.testing.codecs.CODEC_LAWS` checks it: `for law in CODEC_LAWS: law(FixedPoint(bits=10))`.
"""

import numpy as np

from shoal.codecs import FINE, Codec, codecs


class FixedPoint(Codec, frozen=True):
    name, argument = "fixed", "bits"  # fixed:10
    summary, source = "fixed point, 16 bits a value", "none"

    bits: int = 8
    biased = True  # rounding to the nearest needs a residual

    @property
    def largest(self):
        return 32767 / 2**self.bits

    def nbytes(self, count):
        return 2 * count

    def _encode(self, given, into):
        x = given.values + given.gain * given.residual if len(given.residual) else given.values
        if not (np.abs(x) <= self.largest).all():
            return 0  # the first element of a block that cannot be encoded; the caller tells more
        whole = np.rint(x * 2.0**self.bits).astype("<i2")
        into[:] = whole.view(np.uint8)
        if len(given.residual):
            given.residual[:] = x - whole / 2.0**self.bits
        return FINE

    def _decode(self, data, into):
        into[:] = data.view("<i2") / 2.0**self.bits
        return FINE


codecs.add(FixedPoint.name, FixedPoint)  # so that servers find it
