"""A sample of clicks, made from a seed, to try things out without data of one's own."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from shoal.storage.files import write_whole

TRAIN, TEST = 20_000, 5_000
SIZES = (1000, 200, 50, 24, 7)  # users, advertisements, sites, hours, weekdays


def write_sample(folder: Path, seed: int) -> tuple[Path, Path]:
    """Write a training and a test file in the dummy format.

    Clicks are drawn with the chances of a factorisation machine: a bias, a weight for each value of
    five fields (their frequencies follow Zipf's law), and the tastes of users for advertisements,
    of rank 4.
    """
    random = np.random.default_rng(seed)
    first = np.concatenate([[0], np.cumsum(SIZES[:-1])])
    weights = [random.normal(0, 0.5, size) for size in SIZES]
    users, ads = random.normal(0, 0.7, (SIZES[0], 4)), random.normal(0, 0.7, (SIZES[1], 4))
    paths = folder / "sample_train.txt", folder / "sample_test.txt"
    for path, rows in zip(paths, (TRAIN, TEST), strict=True):
        chosen = [np.minimum(random.zipf(1.3, rows) - 1, size - 1) for size in SIZES]
        logits = -1.5 + sum(w[c] for w, c in zip(weights, chosen, strict=True))
        logits += (users[chosen[0]] * ads[chosen[1]]).sum(1)
        clicks = random.random(rows) < 1 / (1 + np.exp(-logits))
        keys = np.stack(chosen, 1) + first
        lines = (
            f"{int(c)} {' '.join(map(str, row))}\n" for c, row in zip(clicks, keys, strict=True)
        )
        write_whole(path, "".join(lines))
    return paths
