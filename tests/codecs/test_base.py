"""Every codec keeps the laws of codecs."""

import numpy as np
import pytest

from shoal.codecs import Codec, codec_of, codecs, residual_of
from shoal.testing.codecs import CODEC_LAWS

TEXTS = [
    *("levels:0,1", "levels:0,1,3,10:round=nearest", "levels:0,0.1,0.3,0.7,1:block=64"),
    "int:8+zstd",
    "onebit+zlib:9",
    "topk:0.1+int:8+lz4",
    "qsgd:4+lz4",
    *(name for name in codecs if issubclass(codecs[name], Codec)),
    *("int:4", "int:8:scale=power:block=32", "int:4:scale=power"),
    *(f"qsgd:{bits}" for bits in (2, 3, 5, 8)),
    *("qsgd:4:norm=l2", "qsgd:2:norm=l2:block=4096"),
    *("natural:2", "natural:4", "natural:7:block=64"),
    *("topk:0.3", "topk:1", "randomk:0.2", "randomk:1"),
    *("topk:0.2+int:8", "randomk:0.5+onebit", "topk:0.1+qsgd:4", "topk:0.5+fp16"),
    *("fp8:e5m2", "fp8:scale=power:block=32", "fp4:scale=power:block=32"),
    *("ternary:fit=3", "sign:scale=mean", "onebit:block=8"),
]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("law", CODEC_LAWS, ids=lambda law: law.__name__)
def test_law(law, text):
    law(codec_of(text))


@pytest.mark.parametrize("count", [1, 1000, 1 << 20])
def test_a_residual_begins_in_the_middle_of_a_page(count):
    residual = residual_of(count)
    assert residual.dtype == np.float32
    assert residual.shape == (count,)
    assert not residual.any()
    assert residual.ctypes.data % 4096 == 2048
