"""AUC of `shoal train ctr` with its default flags, on rows that are sorted by label.

    python tests/tools/ctr_defaults.py DATA [--seeds 5] [-- FLAG ...]

DATA is the folder with data sets (`libsvm/a9a.gz`, ...). Each is written in order of its labels,
clicks first, trained on with each seed, and scored on test rows. Beside it is the best of
scikit-learn's LogisticRegression with C of 0.1 and 1, whatever the order. The goal is to be at most
0.005 below it. Flags after `--` are passed on.
"""

import argparse
import gzip
import json
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from shoal.apps.ctr.readers import Reader
from shoal.apps.ctr.shuffling import joined

Split = tuple[str, str | int]  # training and test rows; or how many of one file are trained on
SETS: dict[str, Split] = {
    "a9a": ("libsvm/a9a.gz", "libsvm/a9a.t.gz"),
    "census": ("census/census_148d_train.dummy.gz", "census/census_148d_test.dummy.gz"),
    "agaricus": ("libsvm/agaricus.txt.train.gz", "libsvm/agaricus.txt.test.gz"),
    "Criteo": ("criteo/criteo_rows00001-08000.txt.gz", 6400),
}
GOAL = 0.005


def split(data: Path, folder: Path, train: str, test: str | int) -> tuple[Path, Path]:
    """The two files, of which the first is in order of its labels."""
    rows = gzip.decompress((data / train).read_bytes()).decode().splitlines()
    if isinstance(test, int):
        rows, others = rows[:test], rows[test:]
    else:
        others = gzip.decompress((data / test).read_bytes()).decode().splitlines()
    rows.sort(key=lambda line: -float(line.split()[0]))
    files = folder / "train", folder / "test"
    for file, lines in zip(files, (rows, others), strict=True):
        file.write_text("\n".join(lines) + "\n")
    return files


def linear(train: Path, test: Path) -> float:
    """The AUC of scikit-learn's logistic regression."""
    one, other = (joined(list(Reader(each, 1000))) for each in (train, test))
    columns = np.unique(np.concatenate([one.keys, other.keys]))
    matrices = [
        csr_matrix(
            (each.values, np.searchsorted(columns, each.keys), [*each.offsets, len(each.keys)]),
            shape=(len(each), len(columns)),
        )
        for each in (one, other)
    ]
    warnings.simplefilter("ignore")  # that it has not converged
    fits = (LogisticRegression(C=c, max_iter=2000).fit(matrices[0], one.labels) for c in (0.1, 1))
    scores = (fit.decision_function(matrices[1]) for fit in fits)
    return max(float(roc_auc_score(other.labels, each)) for each in scores)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    given, flags = parser.parse_known_args()
    for name, (train, test) in SETS.items():
        with tempfile.TemporaryDirectory(prefix="shoal-ctr-") as path:
            rows, others = split(given.data, Path(path), train, test)
            command = [sys.executable, "-m", "shoal", "train", "ctr", rows, "--test", others]
            command += ["--out", path, "--json", *(each for each in flags if each != "--")]
            auc = []
            for seed in range(given.seeds):
                ended = subprocess.run(
                    [*map(str, command), "--seed", str(seed)], capture_output=True, check=True
                )
                auc.append(json.loads(ended.stdout.splitlines()[-1])["test"]["auc"])
            best = linear(rows, others)
        met = "met" if min(auc) >= best - GOAL else "MISSED"
        print(f"{name}: {min(auc):.4f}..{max(auc):.4f}, scikit-learn {best:.4f}: {met}", flush=True)


if __name__ == "__main__":
    main()
