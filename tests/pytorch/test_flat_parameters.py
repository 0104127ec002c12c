import io
import warnings

import pytest
import torch
from torch import nn

from shoal.errors import InvalidValue
from shoal.pytorch.flat_parameters import ALIGN, FlatParams
from shoal.pytorch.model import LossModel


def test_parameters_are_views_of_the_flat_buffer_and_gradients_are_collected():
    module = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    before = [p.detach().clone() for p in module.parameters()]
    flat = FlatParams(module.parameters())
    assert list(flat.sizes) == ["float32"]
    for parameter, value in zip(module.parameters(), before, strict=True):
        assert torch.equal(parameter, value)
    flat.values["float32"].fill_(2.0)
    assert all((p == 2).all() for p in module.parameters())
    module(torch.ones(4, 3)).sum().backward()
    flat.collect()
    for place in flat.places:
        assert torch.equal(place.grad, place.parameter.grad)
        assert torch.equal(flat.grads[place.buffer][place.rows], place.parameter.grad.reshape(-1))
    assert flat.sizes["float32"] % ALIGN == 0
    assert flat.absent == {}


def test_a_parameter_without_a_gradient_is_absent_and_its_place_is_zero():
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    flat = FlatParams(module.parameters())
    module(torch.ones(1, 2)).sum().backward()
    flat.collect()
    flat.drop_grads()
    module[1](torch.ones(1, 2)).sum().backward()
    flat.collect()
    assert flat.absent == {"float32": (0, 1)}
    assert not flat.grads["float32"][:32].any()
    assert flat.grads["float32"][32:36].tolist() == [1.0] * 4
    flat.attach_grads(flat.absent)
    assert [place.parameter.grad is None for place in flat.places] == [True, True, False, False]
    module(torch.ones(1, 2)).sum().backward()
    flat.collect()
    assert flat.absent == {}


def test_a_parameter_has_a_storage_of_its_own_in_its_own_order():
    module = nn.Conv2d(4, 4, 3).to(memory_format=torch.channels_last)
    strides = module.weight.stride()
    flat = FlatParams(module.parameters())
    assert module.weight.stride() == strides
    assert module.weight.untyped_storage().nbytes() == module.weight.nbytes
    file = io.BytesIO()
    torch.save({"bias": module.bias}, file)
    alone = io.BytesIO()
    torch.save({"bias": nn.Parameter(module.bias.detach().clone())}, alone)
    assert file.tell() == alone.tell()
    assert "weight" not in flat.spans["float32"][0].name  # names are the caller's to give
    assert flat.spans["float32"][0].name == f"parameter 0 (4, 4, 3, 3) with strides {strides}"


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: torch.randn(3, dtype=torch.complex64), "complex64.*view_as_real"),
        (lambda: torch.randn(3).to(torch.float8_e4m3fn), "float8_e4m3fn"),
        (lambda: torch.randn(3, device="meta"), "on meta.*model.cpu"),
        (lambda: torch.randn(1).expand(3), "share memory"),
        (lambda: torch.randn(6)[::2], "gaps"),
        (lambda: torch.randn(3).share_memory_(), "shared memory"),
    ],
    ids=["complex", "float8", "meta", "expanded", "gaps", "shared"],
)
def test_what_cannot_be_flattened_is_refused_by_name_before_anything_moves(make, told):
    first, odd = nn.Parameter(torch.ones(4)), nn.Parameter(make())
    pointer = first.data_ptr()
    with pytest.raises(InvalidValue, match=f"body.odd .*{told}"):
        FlatParams([first, odd], names={odd: "body.odd"})
    assert first.data_ptr() == pointer


def test_a_lazy_parameter_is_refused_until_it_is_initialized():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        module = nn.LazyLinear(2)
    with pytest.raises(InvalidValue, match="parameter 0 is not initialized: pass a batch"):
        FlatParams(module.parameters())


def test_frozen_and_empty_parameters_have_no_place_unless_they_are_asked_for():
    module = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    module[1].requires_grad_(False)
    empty = nn.Parameter(torch.empty(0, 3))
    flat = FlatParams([*module.parameters(), empty], frozen=True)
    assert list(flat.values) == ["float32", "float32.frozen"]
    assert flat.idle == {"float32.frozen"}
    assert all(place.parameter is not empty for place in flat.places)


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
