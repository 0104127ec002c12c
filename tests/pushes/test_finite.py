"""The look for NaN and infinity, of values small and large."""

import numpy as np
import pytest

from shoal.errors import NotFinite
from shoal.protocol.requests import Exchange, PushOp
from shoal.pushes.finite import HALVED_BYTES, Finite
from shoal.tables.spec import TableSpec

ITEMS = HALVED_BYTES // 4


def checked(values, nonfinite="reject"):
    """What is sent of a push of these values."""
    spec = TableSpec("w", len(values), nonfinite=nonfinite)
    push = PushOp("w", spec.keys, values.view(np.uint8).data)
    [sent] = Finite(lambda name: spec).checked(Exchange((push,))).pushes
    return np.frombuffer(sent.values, np.float32)


@pytest.mark.parametrize("count", [1, 1000, ITEMS - 1, ITEMS, ITEMS + 1])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.5, 0.7, 1.0])
def test_one_bad_value_is_found_wherever_it_is(count, bad, share):
    values = np.ones(count, np.float32)
    at = int(share * (count - 1))
    values[at] = bad
    with pytest.raises(NotFinite, match=f"of key {at}, element 0"):
        checked(values)
    assert np.array_equal(np.flatnonzero(checked(values, "zero") == 0), [at])


@pytest.mark.parametrize("count", [4, ITEMS])
def test_finite_values_are_sent_as_they_are(count):
    values = np.full(count, 3e38, np.float32)  # their sum overflows
    assert np.shares_memory(checked(values), values)


def test_infinities_that_cancel_are_found():
    values = np.ones(ITEMS, np.float32)
    values[0], values[-1] = np.inf, -np.inf
    with pytest.raises(NotFinite):
        checked(values)
