"""What gradient methods have in common: the rate of a step, blocks, scratch memory, dtypes."""

import threading

import pytest
import torch

from shoal.errors import UnknownName
from shoal.tables.dense.gradient_method import BLOCK, SMALL
from shoal.tables.dense.methods import access_methods, make
from shoal.tables.dense.torch_methods import TorchMethod
from shoal.tables.from_torch import from_torch
from shoal.tables.spec import Access
from tests.tables.steps import GRADIENT_METHODS, STEPS, by_table, by_torch, gradients, new_slots

# --- the rate --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GRADIENT_METHODS)
def test_a_schedule_gives_the_rate_of_each_step(name):
    scheduled = Access(
        name, {"lr": 0.1, "schedule": "step", "schedule_every": 2, "schedule_warmup": 3}
    )
    method = make(Access(name, {"lr": 99.0}))
    rates = [0.025, 0.05, 0.075, 0.1, 0.1, 0.01, 0.01]
    grads = gradients(torch.float64, steps=len(rates))
    rows = torch.ones_like(grads[0])
    slots = new_slots(method, rows)
    for step, (grad, lr) in enumerate(zip(grads, rates, strict=True)):
        method.apply(rows, slots, grad, step, lr=lr)
    torch.testing.assert_close(by_table(scheduled, grads), rows, rtol=1e-12, atol=1e-12)


def test_a_pushs_rate_overrides_the_schedule():
    """A worker under a torch.optim.lr_scheduler sends its present rate."""
    grads = gradients(torch.float64)
    parameter = torch.nn.Parameter(torch.ones_like(grads[0]))
    optimizer = torch.optim.Adam([parameter], lr=0.1)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=0.1, total_steps=STEPS + 1, cycle_momentum=False
    )
    method = make(from_torch(optimizer)[0])
    rows = torch.ones_like(grads[0])
    slots = new_slots(method, rows)
    for step, grad in enumerate(grads):
        parameter.grad = grad.clone()
        method.apply(rows, slots, grad, step, lr=optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    torch.testing.assert_close(rows, parameter.detach(), rtol=1e-12, atol=1e-12)


def test_a_pushs_rate_of_zero_changes_nothing():
    rows = torch.ones(2)
    make(Access("sgd", {"lr": 1.0})).apply(rows, {}, torch.ones(2), step=0, lr=0.0)
    assert rows.tolist() == [1.0, 1.0]


def test_the_schedules_options_are_checked():
    with pytest.raises(UnknownName, match="unknown option of schedule 'step' 'schedule_decay'"):
        make(Access("sgd", {"schedule": "step", "schedule_every": 2, "schedule_decay": 0.5}))


# --- blocks and scratch ----------------------------------------------------------------------


def test_strided_rows_larger_than_a_block_are_updated():
    method = make(Access("adam"))
    side = BLOCK // 512
    rows = torch.ones(side, 1024)[:, ::2].t()  # 512 x side = BLOCK
    rows = torch.cat([rows, rows]).t()
    dense = torch.ones(rows.shape)
    update = torch.full(rows.shape, 2.0)
    for each in (rows, dense):
        method.apply(each, new_slots(method, each), update, step=0)
    assert not rows.is_contiguous()
    assert rows.numel() > BLOCK
    assert torch.equal(rows, dense)


def test_threads_may_share_a_methods_instance():
    """Scratch belongs to the thread: four of them at once, and each gets what one alone gets."""
    method = make(Access("adam", {"amsgrad": True, "weight_decay": 0.1}))
    grads = gradients(torch.float32, (SMALL, 8), steps=20)
    expected = by_table(Access("adam", {"amsgrad": True, "weight_decay": 0.1}), grads)
    results: list[torch.Tensor] = [torch.ones_like(grads[0]) for _ in range(4)]

    def work(rows: torch.Tensor) -> None:
        slots = new_slots(method, rows)
        for step, grad in enumerate(grads):
            method.apply(rows, slots, grad, step)

    threads = [threading.Thread(target=work, args=(rows,)) for rows in results]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    for rows in results:
        torch.testing.assert_close(rows, expected)


# --- dtypes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GRADIENT_METHODS)
def test_integer_dtypes_are_not_supported(name):
    method = make(Access(name))
    assert all(method.supports(dtype) for dtype in ("float32", "float64"))
    assert method.supports("bfloat16") or isinstance(method, TorchMethod)
    assert not any(method.supports(dtype) for dtype in ("int32", "int64", "uint8", "complex64"))


@pytest.mark.parametrize("name", [name for name in GRADIENT_METHODS if name != "sgd"])
def test_methods_with_squared_gradients_do_not_support_float16(name):
    """Why it is refused: torch's own Adam is lost at its first step, as the second half shows."""
    assert not access_methods[name].supports("float16")
    assert access_methods["sgd"].supports("float16")
    grads = [torch.full((1,), 1e-4, dtype=torch.float16)]
    assert not by_torch(torch.optim.Adam, {}, grads).isfinite().any()
