"""Every method by its name, and the laws of `AccessMethod` that all of them keep."""

from itertools import pairwise

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from shoal.errors import InvalidValue, UnknownName
from shoal.tables.dense.gradient_method import BLOCK, SMALL
from shoal.tables.dense.methods import BUILT_IN, access_methods, make
from shoal.tables.dense.torch_methods import TorchMethod
from shoal.tables.spec import Access
from tests.tables.steps import new_slots

FULL = {
    "sum": {},
    "assign": {},
    "sgd": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    "adagrad": {"weight_decay": 0.1, "initial_accumulator_value": 1.0},
    "rmsprop": {"momentum": 0.9, "centered": True, "weight_decay": 0.1},
    "adadelta": {"weight_decay": 0.1},
    "adam": {"amsgrad": True, "weight_decay": 0.1},
    "nadam": {"weight_decay": 0.1, "decoupled": True},
    "radam": {"weight_decay": 0.1},
    "adamax": {"weight_decay": 0.1},
    "asgd": {"weight_decay": 0.1},
    "rprop": {"maximize": True},
}


class Allocated(TorchDispatchMode):
    """Counts the bytes of every tensor that an operation returns and was not given."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = (*args, *(kwargs or {}).values())
        known = {each.untyped_storage().data_ptr() for each in given if torch.is_tensor(each)}
        result = func(*args, **(kwargs or {}))
        for each in result if isinstance(result, tuple | list) else [result]:
            if torch.is_tensor(each) and each.untyped_storage().data_ptr() not in known:
                self.largest = max(self.largest, each.untyped_storage().nbytes())
        return result


# --- names -----------------------------------------------------------------------------------


def test_every_access_method_is_covered_by_these_tests():
    assert sorted(FULL) == sorted(BUILT_IN)


def test_every_access_method_is_registered_under_its_own_name():
    assert all(access_methods[name].name == name for name in access_methods)
    assert all(type(make(Access(name))) is access_methods[name] for name in access_methods)


def test_an_unknown_access_method_is_refused():
    with pytest.raises(UnknownName, match=r"unknown access method 'adamw' \(known: adadelta, ada"):
        make(Access("adamw"))


# --- rows stand alone, in place and without allocation ---------------------------------------


@pytest.mark.parametrize("name", FULL)
def test_a_step_allocates_no_memory_of_the_models_size(name):
    """DESIGN section 4: no allocation of model size in a step; once warm, none beyond SMALL."""
    method = make(Access(name, FULL[name]))
    rows, update = torch.ones(3 * BLOCK + 5), torch.full((3 * BLOCK + 5,), 2.0)
    slots = new_slots(method, rows)
    before = [each.data_ptr() for each in (rows, *slots.values())]
    method.apply(rows, slots, update, step=0)  # the thread's scratch is made here
    with Allocated() as allocated:
        method.apply(rows, slots, update, step=1)
    assert [each.data_ptr() for each in (rows, *slots.values())] == before
    most = BLOCK if isinstance(method, TorchMethod) else SMALL  # torch's own make a block's
    assert allocated.largest <= most * rows.element_size()
    assert (update == 2).all()


def test_the_counter_of_allocations_counts():
    with Allocated() as allocated:
        torch.ones(100).add(1)
    assert allocated.largest == 400


@pytest.mark.parametrize("size", [1, SMALL, SMALL + 1, 2 * BLOCK + 3])
@pytest.mark.parametrize("name", FULL)
def test_a_step_in_pieces_equals_a_step_on_all_rows(name, size):
    """Replicas may hold the same rows in other fragments; float64, to a rounding of the last bit.

    The pieces go one by one, each with scratch that the one before has used.
    """
    method = make(Access(name, FULL[name]))
    whole = torch.linspace(-1, 1, size, dtype=torch.float64)
    pieces = whole.clone()
    whole_slots, piece_slots = new_slots(method, whole), new_slots(method, whole)
    update = torch.linspace(2, 1, size, dtype=torch.float64)
    cuts = [0, size // 3, size // 2, size]
    for step in range(3):
        method.apply(whole, whole_slots, update, step)
        for start, stop in pairwise(cuts):
            part = {slot: each[start:stop] for slot, each in piece_slots.items()}
            method.apply(pieces[start:stop], part, update[start:stop], step)
    torch.testing.assert_close(pieces, whole, rtol=1e-15, atol=1e-15)


@pytest.mark.parametrize("name", FULL)
def test_a_step_works_on_rows_of_any_shape_and_stride(name):
    method = make(Access(name, FULL[name]))
    update = torch.linspace(1, 2, 24, dtype=torch.float64).reshape(2, 3, 4)
    dense = torch.ones(2, 3, 4, dtype=torch.float64)
    strided = torch.ones(4, 3, 2, dtype=torch.float64).transpose(0, 2)
    for rows in (dense, strided):
        slots = new_slots(method, rows)
        for step in range(3):
            method.apply(rows, slots, update, step)
    torch.testing.assert_close(strided, dense, rtol=1e-15, atol=1e-15)


@pytest.mark.parametrize("name", FULL)
@pytest.mark.parametrize(
    "update", [torch.ones(1), torch.ones(2, 1), torch.ones(2, dtype=torch.float64)], ids=str
)
def test_an_update_that_does_not_fit_is_refused_before_anything_changes(name, update):
    """torch would broadcast the first two and round the third."""
    method = make(Access(name, FULL[name]))
    rows = torch.ones(2)
    slots = new_slots(method, rows)
    with pytest.raises(InvalidValue, match=f"{name}: an update .* does not fit rows"):
        method.apply(rows, slots, update, step=0)
    assert rows.tolist() == [1.0, 1.0]
