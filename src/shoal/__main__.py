"""The program `shoal`, which `python -m shoal` is as well.

It imports the commands only once it has handlers for Ctrl-C and SIGTERM: importing takes a while,
and an exception that interrupts it ends in a traceback.
"""

from __future__ import annotations

import atexit
import os
import signal

ENDS = (signal.SIGINT, signal.SIGTERM)


def end_at_once(number: int, _: object) -> None:
    """End the process with one line and a shell's exit status: there is nothing to clean up yet."""
    try:
        os.write(2, b"interrupted\n")
    finally:
        os._exit(128 + number)


def ignore_signals() -> None:
    """Ignore the signals at the end of the process, when its exit status is decided."""
    for number in ENDS:
        signal.signal(number, signal.SIG_IGN)


def main() -> None:
    """Run a command of `shoal`, which sets its own signal handlers (`cli/group.py`)."""
    for number in ENDS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as of a shell's background job
            signal.signal(number, end_at_once)
    atexit.register(ignore_signals)  # the first to be registered is the last to be called
    from shoal.cli import main as command

    command()


if __name__ == "__main__":
    main()
