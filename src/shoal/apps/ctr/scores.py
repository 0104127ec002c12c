"""Scores: the logits that a model gives to rows, and the labels of the rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from shoal.extras import require
from shoal.storage.files import damaged, read_arrays, write_whole
from shoal.storage.run_folder import RunFolder

TEST, PROGRESSIVE = "test.npz", "progressive.npz"  # in a worker's folder
METRICS = "a click-through-rate model, for its AUC and log loss,"  # which scikit-learn computes


class EpochScore(msgspec.Struct):
    """The figures of the validation rows after an epoch (from 1)."""

    epoch: int
    auc: float | None
    log_loss: float | None


def scores_before(run: RunFolder) -> list[dict[str, Any]]:
    """Return the scores of a run that has ended, by epoch; [] for any other run.

    Raises:
        DataCorrupt: the scores are not as they were written
    """
    found = run.result(0).get("valid", [])
    try:
        return [msgspec.to_builtins(each) for each in msgspec.convert(found, list[EpochScore])]
    except msgspec.ValidationError as error:
        raise damaged(run.path / "workers", f"the scores of its epochs: {error}") from None


class Scores:
    """The logits and labels of rows. Workers save them; figures are computed from all of them."""

    def __init__(self) -> None:
        self._logits: list[np.ndarray] = []
        self._labels: list[np.ndarray] = []

    def add(self, logits: np.ndarray, labels: np.ndarray) -> None:
        self._logits.append(logits)
        self._labels.append(labels)

    def all(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the logits and labels of all rows."""
        none = [np.empty(0, np.float32)]
        return np.concatenate(self._logits or none), np.concatenate(self._labels or none)

    def save(self, path: Path) -> None:
        logits, labels = self.all()

        def write(fresh: Path) -> None:
            with fresh.open("xb") as file:  # savez adds .npz to a path
                np.savez(file, logits=logits, labels=labels)

        write_whole(path, write)


def figures(paths: Sequence[Path]) -> dict[str, float | None]:
    """Compute the AUC and the log loss of all scores in some files, as `figures_of` does.

    Raises:
        DataMissing, DataCorrupt: a file is missing, or is not as it was written
    """
    logits, labels = zip(*(_read(path) for path in paths), strict=True)
    return figures_of(np.concatenate(logits), np.concatenate(labels))


def figures_of(logits: np.ndarray, labels: np.ndarray) -> dict[str, float | None]:
    """Compute the AUC and the log loss; return {} without rows.

    The AUC is None if all labels are the same; both are None if a score is not a number.
    """
    if not len(labels):
        return {}
    require("sklearn", METRICS)
    from scipy.special import expit
    from sklearn.metrics import log_loss, roc_auc_score

    chances = expit(logits.astype(np.float64))
    if not np.isfinite(chances).all():
        return {"auc": None, "log_loss": None}
    both = 0 < labels.mean() < 1
    return {
        "auc": float(roc_auc_score(labels, chances)) if both else None,
        "log_loss": float(log_loss(labels, chances, labels=[0, 1])),
    }


def _read(path: Path) -> tuple[np.ndarray, np.ndarray]:
    logits, labels = read_arrays(path, "logits", "labels")
    fits = logits.shape == labels.shape and logits.ndim == 1
    if not fits or logits.dtype != np.float32 or not np.isin(labels, (0, 1)).all():
        raise damaged(path, "it has no logits and labels of the same rows")
    return logits, labels
