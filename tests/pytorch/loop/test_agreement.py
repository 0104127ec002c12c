"""Agreement: two workers' descriptions, their first difference, and that all learn of it."""

import pytest
import torch
from torch import nn

from shoal.collective.base import AllReduce
from shoal.errors import InvalidValue
from shoal.pytorch.flat_parameters import FlatParams
from shoal.pytorch.loop.agreement import agree, check_tables, described, difference


def told(width=3, lr=0.1, kind=torch.optim.SGD, order=1, strategy="allreduce", dtype=None, **more):
    module = nn.Sequential(nn.Linear(2, width, dtype=dtype), nn.Linear(width, 1, dtype=dtype))
    parameters = list(module.parameters())[::order]
    return described(kind(parameters, lr=lr, **more), FlatParams(parameters), strategy, {})


def run(descriptions):
    """Run a program for each worker; by worker, its error."""
    ranks = list(range(0, 2 * len(descriptions), 2))
    programs = {r: agree(each, r, ranks) for r, each in zip(ranks, descriptions, strict=True)}
    errors, asked = {}, {}
    while programs:
        for rank, program in list(programs.items()):
            try:
                asked[rank] = program.send(None)
            except StopIteration:
                errors[rank] = None
            except InvalidValue as error:
                errors[rank] = error.message
            if rank in errors:
                del programs[rank]
        if programs:
            assert len(programs) == len(ranks), "only some of the workers take part"
            assert all(isinstance(each, AllReduce) for each in asked.values())
            total = sum(each.tensor for each in asked.values())
            for each in asked.values():
                each.tensor.copy_(total)
    return list(errors.values())


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_workers_with_the_same_agree(workers):
    assert run([told()] * workers) == [None] * workers


@pytest.mark.parametrize(
    ("other", "first"),
    [
        ({"width": 5}, r"place 0 of float32 is parameter 0 \(3, 2\) on worker 0, and .*\(5, 2\)"),
        ({"lr": 0.5}, "lr of group 0 is 0.1 on worker 0, and 0.5 on worker 2"),
        ({"momentum": 0.9}, "momentum of group 0 is 0 on worker 0, and 0.9 on worker 2"),
        ({"kind": torch.optim.Adam}, "the optimizer is SGD on worker 0, and Adam on worker 2"),
        ({"strategy": "p2p"}, "strategy is allreduce {} on worker 0, and p2p {} on worker 2"),
        ({"order": -1}, "place 0 of float32 is"),
        ({"dtype": torch.float64}, "place 0 of float32 .* and place 0 of float64 "),
    ],
    ids=["width", "lr", "momentum", "class", "strategy", "order", "dtype"],
)
def test_all_workers_are_told_the_first_difference(other, first):
    errors = run([told(), told(**other), told()])
    assert len(set(errors)) == 1
    with pytest.raises(InvalidValue, match=f"workers 0 and 2 do not train the same: {first}"):
        raise InvalidValue(errors[0])


def test_what_one_worker_lacks_is_named():
    one = [("a", "1"), ("b", "2")]
    assert difference(one, one[:1], 0, 1) == "b is 2 on worker 0, and missing on worker 1"
    assert difference(one[:1], one, 0, 1) == "b is missing on worker 0, and 2 on worker 1"


def test_tables_of_other_workers_are_named():
    check_tables(["params.float32"], ["params.float32"])
    check_tables(["params.float32"], [])
    with pytest.raises(InvalidValue, match=r"params.float32, and another one params.float64"):
        check_tables(["params.float32"], ["params.float64", "params.float32"])
