"""Casts are those of numpy and torch."""

import numpy as np
import torch

from shoal.codecs import codec_of
from shoal.testing.codecs import decoded, encoded


def many():
    rng = np.random.default_rng(3)
    bits = rng.integers(0, 1 << 32, 200_000, dtype=np.uint64).astype(np.uint32)
    values = bits.view(np.float32)
    return values[np.isfinite(values)]


def test_fp16_rounds_as_numpy():
    values = many()
    scaled = np.concatenate(
        [values[np.abs(values) <= 65504], np.float32([65504, 65519, 6e-8, 3e-8])]
    )
    data = encoded(codec_of("fp16"), scaled)
    assert np.array_equal(data.view(np.uint16), scaled.astype(np.float16).view(np.uint16))
    into = decoded(codec_of("fp16"), data, len(scaled))
    assert np.array_equal(into, scaled.astype(np.float16).astype(np.float32))


def test_bf16_rounds_as_torch():
    codec = codec_of("bf16")
    values = many()
    values = values[np.abs(values) <= codec.largest]
    data = encoded(codec, values)
    wanted = torch.from_numpy(values).bfloat16()
    assert np.array_equal(data.view(np.int16), wanted.view(torch.int16).numpy())
    assert np.array_equal(decoded(codec, data, len(values)), wanted.float().numpy())
