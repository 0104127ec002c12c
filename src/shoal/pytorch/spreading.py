"""Spreading: sends one worker's tensors, numbers and lists, such as an optimizer's state, to all.

Two allreduces, to which the others add zeros, carry the number of bytes and then the bytes. These
are a safetensors file of the tensors, whose metadata says where each is. Nothing is unpickled.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import msgspec
import torch
from safetensors.torch import load, save
from torch import Tensor

from shoal.collective.base import AllReduce
from shoal.errors import InvalidValue

TENSOR, DICT, LIST, TUPLE = "tensor", "dict", "list", "tuple"
PLAIN = (bool, int, float, str, type(None))


def spread(value: Any, writes: bool) -> Generator[Any, Any, Any]:
    """Return a copy of the value of the worker that `writes`; all workers take part.

    Raises:
        InvalidValue: a part of the value is no tensor, plain value, list, tuple or dict.
    """
    data = packed(value) if writes else b""
    size = torch.tensor([len(data)], dtype=torch.int64)
    yield AllReduce(size)
    content = torch.zeros(int(size.item()), dtype=torch.uint8)
    if writes:
        content.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    yield AllReduce(content)
    return unpacked(content.numpy().tobytes())


def packed(value: Any) -> bytes:
    """Return a value as bytes."""
    tensors: dict[str, Tensor] = {"": torch.zeros(0)}  # a file has one at least
    shape = msgspec.json.encode(_without_tensors(value, tensors)).decode()
    return save(tensors, {"shape": shape})


def unpacked(data: bytes) -> Any:
    """Return the value that `packed` has turned into these bytes."""
    length = int.from_bytes(data[:8], "little")  # of the header, which comes first
    told = msgspec.json.decode(data[8 : 8 + length])["__metadata__"]
    return _with_tensors(msgspec.json.decode(told["shape"]), load(data))


def _without_tensors(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        tensors[str(len(tensors))] = value.detach().clone().contiguous()
        return [TENSOR, str(len(tensors) - 1)]
    if isinstance(value, dict):
        return [DICT, [[key, _without_tensors(each, tensors)] for key, each in value.items()]]
    if isinstance(value, list | tuple):
        kind = LIST if isinstance(value, list) else TUPLE
        return [kind, [_without_tensors(each, tensors) for each in value]]
    if isinstance(value, PLAIN):
        return ["", value]
    raise InvalidValue(f"a {type(value).__name__} cannot be sent to other workers: {value!r:.100}")


def _with_tensors(shape: Any, tensors: dict[str, Tensor]) -> Any:
    kind, value = shape
    if kind == TENSOR:
        return tensors[value]
    if kind == DICT:
        return {key: _with_tensors(each, tensors) for key, each in value}
    if kind in (LIST, TUPLE):
        found = [_with_tensors(each, tensors) for each in value]
        return found if kind == LIST else tuple(found)
    return value
