"""Waits for what no event tells of."""

import threading
import time


def until(true, what="it did not come about", limit_s=30.0):
    end = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < end, what
        threading.Event().wait(0.01)
