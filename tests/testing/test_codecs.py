"""The laws of codecs find what is wrong with others."""

import numpy as np
import pytest

from shoal.codecs.grids import QSGD, Int
from shoal.codecs.signs import Ternary
from shoal.testing import codecs as suite


class OneKey(QSGD, frozen=True):
    name = "one key for all"

    def _encode(self, values, into):
        return super()._encode(values._replace(key=np.uint64(0), first=np.uint64(0)), into)


class TowardsZero(QSGD, frozen=True):
    name = "rounds towards zero"

    def _encode(self, values, into):
        return super()._encode(values._replace(values=values.values * np.float32(0.99)), into)


class Forgets(Int, frozen=True):
    name = "keeps no residual"

    def _encode(self, values, into):
        return super()._encode(values._replace(residual=values.residual[:0]), into)


class NoGain(Int, frozen=True):
    name = "takes the residual as it is"

    def _encode(self, values, into):
        return super()._encode(values._replace(gain=np.float32(1)), into)


class Trusts(Ternary, frozen=True):
    name = "looks at no scale"

    def _decode(self, data, into):
        for start in range(0, len(into), self.block):
            into[start : start + self.block] = data[start // 4 : start // 4 + 4].view(np.float32)
        return -1


class Blind(Int, frozen=True):
    name = "sees no NaN"

    def _encode(self, values, into):
        return super()._encode(values._replace(values=np.nan_to_num(values.values)), into)


class WritesOn(Int, frozen=True):
    name = "writes beyond the values"

    def _decode(self, data, into):
        if into.base is not None and into.base.nbytes > into.nbytes:
            into.base[-1] = 1
        return super()._decode(data, into)


@pytest.mark.parametrize(
    ("codec", "law"),
    [
        (OneKey(), suite.values_of_one_key_share_no_random_bits),
        (OneKey(), suite.the_mean_is_right_unless_it_is_biased),
        (TowardsZero(), suite.the_mean_is_right_unless_it_is_biased),
        (Forgets(), suite.nothing_is_lost_with_a_residual),
        (Forgets(), suite.what_did_not_count_is_given_back),
        (NoGain(), suite.nothing_is_lost_with_a_residual),
        (Trusts(), suite.damaged_bytes_harm_nothing),
        (Blind(), suite.what_is_not_finite_is_refused),
        (WritesOn(), suite.damaged_bytes_harm_nothing),
    ],
    ids=lambda each: each.name if hasattr(each, "name") else each.__name__,
)
def test_a_wrong_codec_is_found(codec, law):
    with pytest.raises(AssertionError):
        law(codec)
