"""Watches: every write to a parameter's memory is found, also those that torch does not count."""

import copy
import gc
import pickle

import pytest
import torch
from torch import nn

from shoal.pytorch.loop import watching
from shoal.pytorch.loop.watching import SMALL, Watch, noted

SIZES = (1, 7, SMALL - 1, SMALL, SMALL + 300)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
def test_a_note_changes_with_any_element_and_with_their_order(size, dtype):
    values = torch.randn(size).to(dtype)
    before = noted(values)
    assert torch.equal(before, noted(values.clone()))
    for at in {0, size // 2, size - 1}:
        other = values.clone()
        other[at] += 1
        assert not torch.equal(before, noted(other))
    if size > 1:
        for one, two in ((0, size - 1), (0, 1)):
            swapped = values.clone()
            swapped[one], swapped[two] = values[two], values[one]
            assert not torch.equal(before, noted(swapped))


@pytest.mark.parametrize(
    "write",
    [
        lambda p: p.data.clamp_(-0.01, 0.01),
        lambda p: p.data.add_(1.0),
        lambda p: p.detach().numpy().fill(2.0),
        lambda p: p.detach().view(-1)[:1].mul_(3.0),
    ],
    ids=["clamp", "add", "numpy", "view"],
)
@pytest.mark.parametrize("size", [3, SMALL + 5])
def test_a_write_through_lent_memory_is_found(write, size):
    parameters = [nn.Parameter(torch.ones(size)), nn.Parameter(torch.ones(size))]
    watch = Watch(parameters)
    write(parameters[1])
    assert watch.written() == {1}
    watch.begin()
    assert watch.written() == set()


def test_reading_is_no_write_and_nans_are_equal_to_themselves():
    parameter = nn.Parameter(torch.tensor([float("nan"), 1.0]))
    watch = Watch([parameter])
    parameter.data.sum()
    parameter.detach().clone()
    assert (watch.written(), watch.replaced) == (set(), set())


def test_replaced_memory_is_noted_and_other_parameters_are_as_before():
    one, other = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    watch = Watch([one])
    other.data = torch.zeros(2)
    other.data.add_(1)
    assert watch.replaced == set()
    one.data = torch.zeros(2)
    assert watch.replaced == {0}
    assert one.tolist() == [0, 0]


def test_each_watch_of_a_parameter_is_told():
    parameter = nn.Parameter(torch.ones(2))
    first, second = Watch([parameter]), Watch([nn.Parameter(torch.ones(1)), parameter])
    parameter.data.mul_(2)
    assert (first.written(), second.written()) == ({0}, {1})
    del first
    gc.collect()
    parameter.data.mul_(2)
    assert second.written() == {1}


def test_a_watched_parameter_is_torchs_and_its_copies_are_not_watched():
    parameter = nn.Parameter(torch.ones(2))
    watch = Watch([parameter])
    for twin in (copy.deepcopy(parameter), pickle.loads(pickle.dumps(parameter))):
        assert type(twin) is type(parameter) is nn.Parameter
        watch.begin()
        twin.data.mul_(2)
        twin.data = torch.zeros(2)
        assert (watch.written(), watch.replaced) == (set(), set())
    assert nn.Parameter(parameter).data_ptr() == parameter.data_ptr()


def test_parameters_that_are_no_more_are_forgotten():
    before = len(watching._watches)
    parameters = [nn.Parameter(torch.ones(2)) for _ in range(50)]
    watch = Watch(parameters)
    assert len(watching._watches) == before + 50
    del watch, parameters
    gc.collect()
    assert len(watching._watches) == before
