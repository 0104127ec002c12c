"""The settings of `shoal run` and `shoal worker` for a script's optimizers, in the environment."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from shoal.client.defaults import OptimizerDefaults
from shoal.engines.pairs import values_of, words_of
from shoal.errors import InvalidValue

RESUMED = "SHOAL_RESUMED"


class ScriptOptions(Protocol):
    """Options of the commands that run a script."""

    @property
    def strategy(self) -> str: ...
    @property
    def set(self) -> Mapping[str, Any]: ...
    @property
    def staleness(self) -> int: ...
    @property
    def optimizer_options(self) -> Mapping[str, Any]: ...


class Resumed(msgspec.Struct, frozen=True):
    """The checkpoint that a script's run continues from.

    clock:   the checkpoint's clock; 0 for a new run
    tables:  the names of the tables in it
    steps:   the steps before it, as `Context.steps_before`
    """

    clock: int = 0
    tables: tuple[str, ...] = ()
    steps: tuple[tuple[int, int], ...] = ()

    @property
    def variables(self) -> dict[str, str]:
        """The environment variable that has it."""
        return {RESUMED: msgspec.json.encode(self).decode()}


def resumed_from(env: Mapping[str, str]) -> Resumed:
    """Return the checkpoint that the environment names; that of a new run if it names none.

    Raises:
        InvalidValue: the variable is not as `Resumed.variables` has it
    """
    try:
        return msgspec.json.decode(env.get(RESUMED, "{}"), type=Resumed)
    except msgspec.MsgspecError as error:
        raise InvalidValue(f"{RESUMED} is not as --resume sets it: {error}") from None


def variables_of(options: ScriptOptions) -> dict[str, str]:
    """Return the environment variables of these options; "" for an option that is not given.

    >>> from shoal.engines.options import WorkerRole
    >>> variables_of(WorkerRole(strategy="diloco", set={"tau": 16}))["SHOAL_SET"]
    'tau=16'
    """
    return {
        "SHOAL_STRATEGY": options.strategy,
        "SHOAL_SET": shlex.join(words_of(options.set)),
        "SHOAL_STALENESS": str(options.staleness or ""),
        "SHOAL_OPTIMIZER_OPTIONS": shlex.join(words_of(options.optimizer_options)),
    }


def defaults_from(env: Mapping[str, str]) -> OptimizerDefaults:
    """Return the settings for a script's optimizers in the environment.

    Raises:
        InvalidValue: a variable that cannot be read; the text names it.

    >>> defaults_from({"SHOAL_SET": "tau=16 mode=async"}).settings
    {'tau': 16, 'mode': 'async'}
    """
    staleness = env.get("SHOAL_STALENESS") or "0"
    if not staleness.isdecimal():
        raise InvalidValue(f"SHOAL_STALENESS={staleness!r} is not a whole number, 0 or more")
    return OptimizerDefaults(
        strategy=env.get("SHOAL_STRATEGY", ""),
        settings=_pairs(env, "SHOAL_SET"),
        staleness=int(staleness),
        hyperparameters=_pairs(env, "SHOAL_OPTIMIZER_OPTIONS"),
    )


def _pairs(env: Mapping[str, str], name: str) -> dict[str, Any]:
    text = env.get(name, "")
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InvalidValue(f"{name}={text!r} is not NAME=VALUE words: {error}") from None
    return values_of(words, name)
