"""Transforms of batches: each is a pure function and a value."""

from __future__ import annotations

import pickle

import pytest
import torch

from shoal.data.transforms import (
    Compose,
    Scale,
    Standardise,
    Transform,
)
from shoal.errors import InvalidValue

X = torch.arange(12, dtype=torch.uint8).reshape(3, 2, 2)
Y = torch.tensor([2, 0, 1])

ALL: list[tuple[Transform, Transform]] = [  # one, and another
    (Scale(2.0), Scale(2.0, 1.0)),
    (Standardise((0.0,), (1.0,)), Standardise((1.0,), (1.0,))),
    (Compose(Scale(2.0), Scale(0.5, 1.0)), Compose(Scale(0.5, 1.0), Scale(2.0))),
    (Compose(), Compose(Scale(1.0))),
]


@pytest.mark.parametrize(("one", "other"), ALL)
def test_transforms_are_values(one: Transform, other: Transform) -> None:
    assert one == pickle.loads(pickle.dumps(one))
    assert hash(one) == hash(pickle.loads(pickle.dumps(one)))
    assert one != other
    assert repr(one).startswith(type(one).__name__ + "(")


@pytest.mark.parametrize("transform", [one for one, _ in ALL if not isinstance(one, Standardise)])
def test_transforms_leave_their_arguments_alone_and_repeat(transform: Transform) -> None:
    x, y = X.clone(), Y.clone()
    first, second = transform(x, y), transform(x, y)
    assert torch.equal(x, X)
    assert torch.equal(y, Y)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_scale_makes_bytes_real_and_keeps_a_real_dtype() -> None:
    x, y = Scale(0.5, 1.0)(X, Y)
    assert (x.dtype, x.flatten()[:3].tolist(), y) == (torch.float32, [1.0, 1.5, 2.0], Y)
    assert Scale(0.5)(X.double(), Y)[0].dtype == torch.float64


def test_whole_numbers_become_the_default_dtype() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        assert Scale(0.5)(X, Y)[0].dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_standardise_takes_its_statistics_from_the_training_samples() -> None:
    train = torch.tensor([[1.0, 10.0], [3.0, 30.0]])
    standardise = Standardise.of(train)
    assert standardise == Standardise((2.0, 20.0), (1.0, 10.0))
    assert standardise(train, Y[:2])[0].tolist() == [[-1, -1], [1, 1]]
    shifted, _ = standardise(train + 1, Y[:2])
    assert torch.allclose(shifted, torch.tensor([[0.0, -0.9], [2.0, 1.1]]))


def test_a_feature_that_never_varies_is_only_centred() -> None:
    x = torch.full((7, 1), 0.1)
    standardise = Standardise.of(x)
    assert standardise.std == (1.0,)
    assert standardise(x, Y)[0].abs().max() < 1e-6


def test_bad_arguments_are_refused() -> None:
    for make in (
        lambda: Standardise((0.0,), (1.0, 1.0)),
        lambda: Standardise((0.0,), (0.0,)),
        lambda: Standardise((float("nan"),), (1.0,)),
        lambda: Standardise.of(torch.zeros(0, 3)),
        lambda: Standardise((0.0,), (1.0,))(torch.zeros(2, 2), Y),
        lambda: Scale(float("inf")),
    ):
        with pytest.raises(InvalidValue):
            make()
