import pytest
import torch
from torch import nn

from shoal.errors import InvalidValue
from shoal.pytorch.flat_parameters import ALIGN, FlatParams
from shoal.pytorch.model import LossModel


def test_parameters_and_gradients_are_views_of_the_flat_buffer():
    module = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    before = [p.detach().clone() for p in module.parameters()]
    flat = FlatParams(module.parameters())
    assert list(flat.sizes) == ["float32"]
    for parameter, value in zip(module.parameters(), before, strict=True):
        assert torch.equal(parameter, value)
    flat.values["float32"].fill_(2.0)
    assert all((p == 2).all() for p in module.parameters())
    module(torch.ones(4, 3)).sum().backward()
    assert flat.grads["float32"].abs().sum() > 0
    assert flat.sizes["float32"] % ALIGN == 0


def test_gradients_set_to_none_return_to_the_flat_buffer():
    module = nn.Linear(2, 2)
    flat = FlatParams(module.parameters())
    module.zero_grad(set_to_none=True)
    module(torch.ones(1, 2)).sum().backward()
    flat.attach_grads()
    assert flat.grads["float32"][:4].tolist() == [1.0] * 4
    assert module.weight.grad.data_ptr() == flat.grads["float32"].data_ptr()


def test_each_dtype_has_a_buffer_and_frozen_parameters_have_none():
    module = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2).double(), nn.Linear(2, 2)])
    module[2].requires_grad_(False)
    assert sorted(FlatParams(module.parameters()).sizes) == ["float32", "float64"]
    with pytest.raises(InvalidValue, match="no trainable"):
        FlatParams(module[2].parameters())


def test_a_model_fills_its_gradients_with_the_batch_mean():
    module = nn.Linear(2, 2)
    learner = LossModel(module)
    x, y = torch.randn(6, 2), torch.tensor([0, 1, 0, 1, 1, 0])
    loss, weight = learner.gradient((x, y))
    expected = nn.functional.cross_entropy(module(x), y)
    grads = torch.autograd.grad(expected, list(module.parameters()))
    assert (loss, weight) == (pytest.approx(expected.item()), 6.0)
    assert torch.allclose(learner.grads["float32"][:4], grads[0].reshape(-1))
    again, _ = learner.gradient((x, y))  # and does not add up
    assert again == pytest.approx(loss)
    assert torch.allclose(learner.grads["float32"][:4], grads[0].reshape(-1))


def test_a_parameter_without_a_gradient_does_not_keep_the_last_steps():
    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.other = nn.Linear(256, 512), nn.Linear(256, 512)
            self.use = "one"

        def forward(self, x):
            return getattr(self, self.use)(x)

    module = Branching()
    learner = LossModel(module)
    batch = torch.randn(4, 256), torch.tensor([1, 2, 3, 4])
    for used in ("one", "other", "one"):
        module.use = used
        learner.gradient(batch)
        plain = Branching()
        plain.load_state_dict(module.state_dict())
        plain.use = used
        nn.functional.cross_entropy(plain(batch[0]), batch[1]).backward()
        expected = torch.cat(
            [
                (p.grad if p.grad is not None else torch.zeros_like(p)).reshape(-1)
                for p in plain.parameters()
            ]
        )
        assert torch.allclose(learner.grads["float32"], expected)
