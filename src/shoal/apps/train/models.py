"""Models for pictures and feature vectors, and models written as lists of layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from shoal.errors import InvalidValue
from shoal.registry import Registry
from shoal.runs.job import Layer

Factory = Callable[[tuple[int, ...], int], nn.Module]
models: Registry[Factory] = Registry("model")


def mlp(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return a network inputs-128-128-classes with tanh, which is 784-128-128-10 for MNIST."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(prod(shape), 128),
        nn.Tanh(),
        nn.Linear(128, 128),
        nn.Tanh(),
        nn.Linear(128, classes),
    )


def cnn(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return two convolutions and two linear layers, for pictures (channels, height, width)."""
    flat = len(shape) == 2  # grey pictures without an axis of channels
    if flat:
        shape = (1, *shape)
    if len(shape) != 3:
        raise InvalidValue(f"a cnn needs pictures (channels, height, width), not {shape}")
    channels, height, width = shape
    return nn.Sequential(
        nn.Unflatten(1, (1, height)) if flat else nn.Identity(),
        nn.Conv2d(channels, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * (height // 4) * (width // 4), 128),
        nn.ReLU(),
        nn.Linear(128, classes),
    )


models.add("mlp", mlp)
models.add("cnn", cnn)


def from_layers(layers: Sequence[Layer], sample: Tensor) -> nn.Module:
    """Return a Sequential of layers of torch.nn, with input sizes inferred from `sample`.

    `sample` has the shape (1, *shape). Each layer is a name, `[name, *arguments]`, or
    `{type = name, option = value}`. Where torch has a lazy form of a layer (LazyLinear,
    LazyConv2d), that form is used, so only output sizes are written.

    >>> from_layers(["Flatten", ["Linear", 4], "Tanh", ["Linear", 2]], torch.zeros(1, 3))[1]
    Linear(in_features=3, out_features=4, bias=True)
    """
    model = nn.Sequential(*(_layer(index, layer) for index, layer in enumerate(layers)))
    try:
        with torch.no_grad():
            model.eval()(sample)
            model.train()
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise InvalidValue(
            f"the layers do not fit data of shape {tuple(sample.shape[1:])}: {error}"
        ) from None
    return model


def _layer(index: int, layer: Layer) -> nn.Module:
    options: dict[str, Any] = {}
    arguments: list[Any] = []
    if isinstance(layer, str):
        name = layer
    elif isinstance(layer, list):
        name, *arguments = layer
    else:
        options = dict(layer)
        name = options.pop("type", "")
    if not isinstance(name, str) or not name:
        raise InvalidValue(f"layer {index}: no type in {layer!r}")
    kind = getattr(nn, f"Lazy{name}", None) or getattr(nn, name, None)
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        raise InvalidValue(f"layer {index}: torch.nn has no layer {name!r}")
    try:
        made: nn.Module = kind(*arguments, **options)
    except TypeError as error:
        raise InvalidValue(f"layer {index} ({name}): {error}") from None
    return made
