"""ScriptEnvironment: what the process of a script is told, in environment variables."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from shoal.client.defaults import OptimizerDefaults
from shoal.collective.base import Collective
from shoal.engines.pairs import values_of, words_of
from shoal.errors import InvalidValue
from shoal.protocol.worker.options import OnTimeout

OF_CLIENTS = (  # fields of `ClientOptions`, too
    "init_timeout_s",
    "sync_timeout_s",
    "on_timeout",
    "collective",
    "listen",
    "probe_s",
    "drop_messages",
)
OF_OPTIMIZERS = ("strategy", "set", "staleness", "optimizer_options")  # options of commands, too


class Resumed(msgspec.Struct, frozen=True):
    """The checkpoint that a script's run continues from.

    clock:   the checkpoint's clock; 0 for a new run
    tables:  the names of the tables in it
    steps:   the steps before it, as `Context.steps_before`
    """

    clock: int = 0
    tables: tuple[str, ...] = ()
    steps: tuple[tuple[int, int], ...] = ()


class ScriptEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    """The variables that `shoal.init` reads: SHOAL_NAME for each field, which `shoal run` sets.

    Attributes:
        scheduler, token: the scheduler's address, and the cluster's shared secret.
        run_dir: the run's folder, for the events of `shoal.log`.
        rank, world_size: the rank to ask for, and the number of workers, lost ones included.
        servers: the number of servers to start where there is no cluster.
        launcher, rendezvous: what has started this process as a rank, and where ranks meet.
        init_timeout_s, sync_timeout_s, on_timeout, collective, listen, probe_s, drop_messages: as
            in `ClientOptions`.
        on_worker_loss: "stop" if an error of the script ends the run.
        strategy, set, staleness, optimizer_options: the defaults of `shoal.Optimizer`.
        resumed: the checkpoint that the run continues from.

    Example:
        >>> told = ScriptEnvironment(set={"tau": 16, "mode": "async"})
        >>> told.variables["SHOAL_SET"], ScriptEnvironment.read(told.variables) == told
        ('tau=16 mode=async', True)
    """

    scheduler: str = ""
    token: str = ""
    run_dir: str = ""
    rank: int = -1
    world_size: int = 0
    servers: int = 1
    launcher: str = ""
    rendezvous: str = ""
    init_timeout_s: float = 60.0
    sync_timeout_s: float = 10.0
    on_timeout: OnTimeout = "ask"
    collective: Collective = "ring"
    listen: str = ""
    probe_s: float = 0.5
    drop_messages: str = ""
    on_worker_loss: str = "stop"
    strategy: str = ""
    set: dict[str, Any] = {}
    staleness: Annotated[int, msgspec.Meta(ge=0)] = 0
    optimizer_options: dict[str, Any] = {}
    resumed: Resumed = Resumed()

    @property
    def variables(self) -> dict[str, str]:
        """All variables; an option that is not given is ""."""
        usual = ScriptEnvironment()
        return {
            _variable(name): "" if value == getattr(usual, name) else _text(value)
            for name, value in ((name, getattr(self, name)) for name in self.__struct_fields__)
        }

    @classmethod
    def read(cls, env: Mapping[str, str], **given: Any) -> ScriptEnvironment:
        """Return what an environment says.

        given:  the values of fields that do not come from there, except None

        Raises:
            InvalidValue: a variable that cannot be read; the text names it
        """
        hints = get_type_hints(cls, include_extras=True)
        found = {name: value for name, value in given.items() if value is not None}
        for name in cls.__struct_fields__:
            if name not in found and (text := env.get(_variable(name))):
                found[name] = _value(_variable(name), text, hints[name])
        return cls(**found)

    @property
    def defaults(self) -> OptimizerDefaults:
        """The defaults of `shoal.Optimizer`."""
        return OptimizerDefaults(self.strategy, self.set, self.staleness, self.optimizer_options)


def _variable(field: str) -> str:
    return f"SHOAL_{field.upper()}"


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return shlex.join(words_of(value))
    return msgspec.json.encode(value).decode() if isinstance(value, Resumed) else str(value)


def _value(name: str, text: str, kind: Any) -> Any:
    """Return the value of a variable."""
    least = None
    if get_origin(kind) is Annotated:
        kind, meta = get_args(kind)
        least = meta.ge
    if get_origin(kind) is dict:
        try:
            return values_of(shlex.split(text), name)
        except ValueError as error:
            raise InvalidValue(f"{name}={text!r} is not NAME=VALUE words: {error}") from None
    if kind is Resumed:
        try:
            return msgspec.json.decode(text, type=Resumed)
        except msgspec.MsgspecError as error:
            raise InvalidValue(f"{name} is not as --resume sets it: {error}") from None
    if get_origin(kind) is Literal:
        if text not in get_args(kind):
            raise InvalidValue(f"{name} is one of {', '.join(get_args(kind))}, not {text!r}")
        return text
    try:
        value = kind(text)
    except ValueError:
        value = None
    if value is None or (least is not None and value < least):
        what = {int: "whole number", float: "number"}[kind] + (", 0 or more" if least == 0 else "")
        raise InvalidValue(f"{name}={text!r} is not a {what}")
    return value
