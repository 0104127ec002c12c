"""Tensors in memory that servers of this host read in place."""

import pytest
import torch

from shoal.errors import InvalidValue
from shoal.transport.arena import Arena, arena
from shoal.transport.shared import SHARED_BYTES
from shoal.transport.tensors import shared_zeros


def lies_in_arena(tensor):
    return arena.find(tensor.view(-1).view(torch.uint8).numpy().data) is not None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("size", [(40_000,), (200, 300), (1, 50_000, 1)])
def test_a_tensor_is_zero_and_in_the_arena(size, dtype):
    tensor = shared_zeros(*size, dtype=dtype)
    assert (tuple(tensor.shape), tensor.dtype, int(tensor.count_nonzero())) == (size, dtype, 0)
    assert lies_in_arena(tensor)
    assert lies_in_arena(tensor.view(-1)[7:])
    assert tensor.fill_(1).sum() == tensor.numel()
    assert not lies_in_arena(tensor.clone())


@pytest.mark.parametrize("size", [(), (0,), (3, 0), (SHARED_BYTES // 4 - 1,)])
def test_a_small_one_is_ordinary_memory(size):
    assert shared_zeros(*size).shape == torch.zeros(size).shape
    assert shared_zeros(*size).equal(torch.zeros(size))
    assert not lies_in_arena(torch.cat([shared_zeros(*size).view(-1), torch.zeros(1)]))


def test_it_is_ordinary_memory_where_there_is_none_to_share(monkeypatch):
    def full(self, nbytes):
        raise OSError("the arena is full")

    monkeypatch.setattr(Arena, "zeros", full)
    tensor = shared_zeros(50_000)
    assert tensor.equal(torch.zeros(50_000))
    assert not lies_in_arena(tensor)


def test_a_negative_size_is_refused():
    with pytest.raises(InvalidValue, match="-1"):
        shared_zeros(3, -1)


def test_a_model_in_it_is_saved_and_copied_as_any_other(tmp_path):
    tensor = shared_zeros(50_000)
    tensor.copy_(torch.arange(50_000))
    torch.save(tensor, tmp_path / "t")
    assert torch.load(tmp_path / "t").equal(tensor)
