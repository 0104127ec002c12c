"""What benchmarks count as processor time is what the system counts."""

import os
import subprocess
import sys
import time
from threading import Thread

import pytest

from shoal.apps.bench.processor_time import ProcessorTime, spent


def work(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def test_it_is_the_clock_of_a_process_with_its_threads():
    for _ in range(3):
        thread = Thread(target=work, args=(0.02,))
        thread.start()
        thread.join()
        before = time.process_time()
        counted = spent(os.getpid())
        assert before <= counted <= time.process_time()


def test_it_is_the_clock_of_another_process():
    script = (
        "import time; print(time.process_time(), flush=True); input(); print(time.process_time())"
    )
    piped = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", script], **piped) as child:
        before = float(child.stdout.readline())
        counted = spent(child.pid)
        after = float(child.communicate("\n")[0])
    assert 0 < before <= counted <= after


def test_time_counts_for_the_side_that_it_was_spent_on():
    meter = ProcessorTime([os.getpid()])
    for side, seconds in ((0, 0.01), (1, 0.03), (0, 0.01)):
        with meter.during(side):
            work(seconds)
        work(0.02)  # for no side
    whole = time.process_time()
    assert meter.seconds[0] >= 0.02
    assert meter.seconds[1] >= 0.03
    assert sum(meter.seconds.values()) <= whole


def test_a_process_that_is_gone_is_an_error():
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        pass
    with pytest.raises(OSError, match="Invalid argument"):
        spent(child.pid)
