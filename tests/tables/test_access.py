"""The contract of access methods, with the two whose update is a value."""

from typing import ClassVar

import pytest
import torch

from shoal.errors import InvalidValue, UnknownName
from shoal.tables.access import AccessMethod, Assign, Sum
from shoal.tables.spec import ITEM_SIZES


@pytest.mark.parametrize("dtype", sorted(ITEM_SIZES))
def test_sum_and_assign_work_on_every_dtype(dtype):
    kind = getattr(torch, dtype)
    update = torch.tensor([10, 20], dtype=kind)
    for method, expected in ((Sum, [11, 22]), (Assign, [10, 20])):
        rows = torch.tensor([1, 2], dtype=kind)
        assert method.supports(dtype)
        method({}).apply(rows, {}, update, step=0)
        assert rows.tolist() == expected


def test_sum_and_assign_have_no_slots_and_no_options():
    assert Sum({}).slots() == Assign({}).slots() == ()
    for method, option in ((Sum, "lr"), (Assign, "schedule")):
        with pytest.raises(UnknownName, match=f"unknown option of {method.name} '{option}'"):
            method({option: 0.5})


def test_a_users_access_method_is_checked_and_applied():
    """What a plug-in writes: name, options, dtypes, state, apply."""

    class Largest(AccessMethod):
        name = "largest"
        options: ClassVar = {"scale": 1.0}
        dtypes = frozenset({"int64"})

        def state(self):
            return {}

        def apply(self, rows, slots, update, step, lr=None):
            torch.maximum(rows, update, out=rows)

    rows = torch.tensor([1, 5])
    Largest({}).apply(rows, {}, torch.tensor([3, 3]), step=0)
    assert rows.tolist() == [3, 5]
    with pytest.raises(InvalidValue, match="largest: scale='a' is not a number"):
        Largest({"scale": "a"})


class Decayed(AccessMethod):
    """θ ← κ θ + g, with a slot that its option switches on: one of each kind of option."""

    name = "decayed"
    options: ClassVar = {"eps": 0.5, "keeps": False, "label": "none"}
    dtypes = frozenset({"float32"})

    def state(self):
        return {"kept": 2.0} if self.settings["keeps"] else {}

    def apply(self, rows, slots, update, step, lr=None):
        rows.mul_(self._number("eps")).add_(update)


def test_options_take_their_defaults_and_decide_the_slots():
    assert Decayed({}).settings == {"eps": 0.5, "keeps": False, "label": "none"}
    assert Decayed({}).slots() == ()
    assert Decayed({"keeps": True}).slots() == ("kept",)
    assert Decayed({"keeps": True}).initial("kept") == 2.0
    assert Decayed({"label": "any text"}).settings["label"] == "any text"


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [("eps", -0.5, "0 <= value"), ("eps", True, "0 <= value"), ("keeps", 1, "true, false")],
)
def test_an_option_out_of_range_is_refused_by_name(option, value, allowed):
    with pytest.raises(InvalidValue, match=f"decayed: {option}={value!r} .*; allowed: {allowed}$"):
        Decayed({option: value})


def test_the_initial_value_of_an_unknown_slot_is_refused():
    with pytest.raises(UnknownName, match=r"unknown slot of decayed 'kept' \(known: \)"):
        Decayed({}).initial("kept")


def test_a_schedule_option_without_a_learning_rate_is_refused():
    with pytest.raises(UnknownName, match="unknown option of decayed 'schedule_warmup'"):
        Decayed({"schedule_warmup": 3})


def test_changing_the_given_options_does_not_change_the_method():
    given = {"eps": 0.25}
    method = Decayed(given)
    given["eps"] = 1.0
    assert method.settings["eps"] == 0.25
    assert Decayed.options["eps"] == 0.5


def test_supports_tells_which_dtypes_a_method_takes():
    assert Decayed.supports("float32")
    assert not Decayed.supports("float64")
    assert not any(method.supports("complex64") for method in (Sum, Assign))
