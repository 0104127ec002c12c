"""A scheduler with its first members, and with a second worker group."""

import pytest

from tests.protocol.rigs import SchedulerRig


@pytest.fixture
def started() -> SchedulerRig:
    """A scheduler, a server and two workers in their first view."""
    rig = SchedulerRig()
    rig.join("server-0", "worker-0", "worker-1")
    return rig


@pytest.fixture
def attached(started: SchedulerRig) -> SchedulerRig:
    """With them, in the second view: guest-0, the only worker of the group eval."""
    started.guest("guest-0")
    started.promise()
    return started
