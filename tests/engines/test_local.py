"""LocalEngine: what Ctrl-C does to it."""

import os
import signal

import pytest

from shoal.engines.base import Task
from shoal.engines.local import LocalEngine
from shoal.runtime.folder import RunFolder


class Swallows:
    """What is raised in a finaliser is lost."""

    def __del__(self):
        signal.raise_signal(signal.SIGINT)


def test_a_ctrl_c_that_was_lost_ends_the_next_wait(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.unraisablehook", lambda lost: None)
    before = signal.getsignal(signal.SIGINT)
    engine = LocalEngine(RunFolder.create(tmp_path, "x"))
    with engine:
        engine.start(Task("waits", "signal:pause", {}, preload=False))
        Swallows()
        with pytest.raises(KeyboardInterrupt):
            engine.join()
    assert signal.getsignal(signal.SIGINT) is before
    assert not engine.sockets.exists()


def test_a_handler_of_the_callers_own_stays(tmp_path):
    seen = []
    before = signal.signal(signal.SIGINT, lambda *_: seen.append(True))
    try:
        with LocalEngine(RunFolder.create(tmp_path, "x")):
            os.kill(os.getpid(), signal.SIGINT)
        assert seen
    finally:
        signal.signal(signal.SIGINT, before)
