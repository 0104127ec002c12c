"""`apps.transforms`: each is pure, a value, and says what it is."""

from __future__ import annotations

import pickle

import pytest
import torch

from shoal.data.transforms import (
    Compose,
    Flatten,
    OneHot,
    Scale,
    Shuffle,
    Standardise,
    Transform,
)
from shoal.errors import InvalidValue

X = torch.arange(12, dtype=torch.uint8).reshape(3, 2, 2)
Y = torch.tensor([2, 0, 1])

ALL: list[tuple[Transform, Transform, str]] = [  # one, another, the description of the one
    (Shuffle(1), Shuffle(2), "shuffle(1)"),
    (Scale(2.0), Scale(2.0, 1.0), "scale(2, 0)"),
    (OneHot(3), OneHot(4), "one_hot(3)"),
    (Flatten(), Scale(1.0), "flatten()"),
    (Standardise((0.0,), (1.0,)), Standardise((1.0,), (1.0,)), "standardise(1 features)"),
    (Compose(Flatten(), Scale(0.5)), Compose(Scale(0.5), Flatten()), "flatten() | scale(0.5, 0)"),
    (Compose(), Compose(Flatten()), "as stored"),
]


@pytest.mark.parametrize(("one", "other", "description"), ALL)
def test_transforms_are_values(one: Transform, other: Transform, description: str) -> None:
    assert one == pickle.loads(pickle.dumps(one))
    assert hash(one) == hash(pickle.loads(pickle.dumps(one)))
    assert one != other
    assert one.describe() == description
    assert repr(one).startswith(type(one).__name__ + "(")


@pytest.mark.parametrize(
    "transform", [one for one, _, _ in ALL if not isinstance(one, Standardise)]
)
def test_transforms_leave_their_arguments_alone_and_repeat(transform: Transform) -> None:
    x, y = X.clone(), Y.clone()
    first, second = transform(x, y), transform(x, y)
    assert torch.equal(x, X)
    assert torch.equal(y, Y)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_shuffle_keeps_samples_with_their_labels() -> None:
    x, y = torch.arange(50), torch.arange(50) * 2
    shuffled_x, shuffled_y = Shuffle(3)(x, y)
    assert torch.equal(shuffled_x * 2, shuffled_y)
    assert not torch.equal(shuffled_x, x)
    assert torch.equal(shuffled_x.sort().values, x)


def test_scale_makes_bytes_real_and_keeps_a_real_dtype() -> None:
    x, y = Scale(0.5, 1.0)(X, Y)
    assert (x.dtype, x.flatten()[:3].tolist(), y) == (torch.float32, [1.0, 1.5, 2.0], Y)
    assert Scale(0.5)(X.double(), Y)[0].dtype == torch.float64


def test_whole_numbers_become_the_default_dtype() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        assert Scale(0.5)(X, Y)[0].dtype == torch.float64
        assert OneHot(3)(X, Y)[1].dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_one_hot_makes_rows() -> None:
    assert OneHot(3)(X, Y)[1].tolist() == [[0, 0, 1], [1, 0, 0], [0, 1, 0]]
    assert OneHot(3)(X[:0], Y[:0])[1].shape == (0, 3)


@pytest.mark.parametrize("y", [torch.tensor([0, 3]), torch.tensor([-1, 0])])
def test_one_hot_refuses_labels_out_of_range(y: torch.Tensor) -> None:
    with pytest.raises(InvalidValue, match="one-hot of 3 classes got labels"):
        OneHot(3)(X[:2], y)


@pytest.mark.parametrize("y", [torch.tensor([0.5]), torch.tensor([[1]])])
def test_one_hot_refuses_what_is_not_labels(y: torch.Tensor) -> None:
    with pytest.raises(InvalidValue, match="whole labels of shape"):
        OneHot(3)(X[:1], y)


def test_flatten_keeps_the_samples() -> None:
    x, y = Compose(Flatten(), OneHot(3))(X, Y)
    assert (x.shape, y.shape) == ((3, 4), (3, 3))


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
        lambda: OneHot(0),
        lambda: Shuffle(-1),
    ):
        with pytest.raises(InvalidValue):
            make()
