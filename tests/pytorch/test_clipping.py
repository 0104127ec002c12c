"""Clipping sees the rows of embeddings as torch's sees all parameters."""

import math

import pytest
import torch

import shoal
from shoal.client.context import Context
from shoal.errors import NotFinite
from shoal.tables.init import Init
from shoal.tables.spec import Access

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("embeddings")]


@pytest.fixture(scope="module")
def context(shared_cluster):
    _, [client] = shared_cluster(2)
    return Context(0, 1, client)


@pytest.mark.parametrize("norm_type", [2.0, 1.0, math.inf])
@pytest.mark.parametrize("max_norm", [0.5, 1e6])
def test_the_norm_and_the_clipped_gradients_are_torchs(context, norm_type, max_norm):
    ones = Init.constant(1.0)
    ours = shoal.nn.Embedding(9, 3, access=Access("sgd", {"lr": 1.0}), init=ones, context=context)
    twin = torch.nn.Embedding(9, 3)
    torch.nn.init.ones_(twin.weight)
    layers = [torch.nn.Linear(3, 2) for _ in range(2)]
    layers[1].load_state_dict(layers[0].state_dict())
    ids = torch.tensor([[1, 2], [2, 5]])
    for rows, layer in zip((ours, twin), layers, strict=True):
        layer(rows(ids)).square().sum().backward()
    norm = shoal.clip_grad_norm_(ours, layers[0], max_norm=max_norm, norm_type=norm_type)
    parameters = [*twin.parameters(), *layers[1].parameters()]
    wanted = torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type)
    torch.testing.assert_close(norm, wanted)
    for one, two in zip(layers[0].parameters(), layers[1].parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad)
    shoal.nn.push(ours).wait()
    twin.weight.data -= twin.weight.grad
    torch.testing.assert_close(ours(torch.arange(9)), twin(torch.arange(9)))


def test_modules_without_gradients_have_the_norm_0(context):
    ours = shoal.nn.Embedding(9, 3, context=context)
    assert shoal.clip_grad_norm_(ours, torch.nn.Linear(1, 1), max_norm=1.0).item() == 0.0


def test_a_norm_that_is_not_finite_is_refused_on_request(context):
    ours = shoal.nn.Embedding(9, 3, context=context)
    (ours(torch.tensor([1])) * math.inf).sum().backward()
    assert not shoal.clip_grad_norm_(ours, max_norm=1.0).isfinite()
    with pytest.raises(NotFinite):
        shoal.clip_grad_norm_(ours, max_norm=1.0, error_if_nonfinite=True)
