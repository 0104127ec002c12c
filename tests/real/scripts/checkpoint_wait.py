"""Waits for a checkpoint of the run, for scripts that end in the middle of it."""

import time
from pathlib import Path

from shoal.errors import DataMissing
from shoal.storage.checkpoints import Checkpoints


def wait_for_a_checkpoint(runs: str) -> int:
    """Return the clock of the newest complete checkpoint of the only run in a folder."""
    [folder] = Path(runs).iterdir()
    while True:
        try:
            return Checkpoints(folder / "checkpoints").choose()
        except DataMissing:
            time.sleep(0.01)  # polls files of other processes: there is no event to wait for
