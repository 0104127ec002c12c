"""Learning rate schedules: pure functions of the number of updates applied before.

A schedule is `lr(step)`, where `step` is the number of updates that the rows have had before, so
that the first update has step 0. It holds no state: a replica, a restarted server and a test that
asks for step 1,000 get the same rate without computing steps 0 to 999.

With base rate η and t the number of steps since the end of the warmup::

    constant       η
    step           η γ^⌊t / every⌋
    exponential    η γ^t
    inverse_time   η / (1 + decay t)
    polynomial     end + (η - end) (1 - min(t, total) / total)^power
    cosine         end + (η - end) (1 + cos(π min(t, total) / total)) / 2

Before each of them come `warmup` steps of a linear ramp, η (step + 1) / (warmup + 1).

>>> lr = schedule_lr({"lr": 8.0, "schedule": "step", "schedule_every": 2, "schedule_gamma": 0.5})
>>> [lr(step) for step in range(6)]
[8.0, 8.0, 4.0, 4.0, 2.0, 2.0]

Another package adds a schedule through the entry-point group `shoal.schedules`: a function
`(lr, *, its parameters) -> (step -> lr)`; its keyword parameters become the options
`schedule_NAME`, required where they have no default.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import Parameter, signature
from math import cos, inf, isfinite, pi
from typing import TypeAlias

from shoal.errors import InvalidValue
from shoal.registry import Registry, unknown
from shoal.tables.spec import Options

PREFIX = "schedule_"  # of a schedule's parameters, among the options of a table's access method
DEFAULT_SCHEDULE = "constant"
SCHEDULE_OPTIONS: Options = {"schedule": DEFAULT_SCHEDULE, f"{PREFIX}warmup": 0}  # with defaults

LearningRate: TypeAlias = Callable[[int], float]


@dataclass(frozen=True)
class Range:
    """The finite numbers from `low` to `high`, without an end that is open.

    >>> 1.0 in Range(0, 1, high_open=True), str(Range(0, 1, high_open=True))
    (False, '0 <= value < 1')
    """

    low: float = -inf
    high: float = inf
    low_open: bool = False
    high_open: bool = False

    def __contains__(self, value: float) -> bool:
        above = value > self.low if self.low_open else value >= self.low
        below = value < self.high if self.high_open else value <= self.high
        return isfinite(value) and above and below

    def __str__(self) -> str:
        low = "" if self.low == -inf else f"{self.low} {'<' if self.low_open else '<='} "
        high = "" if self.high == inf else f" {'<' if self.high_open else '<='} {self.high}"
        return f"{low}value{high}" if low or high else "any finite number"


ANY = Range()
NOT_NEGATIVE = Range(0)
POSITIVE = Range(0, low_open=True)
UNIT = Range(0, 1)
BELOW_ONE = Range(0, 1, high_open=True)
DECAYS = Range(0, 1, low_open=True)


def number(owner: str, option: str, value: object, allowed: Range) -> float:
    """Return `value` as a float; raise InvalidValue unless it is a number in `allowed`.

    >>> number("sgd", "lr", -1, NOT_NEGATIVE)
    Traceback (most recent call last):
        ...
    shoal.errors.InvalidValue: sgd: lr=-1 is out of range; allowed: 0 <= value
    """
    # A bool is an int in Python, but `lr=True` is always a mistake.
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidValue(f"{owner}: {option}={value!r} is not a number; allowed: {allowed}")
    if value not in allowed:
        raise InvalidValue(f"{owner}: {option}={value!r} is out of range; allowed: {allowed}")
    return float(value)


def whole(owner: str, option: str, value: object, least: int) -> int:
    """Return `value`; raise InvalidValue unless it is an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidValue(
            f"{owner}: {option}={value!r} is out of range; allowed: an integer >= {least}"
        )
    return value


def schedule_lr(options: Options) -> LearningRate:
    """Return the learning rate as a function of the step, from the options of an access method.

    Args:
        options: `lr`, the base rate, >= 0; `schedule`, a name in `schedules` ("constant" by
            default); `schedule_warmup`, a number of steps >= 0 (0 by default); and the schedule's
            parameters, each with the prefix `schedule_`. Other keys belong to the access method
            and are ignored.

    Returns:
        A pure function from the number of updates applied before (>= 0) to the next one's rate.

    Raises:
        UnknownName: no such schedule, or no such parameter of this schedule.
        InvalidValue: a value out of its range, or a required parameter that is missing.

    Example:
        >>> lr = schedule_lr({"lr": 1.0, "schedule": "inverse_time", "schedule_decay": 1.0,
        ...                   "schedule_warmup": 3})
        >>> [round(lr(step), 3) for step in range(6)]
        [0.25, 0.5, 0.75, 1.0, 0.5, 0.333]
    """
    if "lr" not in options:
        raise InvalidValue("a schedule needs a base rate; give the option lr, such as lr=0.1")
    name = options.get("schedule", DEFAULT_SCHEDULE)
    if not isinstance(name, str):
        raise InvalidValue(f"schedule={name!r} is not a name (known: {', '.join(schedules)})")
    build = schedules[name]
    given = {key.removeprefix(PREFIX): options[key] for key in options if key.startswith(PREFIX)}
    warmup = whole(_owner(name), f"{PREFIX}warmup", given.pop("warmup", 0), 0)
    _check_parameters(name, build, given)
    rate = build(number(_owner(name), "lr", options["lr"], NOT_NEGATIVE), **given)
    return _warmed(rate, warmup) if warmup else rate


def _check_parameters(name: str, build: Callable[..., LearningRate], given: Options) -> None:
    """Refuse unknown parameters, and missing ones that have no default."""
    _, *parameters = signature(build).parameters.values()
    known = [each.name for each in parameters]
    for option in given:
        if option not in known:
            listed = [PREFIX + each for each in ("warmup", *known)]
            raise unknown(f"option of {_owner(name)}", PREFIX + option, listed)
    for parameter in parameters:
        if parameter.default is Parameter.empty and parameter.name not in given:
            raise InvalidValue(f"{_owner(name)} needs the option {PREFIX}{parameter.name}")


def _owner(name: str) -> str:
    return f"schedule {name!r}"


def _warmed(rate: LearningRate, warmup: int) -> LearningRate:
    """Return `rate` after a linear ramp of `warmup` steps up to its first value.

    The ramp divides by warmup + 1, so that no step has rate 0 and the first step at the full rate
    is the schedule's first.

    References:
        Goyal et al. 2017, section 2.2 (gradual warmup).
    """
    start = rate(0)
    return lambda step: start * (step + 1) / (warmup + 1) if step < warmup else rate(step - warmup)


def constant(lr: float) -> LearningRate:
    """Return a constant rate: lr(t) = η.

    Args:
        lr: η, >= 0.

    Example:
        >>> constant(0.5)(1_000_000)
        0.5
    """
    return lambda step: lr


def stepwise(lr: float, *, every: int, gamma: float = 0.1) -> LearningRate:
    """Return step decay: lr(t) = η γ^⌊t / every⌋, as torch's StepLR(step_size=every, gamma).

    Args:
        lr: η, >= 0.
        every: the number of steps between two drops, >= 1.
        gamma: the factor γ of a drop, 0 < γ <= 1; 0.1 by default.

    Example:
        >>> [stepwise(100.0, every=2, gamma=0.1)(step) for step in (0, 1, 2)]
        [100.0, 100.0, 10.0]
    """
    every = whole(_owner("step"), f"{PREFIX}every", every, 1)
    gamma = number(_owner("step"), f"{PREFIX}gamma", gamma, DECAYS)
    return lambda step: float(lr * gamma ** (step // every))


def exponential(lr: float, *, gamma: float) -> LearningRate:
    """Return exponential decay: lr(t) = η γ^t, as torch's ExponentialLR(gamma).

    Args:
        lr: η, >= 0.
        gamma: the factor γ of each step, 0 < γ <= 1.

    Example:
        >>> [exponential(8.0, gamma=0.5)(step) for step in range(4)]
        [8.0, 4.0, 2.0, 1.0]
    """
    gamma = number(_owner("exponential"), f"{PREFIX}gamma", gamma, DECAYS)
    return lambda step: float(lr * gamma**step)


def inverse_time(lr: float, *, decay: float) -> LearningRate:
    """Return inverse time decay: lr(t) = η / (1 + decay t).

    The sum of the rates is infinite, and the sum of their squares is finite.

    Args:
        lr: η, >= 0.
        decay: the decay, >= 0, in 1 / steps.

    Example:
        >>> [inverse_time(12.0, decay=1.0)(step) for step in range(4)]
        [12.0, 6.0, 4.0, 3.0]

    References:
        Robbins & Monro 1951.
    """
    decay = number(_owner("inverse_time"), f"{PREFIX}decay", decay, NOT_NEGATIVE)
    return lambda step: lr / (1.0 + decay * step)


def polynomial(lr: float, *, total: int, power: float = 1.0, end_lr: float = 0.0) -> LearningRate:
    """Return polynomial decay: lr(t) = end + (η - end) (1 - min(t, total) / total)^power.

    With end_lr = 0 it is torch's PolynomialLR(total_iters=total, power).

    Args:
        lr: η, >= 0.
        total: the step at which `end_lr` is reached, >= 1.
        power: the exponent, > 0; 1 (linear) by default.
        end_lr: the final rate, >= 0; 0 by default.

    Example:
        >>> [polynomial(8.0, total=4, power=2)(step) for step in range(6)]
        [8.0, 4.5, 2.0, 0.5, 0.0, 0.0]
    """
    owner = _owner("polynomial")
    total = whole(owner, f"{PREFIX}total", total, 1)
    power = number(owner, f"{PREFIX}power", power, POSITIVE)
    end_lr = number(owner, f"{PREFIX}end_lr", end_lr, NOT_NEGATIVE)
    return lambda step: float(end_lr + (lr - end_lr) * (1.0 - min(step, total) / total) ** power)


def cosine(lr: float, *, total: int, end_lr: float = 0.0) -> LearningRate:
    """Return cosine decay: lr(t) = end + (η - end) (1 + cos(π min(t, total) / total)) / 2.

    Up to `total` it is torch's CosineAnnealingLR(T_max=total, eta_min=end_lr); after that torch's
    rate rises again, and this one stays.

    Args:
        lr: η, >= 0.
        total: the step at which `end_lr` is reached, >= 1.
        end_lr: the final rate, >= 0; 0 by default.

    Example:
        >>> [round(cosine(4.0, total=2)(step), 12) for step in range(4)]
        [4.0, 2.0, 0.0, 0.0]

    References:
        Loshchilov & Hutter 2017, equation 5, without restarts.
    """
    total = whole(_owner("cosine"), f"{PREFIX}total", total, 1)
    end_lr = number(_owner("cosine"), f"{PREFIX}end_lr", end_lr, NOT_NEGATIVE)
    return lambda step: end_lr + (lr - end_lr) * (1.0 + cos(pi * min(step, total) / total)) / 2.0


schedules: Registry[Callable[..., LearningRate]] = Registry("schedule")
schedules.add("constant", constant)
schedules.add("step", stepwise)
schedules.add("exponential", exponential)
schedules.add("inverse_time", inverse_time)
schedules.add("polynomial", polynomial)
schedules.add("cosine", cosine)
