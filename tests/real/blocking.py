"""Servers import this: an update of rows blocks while there is a file of its process.

The folder is in the environment, as `SHOAL_TEST_FOLDER`.
"""

import os
import threading
from pathlib import Path

from shoal.tables.dense.shard import DenseShard

FILE = Path(os.environ["SHOAL_TEST_FOLDER"], f"block-{os.getpid()}")
apply = DenseShard.apply


def blocking_apply(self, staged, lr):
    never = threading.Event()
    while FILE.exists():
        never.wait(0.05)
    return apply(self, staged, lr)


DenseShard.apply = blocking_apply
