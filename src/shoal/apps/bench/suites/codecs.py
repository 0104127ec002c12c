"""`shoal bench codecs`: 64 MiB of float32 encoded and decoded by one thread, as 64 fragments.

    encode   with the look for NaNs, and for biased codecs with their residual
    decode   with the look for scales and codes that no encoder writes

The ceiling is a copy of the values; the peer is the same encoding in operations of torch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
from torch import Tensor

from shoal.apps.bench.rows import Row, Side, beside, by_turns, gigabytes, throughput
from shoal.codecs import Codec, codec_of, residual_of
from shoal.codecs.kernels import BLOCK
from shoal.storage.run_folder import RunFolder
from shoal.tables.spec import FRAGMENT_BYTES

COUNT_OF_VALUES = 16 << 20
FRAGMENT = FRAGMENT_BYTES // 4
CODECS = (
    "fp16",
    "bf16",
    "fp8",
    "int:8",
    "int:4",
    "natural:8",
    "natural:4",
    "qsgd:4",
    "ternary",
    "onebit",
    "sign",
    "topk:0.01",
    "topk:0.001",
    "randomk:0.01",
    "topk:0.01+int:8",
)
COUNT = 2 * len(CODECS)
ROUNDS = 9

Peer = Callable[[Tensor, Tensor], object]


def rows(folder: RunFolder, rounds: int) -> Iterator[Row]:
    values = np.random.default_rng(0).standard_normal(COUNT_OF_VALUES, np.float32)
    copy = np.zeros_like(values)
    cores = os.sched_getaffinity(0)
    for text in CODECS:
        codec = codec_of(text)
        residual = residual_of(len(values)) if codec.biased else None
        size = codec.nbytes(FRAGMENT)
        data = np.zeros(size * (len(values) // FRAGMENT), np.uint8)
        sides: list[Side] = [
            (partial(_encode, codec, values, data, residual), cores),
            (partial(_decode, codec, data, copy), cores),
            (partial(np.copyto, copy, values), cores),
        ]
        encoded, decoded, copied = by_turns(sides, 1, rounds, warm_up=2)
        row = throughput(f"encode {text}", values.nbytes, encoded, copied)
        if peer := PEERS.get(text):
            given = torch.from_numpy(values), torch.zeros(len(values))
            [theirs] = by_turns([(partial(peer, *given), cores)], 1, min(rounds, 5), warm_up=1)
            row = beside(row, "torch operations", gigabytes(values.nbytes, theirs))
        yield row
        yield throughput(f"decode {text}", values.nbytes, decoded, copied)


def _encode(codec: Codec, values: np.ndarray, data: np.ndarray, left: np.ndarray | None) -> None:
    """Encode values by fragment, as pushes are."""
    size = codec.nbytes(FRAGMENT)
    for number in range(len(values) // FRAGMENT):
        some = slice(number * FRAGMENT, (number + 1) * FRAGMENT)
        into = data[number * size : (number + 1) * size]
        residual = None if left is None else left[some]
        codec.encode(values[some], into, residual=residual, key=1, first=some.start)


def _decode(codec: Codec, data: np.ndarray, into: np.ndarray) -> None:
    size = codec.nbytes(FRAGMENT)
    for number in range(len(into) // FRAGMENT):
        some = into[number * FRAGMENT : (number + 1) * FRAGMENT]
        codec.decode(data[number * size : (number + 1) * size], some)


# ---------------------------------------------------------------------------- in torch operations


def _looked_at(x: Tensor) -> Tensor:
    """Return values in blocks, which are finite."""
    assert torch.isfinite(x.sum())
    return x.view(-1, BLOCK)


def _int8(values: Tensor, residual: Tensor) -> object:
    x = _looked_at(values + residual)
    step = x.abs().amax(1, keepdim=True) / 127
    codes = (x / step).round_()
    torch.sub(x, codes * step, out=residual.view_as(x))
    return step, codes.to(torch.int8)


def _natural8(values: Tensor, residual: Tensor) -> object:
    x = _looked_at(values)
    high = x.abs().amax(1, keepdim=True)
    chance = torch.randint(0, 1 << 23, x.shape, dtype=torch.int32)
    codes = ((x.abs().view(torch.int32) + chance) >> 23).to(torch.uint8)
    return high, codes | (x < 0).to(torch.uint8) << 7


def _qsgd4(values: Tensor, residual: Tensor) -> object:
    x = _looked_at(values)
    step = x.abs().amax(1, keepdim=True) / 7
    codes = ((x / step).add_(torch.rand(x.shape)).sub_(0.5).round_() + 7).to(torch.uint8)
    return step, codes[:, ::2] | codes[:, 1::2] << 4


def _onebit(values: Tensor, residual: Tensor) -> object:
    x = _looked_at(values + residual)
    above = x >= 0
    high = (x * above).sum(1, keepdim=True) / above.sum(1, keepdim=True)
    low = (x * ~above).sum(1, keepdim=True) / (~above).sum(1, keepdim=True)
    torch.sub(x, torch.where(above, high, low), out=residual.view_as(x))
    return high, low, _packed(above.to(torch.uint8), 1)


def _ternary(values: Tensor, residual: Tensor) -> object:
    x = _looked_at(values)
    step = x.abs().amax(1, keepdim=True)
    chosen = x.abs() / step > torch.rand(x.shape)
    return step, _packed(chosen * (1 + (x < 0).to(torch.uint8)), 2)


def _packed(codes: Tensor, bits: int) -> Tensor:
    each = 8 // bits
    codes = codes.view(len(codes), -1, each)
    packed = codes[:, :, 0].clone()
    for at in range(1, each):
        packed |= codes[:, :, at] << (at * bits)
    return packed


PEERS: dict[str, Peer] = {
    "int:8": _int8,
    "natural:8": _natural8,
    "qsgd:4": _qsgd4,
    "onebit": _onebit,
    "ternary": _ternary,
}
