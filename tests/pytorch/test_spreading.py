import pytest
import torch

from shoal.collective.base import AllReduce
from shoal.errors import InvalidValue
from shoal.pytorch.spreading import packed, spread, unpacked

STATE = {
    0: {"step": torch.tensor(3.0), "exp_avg": torch.arange(6.0).view(2, 3).t(), "buffer": None},
    "1": {"directions": [torch.ones(2, dtype=torch.bfloat16)], "loss": 0.1, "betas": (0.9, True)},
    2: {},
}


def same(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other) and one.dtype == other.dtype
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and all(map(same, one, other))
    return one == other and type(one) is type(other)


@pytest.mark.parametrize("value", [STATE, {}, None, [[], ()]], ids=str)
def test_a_value_comes_back_as_it_was(value):
    assert same(unpacked(packed(value)), value)


def test_all_workers_get_the_writers_value():
    programs = [spread(STATE if rank == 1 else "mine", rank == 1) for rank in range(3)]
    results, asked = {}, [next(each) for each in programs]
    while len(results) < len(programs):
        assert all(isinstance(each, AllReduce) for each in asked)
        total = sum(each.tensor for each in asked)
        for each in asked:
            each.tensor.copy_(total)
        asked = []
        for rank, program in enumerate(programs):
            try:
                asked.append(program.send(None))
            except StopIteration as end:
                results[rank] = end.value
    assert all(same(each, STATE) for each in results.values())


def test_what_cannot_be_sent_is_refused_by_name():
    with pytest.raises(InvalidValue, match="a function cannot be sent"):
        packed({"hook": same})
