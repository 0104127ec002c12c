"""A pool of processes that simulate, and end where their caller is interrupted."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager

import torch

from shoal.node.memory import keep_memory


@contextmanager
def process_pool(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """Yield a pool of forked processes of one thread each; an error of the caller ends them.

    Signals are the caller's: one that reaches the whole process group, as Ctrl-C does, interrupts
    the caller, who ends the processes.
    """
    others = multiprocessing.active_children()  # children of the caller
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("fork"), _begin_process) as pool:
        try:
            yield pool
        except BaseException:
            # the pool sees that they are dead, drops what is not done, and is waited for; without
            # the wait its thread ends while the interpreter's exit signals to it (a trace)
            for child in multiprocessing.active_children():
                if child not in others:
                    child.terminate()
            raise


def _begin_process() -> None:
    """Leave signals to the caller, and keep memory for the next batch, as workers do."""
    keep_memory()
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
