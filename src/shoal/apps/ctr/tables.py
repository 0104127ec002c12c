"""The tables of a click-through-rate model: the initial values and the optimizers of their rows."""

from __future__ import annotations

from typing import Any

from shoal.apps.ctr.spec import CtrSpec
from shoal.tables.init import Init
from shoal.tables.spec import Access, Options

FACTOR_STD = 0.01


def bias_options(spec: CtrSpec) -> dict[str, Any]:
    """Return the options of the bias, the weight of every row, which has no penalty."""
    return {**_common(spec), "access": Access("ftrl", _rate(spec)), "init": Init()}


def linear_options(spec: CtrSpec) -> dict[str, Any]:
    """Return the options of the keys' weights."""
    access = Access("ftrl", {**_rate(spec), "l1": spec.l1, "l2": spec.l2})
    return {**_common(spec), **_bound(spec), "access": access, "init": Init()}


def factor_options(spec: CtrSpec) -> dict[str, Any]:
    """Return the options of the keys' factors (fm, deepfm)."""
    access = Access("adagrad", {"lr": spec.factor_lr, "initial_accumulator_value": 1.0})
    init = Init("normal", 0.0, FACTOR_STD, spec.seed)
    codecs = {"codec": spec.codec, "server_codec": spec.server_codec}
    return {**_common(spec), **_bound(spec), **codecs, "access": access, "init": init}


def _common(spec: CtrSpec) -> dict[str, Any]:
    # Losses are sums over a batch, so that a round's update is the sum of the workers' updates, as
    # in one process with all their rows.
    return {"consistency": spec.consistency, "merge": "sum"}


def _bound(spec: CtrSpec) -> dict[str, Any]:
    return {"max_rows": spec.max_rows, "evict": spec.evict, "key_lists": spec.key_lists}


def _rate(spec: CtrSpec) -> Options:
    return {"lr": spec.lr, "beta": spec.beta}
