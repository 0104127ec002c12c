"""The processes of a run: which deaths it survives."""

import pytest

from shoal.engines.base import Task
from shoal.engines.processes import Processes
from shoal.errors import InvalidValue, ProcessDied
from shoal.protocol.supervision.supervisor import LossPolicy
from shoal.storage.event_log import EventLog
from shoal.storage.run_folder import RunFolder

pytestmark = pytest.mark.real


@pytest.fixture
def join(tmp_path):
    """Runs a process to the run's end; returns how often it was started."""
    counter = tmp_path / "started"

    def join(times, how, **options):
        given = {"counter": str(counter), "times": times, "how": how}
        folder = RunFolder.create(tmp_path, "run")
        with Processes(folder) as processes:
            log = EventLog(folder.events, "scheduler", 0.0)  # which there is none of
            log.write("view", reason="all have joined", whole=True, servers=1, workers=0)
            log.close()
            processes.start(Task("server-0", "tests.engines.failing:fails", given, preload=()))
            processes.join(policy=LossPolicy(**{k: frozenset(v) for k, v in options.items()}))
        return len(counter.read_text())

    return join


@pytest.mark.parametrize("how", ["error", "status"])
def test_a_process_that_fails_is_started_again_where_others_have_its_state(join, how):
    assert join(2, how, restarted=["server-0"]) == 3


@pytest.mark.parametrize("how", ["error", "status"])
def test_a_run_goes_on_without_a_process_that_fails_and_is_given_up(join, how):
    assert join(1, how, given_up=["server-0", "server-1"]) == 1


@pytest.mark.parametrize("how", ["error", "status"])
def test_a_run_ends_where_all_are_lost_that_it_could_go_on_without(join, how):
    with pytest.raises(ProcessDied, match="server-0"):
        join(1, how, given_up=["server-0"])


@pytest.mark.parametrize(
    ("how", "told"), [("error", "OSError: .*no space left"), ("status", "ended with status 3")]
)
def test_a_run_ends_with_a_failure_that_names_the_process(join, how, told):
    with pytest.raises(ProcessDied, match=f"server-0.*{told}"):
        join(1, how)


def test_a_run_ends_at_once_where_a_restart_cannot_help(join, tmp_path):
    with pytest.raises(InvalidValue, match="server-0: lr has to be positive"):
        join(1, "option", restarted=["server-0"])
    assert (tmp_path / "started").read_text() == "x"
