"""What the scripts beside this one call at each step: of worker 1 it does once what is to happen.

All of them lie in the folder of a run, where the file `inside` says what that is, if anything.
"""

import os
import time
from pathlib import Path

STEPS, STRUCK_AT = 40, 8
INSIDE = ("exit 0", "exit 1", "raises")
FOLDER = Path(__file__).parent


def strike(mine, step):
    time.sleep(0.05)  # the time of a training step
    (FOLDER / f"at-{mine}").write_text(str(step))
    struck, inside = FOLDER / "struck", FOLDER / "inside"
    if mine == 1 and step == STRUCK_AT and not struck.exists() and inside.exists():
        struck.touch()
        match inside.read_text():
            case "exit 0":
                os._exit(0)
            case "exit 1":
                os._exit(1)
            case "raises":
                raise RuntimeError("the loss is nan")
