"""Scores: what a model said of rows, and what they were."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

TEST, PROGRESSIVE = "test.npz", "progressive.npz"  # in a worker's folder


class Scores:
    """Logits and labels, as they come. Workers leave them; figures are made of all of them."""

    def __init__(self) -> None:
        self._logits: list[np.ndarray] = []
        self._labels: list[np.ndarray] = []

    def add(self, logits: np.ndarray, labels: np.ndarray) -> None:
        self._logits.append(logits)
        self._labels.append(labels)

    def save(self, path: Path) -> None:
        none = [np.empty(0, np.float32)]
        np.savez(
            path,
            logits=np.concatenate(self._logits or none),
            labels=np.concatenate(self._labels or none),
        )


def figures(paths: Sequence[Path]) -> dict[str, float | None]:
    """AUC and log loss; nothing of no rows.

    None: the AUC where all labels are the same, and both where a score is no number.
    """
    from scipy.special import expit
    from sklearn.metrics import log_loss, roc_auc_score

    files = [np.load(path, allow_pickle=False) for path in paths]
    labels = np.concatenate([file["labels"] for file in files])
    if not len(labels):
        return {}
    chances = expit(np.concatenate([file["logits"] for file in files]).astype(np.float64))
    if not np.isfinite(chances).all():
        return {"auc": None, "log_loss": None}
    both = 0 < labels.mean() < 1
    return {
        "auc": float(roc_auc_score(labels, chances)) if both else None,
        "log_loss": float(log_loss(labels, chances, labels=[0, 1])),
    }
