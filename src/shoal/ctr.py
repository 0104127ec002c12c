"""`shoal.ctr`: click-through-rate models on sparse features, from Python.

train      train a model, as `shoal train ctr` does
Scorer     predict with a model, during its training or afterwards
key        the key of a value of a named column, which is its row in the model's tables

Example:
    >>> result = shoal.ctr.train("train.libsvm", test="test.libsvm")  # doctest: +SKIP
    >>> with shoal.ctr.Scorer(result.run_dir) as scorer:  # doctest: +SKIP
    ...     scorer.predict(["3:1 7:0.5"])
"""

from __future__ import annotations

from shoal.apps.ctr.columns.keys import key
from shoal.apps.ctr.command import train
from shoal.apps.ctr.predicting import Scorer

__all__ = ["Scorer", "key", "train"]
