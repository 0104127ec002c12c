"""The event log on a disk that is full."""

import resource
import signal

import pytest

from shoal.errors import DataCorrupt
from shoal.reports.events import read_events
from shoal.storage.event_log import EventLog, NewEvents
from shoal.storage.run_folder import RunFolder


@pytest.fixture
def full():
    """Limits the size of files that this process writes."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("room", [0, 5])
def test_lines_are_lost_on_a_full_disk_and_counted_when_there_is_room(tmp_path, full, room):
    """With room for a part of a line that part stays, and is no event."""
    path = RunFolder.create(tmp_path, "run").events
    log, new = EventLog(path, "server-0", 0.0), NewEvents(path)
    log.write("before")
    full(path.stat().st_size + room)
    log.write("lost")
    log.write("lost too")
    full(1 << 20)
    log.write("after")
    log.write("later")
    log.close()
    events = list(read_events(path, torn=True))
    assert [event["kind"] for event in events] == ["before", "after", "later"]
    assert [event.get("lost_lines", 0) for event in events] == [0, 2, 0]
    assert [event["kind"] for event in new()][-3:] == ["before", "after", "later"]
    if room:
        with pytest.raises(DataCorrupt, match="line 3"):
            list(read_events(path))
