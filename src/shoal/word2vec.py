"""`shoal.word2vec`: word embeddings, from Python.

train      train vectors, as `shoal train word2vec` does
Vectors    the vectors of a run, and the nearest words

Example:
    >>> result = shoal.word2vec.train("novels.tar.gz", workers=2)  # doctest: +SKIP
    >>> shoal.word2vec.Vectors.load(result.run_dir).similar("king")  # doctest: +SKIP
"""

from __future__ import annotations

from shoal.apps.word2vec.command import train
from shoal.apps.word2vec.vectors import Vectors

__all__ = ["Vectors", "train"]
