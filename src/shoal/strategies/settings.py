"""What settings of strategies have in common; each strategy's own stand with its class.

A setting has a name, a meaning with the symbol of the paper, a default and bounds
(`--set name=value`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from shoal.errors import InvalidValue
from shoal.registry import unknown
from shoal.tables.consistency import Quorum


class StrategySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base class of the settings of a strategy, each with a default: `--set name=value`.

    Attributes:
        optimizer: the optimizer of a job that names none.
    """

    optimizer: ClassVar[str] = "adam"


def setting(text: str, **bounds: Any) -> Any:
    """Return the annotation of a field: its description, and the bounds of `msgspec.Meta`."""
    return msgspec.Meta(description=text, **bounds)


def settings_of(
    name: str, kind: type[StrategySettings], given: Mapping[str, Any]
) -> StrategySettings:
    """Return the settings of a strategy, with defaults for those that are not given.

    Raises:
        UnknownName: the strategy does not have a setting.
        InvalidValue: a value has the wrong type, or is out of its range.
    """
    for each in given:
        if each not in kind.__struct_fields__:
            raise unknown(f"setting of strategy {name!r}", each, kind.__struct_fields__)
    try:
        return msgspec.convert(dict(given), kind)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$.")
        raise InvalidValue(
            f"setting {where.rstrip('`')} of strategy {name!r}: {what[0].lower()}{what[1:]}"
        ) from None


def quorum_of(quorum: int, grace_s: float, workers: int) -> Quorum | None:
    """Return the rule that closes rounds at a quorum; None without a quorum (0).

    Raises:
        InvalidValue: a quorum of more workers than there are, or a grace window without a quorum.
    """
    if quorum > workers:
        raise InvalidValue(f"quorum {quorum} is more than the {workers} workers")
    if grace_s and not quorum:
        raise InvalidValue("grace_s is a time after a quorum: give quorum as well")
    return Quorum(quorum, grace_s) if quorum else None


# fmt: off
class QuorumSettings(StrategySettings, frozen=True, kw_only=True):
    """Settings of strategies whose rounds may close without some workers."""

    quorum: Annotated[int, setting("workers that are enough for a round; 0: all (with mode async, all but one)", ge=0)] = 0
    grace_s: Annotated[float, setting("seconds that others still have once a quorum has pushed", ge=0)] = 0.0


Tau = Annotated[int, setting("H: local steps between two exchanges", ge=1)]

ExchangeBy = Annotated[Literal["servers", "allreduce"], setting("what averages: servers, or the workers among themselves, without servers")]
# fmt: on
