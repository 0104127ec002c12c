"""Bugs of detection that somebody could write, each planted by replacing one method."""

from contextlib import contextmanager
from unittest.mock import patch

from shoal.protocol.scheduler import failure_detector as detection_module
from shoal.protocol.scheduler.failure_detector import FailureDetector


@contextmanager
def stopped_scheduler_blames_the_others():
    """A scheduler that was stopped declares members dead whose messages it has not read yet."""
    right = FailureDetector.silent

    def silent(self, now):
        return right(self, now) or right(self, now)  # no second look

    with (
        patch.object(detection_module, "LOOK_S", 0.0),
        patch.object(FailureDetector, "silent", silent),
        patch.object(FailureDetector, "held_up", lambda self, now: None),
    ):
        yield


@contextmanager
def sole_copy_is_given_up():
    """Silence is proof enough, whoever has the rows."""
    with patch.object(FailureDetector, "spare", lambda self, node, now: False):
        yield


@contextmanager
def busy_is_dead():
    """Heartbeats of a process whose loop is busy count for nothing."""
    with patch.object(FailureDetector, "process_lives", lambda self, beat, now: None):
        yield
