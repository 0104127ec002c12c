"""Schedules against torch.optim.lr_scheduler, small numbers by hand, and what is refused."""

import doctest

import pytest
import torch
from torch.optim import lr_scheduler

from shoal.errors import InvalidValue, UnknownName
from shoal.tables import schedules as module
from shoal.tables.schedules import PREFIX, Range, schedule_lr, schedules

STEPS = 100


def rates(steps: int, **options) -> list[float]:
    lr = schedule_lr(options)
    return [lr(step) for step in range(steps)]


def torch_rates(make_scheduler, lr: float, steps: int = STEPS) -> list[float]:
    """The rate that torch uses in each step when the scheduler steps after the optimizer."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)
    scheduler = make_scheduler(optimizer)
    seen = []
    for _ in range(steps):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return seen


@pytest.mark.parametrize(
    ("options", "scheduler"),
    [
        (
            {"schedule": "constant"},
            lambda o: lr_scheduler.ConstantLR(o, factor=1.0),
        ),
        (
            {"schedule": "step", "schedule_every": 7, "schedule_gamma": 0.5},
            lambda o: lr_scheduler.StepLR(o, step_size=7, gamma=0.5),
        ),
        (
            {"schedule": "step", "schedule_every": 30},
            lambda o: lr_scheduler.StepLR(o, step_size=30),
        ),
        (
            {"schedule": "exponential", "schedule_gamma": 0.97},
            lambda o: lr_scheduler.ExponentialLR(o, gamma=0.97),
        ),
        (
            {"schedule": "inverse_time", "schedule_decay": 0.1},
            lambda o: lr_scheduler.LambdaLR(o, lambda step: 1 / (1 + 0.1 * step)),
        ),
        (
            {"schedule": "polynomial", "schedule_total": 60, "schedule_power": 2.5},
            lambda o: lr_scheduler.PolynomialLR(o, total_iters=60, power=2.5),
        ),
        (
            {"schedule": "polynomial", "schedule_total": 60},
            lambda o: lr_scheduler.PolynomialLR(o, total_iters=60),
        ),
        (
            {"schedule": "cosine", "schedule_total": STEPS, "schedule_end_lr": 0.01},
            lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=STEPS, eta_min=0.01),
        ),
    ],
    ids=lambda each: each["schedule"] if isinstance(each, dict) else "",
)
def test_equals_torch(options, scheduler):
    assert rates(STEPS, lr=0.3, **options) == pytest.approx(
        torch_rates(scheduler, lr=0.3), rel=1e-10, abs=1e-15
    )


def test_warmup_equals_torch():
    """Goyal et al. 2017, section 2.2: gradual warmup, "from a small to a large value"."""

    def scheduler(optimizer):
        ramp = lr_scheduler.LinearLR(optimizer, start_factor=1 / 11, total_iters=10)
        drops = lr_scheduler.StepLR(optimizer, step_size=7, gamma=0.5)
        return lr_scheduler.SequentialLR(optimizer, [ramp, drops], milestones=[10])

    ours = rates(
        STEPS, lr=0.3, schedule="step", schedule_every=7, schedule_gamma=0.5, schedule_warmup=10
    )
    assert ours == pytest.approx(torch_rates(scheduler, lr=0.3), rel=1e-10)


def test_warmup_by_hand():
    assert rates(5, lr=4.0, schedule_warmup=3) == [1.0, 2.0, 3.0, 4.0, 4.0]


@pytest.mark.parametrize("name", ["polynomial", "cosine"])
def test_a_schedule_ends_at_end_lr_and_stays_there(name):
    lr = schedule_lr({"lr": 8.0, "schedule": name, "schedule_total": 4, "schedule_end_lr": 2.0})
    assert (lr(0), lr(2), lr(4), lr(5), lr(10**9)) == (8.0, 5.0, 2.0, 2.0, 2.0)


def test_a_schedules_rate_depends_on_the_step_only():
    """Asking out of order, or twice, changes nothing: a replica need not have seen the past."""
    lr = schedule_lr({"lr": 8.0, "schedule": "exponential", "schedule_gamma": 0.5})
    assert [lr(3), lr(0), lr(3)] == [1.0, 8.0, 1.0]


def test_long_runs_neither_overflow_nor_go_below_zero():
    assert rates(1, lr=1.0, schedule="inverse_time", schedule_decay=0.0) == [1.0]
    assert schedule_lr({"lr": 1.0, "schedule": "exponential", "schedule_gamma": 0.5})(10**7) == 0.0


def test_a_schedule_ignores_other_options_of_the_access_method():
    assert rates(1, lr=0.5, momentum=-1, nesterov=True) == [0.5]


def test_an_unknown_schedule_is_refused_with_a_suggestion():
    with pytest.raises(UnknownName, match=r"unknown schedule 'cosin' .*step\); did you mean 'cosi"):
        schedule_lr({"lr": 1.0, "schedule": "cosin"})


def test_an_unknown_parameter_is_refused_with_the_known_ones():
    expected = (
        r"unknown option of schedule 'step' 'schedule_gama' "
        r"\(known: schedule_every, schedule_gamma, schedule_warmup\); did you mean"
    )
    with pytest.raises(UnknownName, match=expected):
        schedule_lr({"lr": 1.0, "schedule": "step", "schedule_every": 1, "schedule_gama": 0.5})
    with pytest.raises(UnknownName, match="unknown option of schedule 'constant'"):
        schedule_lr({"lr": 1.0, "schedule_gamma": 0.5})


@pytest.mark.parametrize(
    ("name", "parameter"),
    [
        ("step", "every"),
        ("exponential", "gamma"),
        ("inverse_time", "decay"),
        ("polynomial", "total"),
        ("cosine", "total"),
    ],
)
def test_a_missing_parameter_is_refused_by_name(name, parameter):
    with pytest.raises(
        InvalidValue, match=f"schedule '{name}' needs the option {PREFIX}{parameter}"
    ):
        schedule_lr({"lr": 1.0, "schedule": name})


@pytest.mark.parametrize(
    ("name", "parameters", "wrong"),
    [
        ("constant", {}, {"warmup": -1}),
        ("constant", {}, {"warmup": 1.5}),
        ("step", {"every": 1}, {"every": 0}),
        ("step", {"every": 1}, {"every": True}),
        ("step", {"every": 1}, {"gamma": 0.0}),
        ("step", {"every": 1}, {"gamma": 1.1}),
        ("exponential", {"gamma": 1.0}, {"gamma": 2}),
        ("exponential", {"gamma": 1.0}, {"gamma": "0.5"}),
        ("inverse_time", {"decay": 0}, {"decay": -0.1}),
        ("inverse_time", {"decay": 0}, {"decay": float("inf")}),
        ("polynomial", {"total": 1}, {"total": 0}),
        ("polynomial", {"total": 1}, {"power": 0}),
        ("polynomial", {"total": 1}, {"end_lr": -1.0}),
        ("cosine", {"total": 1}, {"total": 2.5}),
        ("cosine", {"total": 1}, {"end_lr": float("nan")}),
    ],
)
def test_a_parameter_out_of_range_is_refused_with_its_range(name, parameters, wrong):
    options = {PREFIX + key: value for key, value in {**parameters, **wrong}.items()}
    (option, value) = (PREFIX + next(iter(wrong)), next(iter(wrong.values())))
    with pytest.raises(InvalidValue, match=f"schedule '{name}': {option}={value!r} .*allowed: "):
        schedule_lr({"lr": 1.0, "schedule": name, **options})


@pytest.mark.parametrize("lr", [-0.1, float("nan"), float("inf"), "0.1", True])
def test_a_base_rate_out_of_range_is_refused(lr):
    with pytest.raises(InvalidValue, match=r"lr=.*allowed: 0 <= value"):
        schedule_lr({"lr": lr})


def test_a_missing_base_rate_is_refused():
    with pytest.raises(InvalidValue, match="give the option lr"):
        schedule_lr({"schedule": "constant"})


def test_a_schedule_that_is_no_name_is_refused():
    with pytest.raises(InvalidValue, match=r"schedule=3 is not a name \(known: constant, cosine"):
        schedule_lr({"lr": 0.1, "schedule": 3})


def test_the_built_in_schedules_are_registered():
    assert list(schedules) == [
        "constant",
        "cosine",
        "exponential",
        "inverse_time",
        "polynomial",
        "step",
    ]


def test_a_range_prints_what_it_allows():
    assert str(Range()) == "any finite number"
    assert str(Range(0)) == "0 <= value"
    assert str(Range(0, low_open=True)) == "0 < value"
    assert str(Range(high=1)) == "value <= 1"
    assert float("inf") not in Range()


def test_docstring_examples_run():
    assert doctest.testmod(module).failed == 0
