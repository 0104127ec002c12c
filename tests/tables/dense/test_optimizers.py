"""Gradient methods against torch.optim, whose results are the oracle, and small numbers by hand."""

from itertools import product

import pytest
import torch

from shoal.errors import InvalidValue, UnknownName
from shoal.tables.dense.methods import access_methods, make
from shoal.tables.from_torch import from_torch
from shoal.tables.spec import Access
from tests.tables.steps import GRADIENT_METHODS, by_table, by_torch, gradients, new_slots


def combinations(**choices) -> list[dict]:
    """Every way to take one value for each option."""
    return [dict(zip(choices, values, strict=True)) for values in product(*choices.values())]


CASES = [
    *(
        (torch.optim.SGD, options)
        for options in combinations(
            lr=[0.1],
            momentum=[0, 0.9],
            dampening=[0, 0.5],
            nesterov=[False, True],
            weight_decay=[0, 0.01],
            maximize=[False, True],
        )
        if not options["nesterov"] or (options["momentum"] and not options["dampening"])
    ),
    *(
        (torch.optim.Adagrad, options)
        for options in combinations(
            lr=[0.1],
            lr_decay=[0, 0.1],
            weight_decay=[0, 0.01],
            initial_accumulator_value=[0, 0.5],
            eps=[1e-10, 0.1],
        )
    ),
    *(
        (torch.optim.RMSprop, options)
        for options in combinations(
            lr=[0.01],
            alpha=[0.9, 0.99],
            eps=[1e-8, 0.1],
            weight_decay=[0, 0.01],
            momentum=[0, 0.9],
            centered=[False, True],
        )
    ),
    *(
        (torch.optim.Adadelta, options)
        for options in combinations(
            lr=[1.0, 0.1], rho=[0.9, 0.5], eps=[1e-6, 0.1], weight_decay=[0, 0.01]
        )
    ),
    *(
        (optimizer, {"lr": 0.01, "weight_decay": 0.1, "maximize": True})
        for optimizer in (torch.optim.Adagrad, torch.optim.RMSprop, torch.optim.Adadelta)
    ),
    *(
        (optimizer, options)
        for optimizer in (torch.optim.NAdam, torch.optim.RAdam)
        for options in combinations(
            weight_decay=[0, 0.1], decoupled_weight_decay=[False, True], maximize=[False, True]
        )
    ),
    *(
        (torch.optim.Adamax, options)
        for options in combinations(betas=[(0.9, 0.999), (0.5, 0.6)], weight_decay=[0, 0.1])
    ),
    *(
        (torch.optim.ASGD, options)
        for options in combinations(lambd=[1e-4, 0.1], t0=[1e6, 10], weight_decay=[0, 0.1])
    ),
    *(
        (torch.optim.Rprop, options)
        for options in combinations(
            etas=[(0.5, 1.2), (0.9, 2.0)], step_sizes=[(1e-6, 50), (0.1, 1)]
        )
    ),
    *(
        (optimizer, options)
        for optimizer in (torch.optim.Adam, torch.optim.AdamW)
        for options in combinations(
            lr=[0.01],
            betas=[(0.9, 0.999), (0.5, 0.6), (0.0, 0.9)],
            eps=[1e-8, 0.1],
            weight_decay=[0, 0.1],
            amsgrad=[False, True],
        )
    ),
]


def access_of(optimizer_class, options: dict) -> Access:
    return from_torch(optimizer_class([torch.nn.Parameter(torch.ones(1))], **options))[0]


def show(value) -> str:
    if isinstance(value, type):
        return value.__name__
    if isinstance(value, dict):
        return "-".join(f"{key}={each}" for key, each in value.items() if each)
    return str(value).removeprefix("torch.")


# --- the same result as torch.optim ----------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=show)
@pytest.mark.parametrize(("optimizer_class", "options"), CASES, ids=show)
def test_equals_torch(optimizer_class, options, dtype):
    """A hundred steps; the options reach the table by way of `from_torch`.

    SGD: Sutskever et al. 2013, section 2. Adagrad: Duchi et al. 2011, figure 1. RMSprop:
    Tieleman & Hinton 2012, lecture 6.5. Adadelta: Zeiler 2012, algorithm 1. Adam: Kingma & Ba
    2015, algorithm 1. AdamW: Loshchilov & Hutter 2019, algorithm 2.
    """
    tolerance = 1e-12 if dtype == torch.float64 else 1e-6
    grads = gradients(dtype)
    ours = by_table(access_of(optimizer_class, options), grads)
    theirs = by_torch(optimizer_class, options, grads)
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("optimizer_class", "name"),
    [
        (torch.optim.Adagrad, "adagrad"),
        (torch.optim.RMSprop, "rmsprop"),
        (torch.optim.Adadelta, "adadelta"),
        (torch.optim.Adam, "adam"),
    ],
    ids=show,
)
def test_defaults_equal_torchs(optimizer_class, name):
    assert make(access_of(optimizer_class, {})).settings == make(Access(name)).settings


def test_defaults_of_sgd_equal_torchs_except_the_rate():
    theirs = make(access_of(torch.optim.SGD, {"lr": 0.01})).settings
    assert make(Access("sgd")).settings == theirs


def test_bfloat16_is_close_to_float32():
    """Eight bits of mantissa: rows of about 1 may be off by some hundredths after ten steps."""
    for name in GRADIENT_METHODS:
        access = Access(name, {"lr": 0.01})
        exact = by_table(access, gradients(torch.float32, steps=10))
        short = by_table(access, gradients(torch.bfloat16, steps=10))
        torch.testing.assert_close(short.float(), exact, rtol=0, atol=0.05, msg=name)


# --- by hand ---------------------------------------------------------------------------------


def test_momentum_is_not_damped_at_first():
    """As in torch, the first velocity is the gradient itself, whatever the dampening."""
    method = make(Access("sgd", {"lr": 1.0, "momentum": 0.5, "dampening": 0.5}))
    rows = torch.zeros(1)
    slots = {"momentum": torch.full((1,), 99.0)}  # what a slot held before step 0 does not matter
    velocity = []
    for step in range(3):
        method.apply(rows, slots, torch.tensor([4.0]), step)
        velocity.append(slots["momentum"].item())
    assert velocity == [4.0, 4.0, 4.0]
    assert rows.item() == -12.0


def test_nesterov_looks_ahead():
    """Sutskever et al. 2013, equation 3: the step is taken from where the velocity leads."""
    method = make(Access("sgd", {"lr": 1.0, "momentum": 0.5, "nesterov": True}))
    rows, slots = torch.zeros(1), {"momentum": torch.zeros(1)}
    method.apply(rows, slots, torch.tensor([4.0]), step=0)
    assert rows.item() == -(4.0 + 0.5 * 4.0)


def test_adagrad_weighs_by_the_root_of_all_squares():
    """Duchi et al. 2011, section 1: H_t = δI + diag(Σ g²)^(1/2); rare features step far."""
    method = make(Access("adagrad", {"lr": 60.0, "eps": 0.0}))
    rows = torch.zeros(2, dtype=torch.float64)
    slots = new_slots(method, rows)
    for step, grad in enumerate([[3.0, 1.0], [4.0, 0.0]]):
        method.apply(rows, slots, torch.tensor(grad, dtype=torch.float64), step)
    assert slots["sum"].tolist() == [25.0, 1.0]
    assert rows.tolist() == [-60 - 60 * 4 / 5, -60.0]


def test_rmsprop_divides_by_the_recent_magnitude():
    """Tieleman & Hinton 2012, slide 29: MeanSquare(t) = 0.9 MeanSquare(t-1) + 0.1 g²."""
    method = make(Access("rmsprop", {"lr": 1.0, "alpha": 0.75, "eps": 0.0}))
    rows = torch.zeros(1, dtype=torch.float64)
    slots = {"square_avg": torch.full_like(rows, 16.0)}
    method.apply(rows, slots, torch.full_like(rows, 4.0), step=7)
    assert (slots["square_avg"].item(), rows.item()) == (16.0, -1.0)


def test_adadelta_is_indifferent_to_the_scale_of_the_gradient():
    """Zeiler 2012, section 3.2: the units of the update are those of the parameters."""
    method = make(Access("adadelta", {"eps": 0.0}))
    ends = []
    for scale in (1, 1000):
        rows = torch.zeros(3, 5, dtype=torch.float64)
        slots = {"square_avg": torch.zeros_like(rows), "acc_delta": torch.ones_like(rows)}
        for step, grad in enumerate(gradients(torch.float64)):
            method.apply(rows, slots, scale * grad, step)
        ends.append(rows)
    assert (ends[0].abs() > 1).all()
    torch.testing.assert_close(*ends, rtol=1e-12, atol=1e-12)


def test_adam_corrects_the_bias_of_its_first_steps():
    """Kingma & Ba 2015, section 3: without the correction, the first steps would be far larger."""
    method = make(Access("adam", {"lr": 1.0, "eps": 0.0}))
    for step in (0, 1, 10):
        rows = torch.zeros(1, dtype=torch.float64)
        slots = new_slots(method, rows)
        for earlier in range(step + 1):
            rows.zero_()
            method.apply(rows, slots, torch.full_like(rows, 5.0), earlier)
        # a constant gradient has mean g and root mean square |g| at every step: |Δ| is the rate
        assert rows.item() == pytest.approx(-1.0, rel=1e-12)


def test_decoupled_decay_does_not_pass_through_the_moments():
    """Loshchilov & Hutter 2019, section 2: the decay is η λ θ, however large the gradients are."""
    method = make(Access("adam", {"lr": 0.5, "weight_decay": 0.5, "decoupled": True}))
    rows = torch.full((1,), 8.0)
    slots = new_slots(method, rows)
    method.apply(rows, slots, torch.zeros(1), step=0)
    assert rows.item() == 6.0
    assert slots["exp_avg"].item() == 0.0


# --- what is refused -------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "option"), [("sgd", "beta1"), ("adam", "alpha")])
def test_an_unknown_option_is_refused(name, option):
    with pytest.raises(UnknownName, match=f"unknown option of {name} '{option}' .known: "):
        make(Access(name, {option: 0.5}))


@pytest.mark.parametrize(
    ("name", "option", "value", "allowed"),
    [
        ("sgd", "lr", -0.1, "0 <= value"),
        ("sgd", "lr", float("nan"), "0 <= value"),
        ("sgd", "lr", "0.1", "0 <= value"),
        ("sgd", "lr", True, "0 <= value"),
        ("sgd", "momentum", -1, "0 <= value"),
        ("sgd", "dampening", float("inf"), "any finite number"),
        ("sgd", "weight_decay", -1e-9, "0 <= value"),
        ("sgd", "maximize", 1, "true, false"),
        ("adagrad", "lr_decay", -1, "0 <= value"),
        ("adagrad", "initial_accumulator_value", -1, "0 <= value"),
        ("rmsprop", "alpha", 1.5, "0 <= value <= 1"),
        ("rmsprop", "centered", "yes", "true, false"),
        ("adadelta", "rho", -0.1, "0 <= value <= 1"),
        ("adam", "beta1", 1.0, "0 <= value < 1"),
        ("adam", "beta2", -0.1, "0 <= value < 1"),
        ("adam", "eps", -1e-8, "0 <= value"),
    ],
)
def test_an_option_out_of_range_is_refused_with_its_range(name, option, value, allowed):
    with pytest.raises(InvalidValue, match=f"{name}: {option}={value!r} .*; allowed: {allowed}$"):
        make(Access(name, {option: value}))


@pytest.mark.parametrize("extra", [{}, {"momentum": 0.9, "dampening": 0.1}])
def test_nesterov_without_momentum_or_with_dampening_is_refused(extra):
    with pytest.raises(InvalidValue, match="nesterov=True needs momentum > 0 and dampening = 0"):
        make(Access("sgd", {"nesterov": True, **extra}))


# --- slots and options -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "slots"),
    [
        ("sgd", {}, ()),
        ("sgd", {"momentum": 0.9}, ("momentum",)),
        ("adagrad", {}, ("sum",)),
        ("rmsprop", {}, ("square_avg",)),
        ("rmsprop", {"momentum": 0.9, "centered": True}, ("square_avg", "grad_avg", "momentum")),
        ("adadelta", {}, ("square_avg", "acc_delta")),
        ("adam", {}, ("exp_avg", "exp_avg_sq")),
        ("adam", {"amsgrad": True}, ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")),
    ],
)
def test_a_methods_slots_depend_on_its_options(name, options, slots):
    method = make(Access(name, options))
    assert method.slots() == slots
    assert all(method.initial(slot) == 0.0 for slot in slots)


def test_adagrads_slot_begins_at_its_initial_accumulator_value():
    assert make(Access("adagrad", {"initial_accumulator_value": 0.5})).initial("sum") == 0.5


def test_options_are_not_shared_between_tables():
    given = {"lr": 0.5}
    method = make(Access("sgd", given))
    given["lr"] = 0.25
    assert method.settings["lr"] == 0.5
    assert access_methods["sgd"].options["lr"] == 0.01
