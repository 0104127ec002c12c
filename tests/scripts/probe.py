"""Prints where two compiled loops are kept, and how many of the first were fetched from there."""

import numpy as np

from shoal.apps.word2vec.model import train_block
from shoal.jit import mixed

mixed(np.uint64(7))
print(mixed.stats.cache_path, train_block.stats.cache_path, len(mixed.stats.cache_hits))
