"""The settings of strategies, one class each: name, meaning, default and bounds (`--set name=value`).

The texts have the symbols of the papers. The module is importable without torch.
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


class SyncSettings(QuorumSettings, frozen=True, kw_only=True):
    """Settings of "sync"."""

    merge: Annotated[Literal["mean", "median", "trimmed_mean"], setting("how gradients are merged; the latter two bear wrong ones")] = "mean"
    trim: Annotated[float, setting("share of the gradients left out at either end, of trimmed_mean", ge=0, lt=0.5)] = 0.0


Tau = Annotated[int, setting("H: local steps between two exchanges", ge=1)]

ExchangeBy = Annotated[Literal["servers", "allreduce"], setting("what averages: servers, or the workers among themselves, without servers")]


class DownpourSettings(StrategySettings, frozen=True, kw_only=True):
    """Settings of "downpour"."""

    n_push: Annotated[int, setting("n_push: batches whose gradients are pushed together", ge=1)] = 4
    n_fetch: Annotated[int, setting("n_fetch: batches between two pulls of the parameters", ge=1)] = 4
    local_lr: Annotated[float, setting("alpha: rate of the steps on a worker's own parameters; -1: the optimizer's", ge=-1)] = -1.0


class DelayCompensationSettings(StrategySettings, frozen=True, kw_only=True):
    """Settings of "dc_asgd"."""

    lam: Annotated[float, setting("lambda_0: strength of the compensation; the paper has 0.04 constant and 2 adaptive", ge=0)] = 2.0
    adaptive: Annotated[bool, setting("divide by the root of the gradients' mean square (DC-ASGD-a)")] = True
    mean_square: Annotated[float, setting("m: memory of that mean square", ge=0, lt=1)] = 0.95
    epsilon: Annotated[float, setting("added to the mean square", gt=0)] = 1e-7


class ElasticSettings(StrategySettings, frozen=True, kw_only=True):
    """Settings of "easgd"."""

    tau: Annotated[int, setting("tau: steps between two exchanges with the centre", ge=1)] = 10
    beta: Annotated[float, setting("beta = p alpha, of p workers: what all together move the centre", gt=0)] = 0.9


class ElasticMomentumSettings(ElasticSettings, frozen=True, kw_only=True):
    """Settings of "eamsgd"."""

    optimizer: ClassVar[str] = "sgd"  # the paper's: the momentum is the strategy's own
    delta: Annotated[float, setting("delta: Nesterov momentum of a worker", ge=0, lt=1)] = 0.99


class AveragingSettings(StrategySettings, frozen=True, kw_only=True):
    """Settings of "model_averaging"."""

    tau: Tau = 16
    exchange: ExchangeBy = "servers"


class PostLocalSettings(StrategySettings, frozen=True, kw_only=True):
    """Settings of "local_sgd"."""

    tau: Tau = 16
    after: Annotated[int, setting("t': rounds with one step each before the first with tau steps", ge=0)] = 0
    exchange: ExchangeBy = "servers"


class FedAvgSettings(StrategySettings, frozen=True, kw_only=True):
    """Settings of "fedavg"."""

    fraction: Annotated[float, setting("C: share of the workers that take part in a round", gt=0, le=1)] = 1.0
    local_epochs: Annotated[int, setting("E: passes of a worker over its own data in a round", ge=1)] = 1
    seed: Annotated[int, setting("seed of the draws of who takes part", ge=0)] = 0
    exchange: ExchangeBy = "servers"


class BMUFSettings(StrategySettings, frozen=True, kw_only=True):
    """Settings of "bmuf"."""

    tau: Tau = 16
    block_momentum: Annotated[float, setting("eta: momentum of the blocks; -1 for 1 - 1/N with N workers", ge=-1, lt=1)] = -1.0
    block_lr: Annotated[float, setting("zeta: learning rate of the blocks", gt=0)] = 1.0
    nesterov: Annotated[bool, setting("workers start from where the momentum leads (NBM), not from the classic position (CBM)")] = False
    exchange: ExchangeBy = "servers"


class DiLoCoSettings(QuorumSettings, frozen=True, kw_only=True):
    """Settings of "diloco"."""

    tau: Annotated[int, setting("H: inner steps between two exchanges", ge=1)] = 50
    mode: Annotated[Literal["sync", "async"], setting("async: what comes late for its round goes into the present one")] = "sync"
    outer_lr: Annotated[float, setting("learning rate of the outer optimizer", gt=0)] = 0.7
    outer_momentum: Annotated[float, setting("Nesterov momentum of the outer optimizer; 0: none", ge=0, lt=1)] = 0.9
    staleness_power: Annotated[float, setting("p: what comes s rounds late is divided by (1 + s)^p; async", ge=0)] = 0.5
    exchange: ExchangeBy = "servers"


class PeerToPeerSettings(StrategySettings, frozen=True, kw_only=True):
    """Settings of "p2p"."""

    graph: Annotated[Literal["complete", "ring"], setting("whose neighbours workers are: of all others, or of the next rank on either side")] = "complete"
    mode: Annotated[Literal["sync", "async"], setting("async: mix with the newest parameters that have arrived, without waiting")] = "sync"


class StreamingDiLoCoSettings(StrategySettings, frozen=True, kw_only=True):
    """Settings of "streaming_diloco"."""

    tau: Annotated[int, setting("H: inner steps between two exchanges of a fragment, a multiple of fragments", ge=1)] = 40
    fragments: Annotated[int, setting("P: parts of the parameters, exchanged one after the other", ge=1, le=1024)] = 4
    overlap: Annotated[int, setting("tau: inner steps that are taken while a fragment is exchanged", ge=0)] = 1
    mixing: Annotated[float, setting("alpha: weight of a worker's own parameters where they meet what has come meanwhile", ge=0, lt=1)] = 0.5
    outer_lr: Annotated[float, setting("learning rate of the outer optimizer", gt=0)] = 0.7
    outer_momentum: Annotated[float, setting("Nesterov momentum of the outer optimizer; 0: none", ge=0, lt=1)] = 0.9
# fmt: on
