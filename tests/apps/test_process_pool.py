"""A pool of processes, and what is left of it where its caller is interrupted."""

import multiprocessing
import signal
import threading
import time

import pytest

from shoal.apps.process_pool import process_pool


def test_results_come_from_processes_that_ignore_the_interrupt():
    with process_pool(2) as pool:
        assert list(pool.map(pow, (2, 3), (5, 4))) == [32, 81]
        assert pool.submit(signal.getsignal, signal.SIGINT).result() == signal.SIG_IGN
    assert not multiprocessing.active_children()


def test_an_interrupt_ends_the_processes_and_the_thread_of_the_pool():
    threads = threading.active_count()
    began = time.monotonic()

    def interrupted():
        with process_pool(2) as pool:
            for _ in range(20):
                pool.submit(time.sleep, 60)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert time.monotonic() - began < 30
    assert not multiprocessing.active_children()
    assert threading.active_count() == threads  # none that the interpreter's exit would signal to
