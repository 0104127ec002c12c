"""What becomes of a run when its processes end, or are declared dead."""

from pathlib import Path

import pytest

from shoal.errors import (
    ClusterFull,
    DeclaredDead,
    Dropped,
    InvalidValue,
    JoinRefused,
    ProcessDied,
    RangeLost,
    RunAborted,
)
from shoal.protocol.supervision.supervisor import (
    DEAD_S,
    KILLED_S,
    LATE_S,
    RETURNS,
    Exit,
    Kill,
    Report,
    Start,
    Supervisor,
    loss_policy,
)

NAMES = ("scheduler", "server-0", "server-1", "worker-0", "worker-1")
SILENT = "not heard of for 10.1 s"


class Run:
    """A supervised run of two servers and two workers, with the launches from "10" on."""

    def __init__(self, on_worker_loss="stop", replicas=2, slow_workers="wait", begun=True):
        self.supervisor = Supervisor()
        self.supervisor.policy = loss_policy(2, replicas, 2, on_worker_loss, slow_workers)
        self.launches = {}
        self.now = 0.0
        for name in NAMES:
            self.begin(name)
        if begun:
            self.supervisor.begun()

    def begin(self, name):
        before = self.launches.get(name)
        self.launches[name] = str(int(before) + 100 if before else 10 + len(self.launches))
        self.supervisor.starts(name, self.launches[name], self.now)

    def end(self, name, code=0, error=None):
        return self.supervisor.ended(Exit(name, code, self.launches[name], error), self.now)

    def declare(self, name, how=SILENT):
        self.supervisor.declared_dead(name, self.launches[name], how, self.now)

    def tick(self, later=0.0):
        self.now += later
        return self.supervisor.tick(self.now)

    @property
    def over(self):
        return self.supervisor.over(self.now)

    @property
    def cause(self):
        return self.supervisor.cause(lambda name: Path("logs") / f"{name}.log")


def leave(run, name, how):
    """A worker's process is gone, or as good as gone."""
    launch = run.launches[name]
    match how:
        case "killed":
            run.end(name, -9)
        case "fails":
            run.end(name, 1, ProcessDied("RuntimeError: the loss is nan"))
        case "status":
            run.end(name, 3)
        case "silent":
            run.declare(name)
            run.tick(DEAD_S)
            run.end(name, -9)
        case "back":  # before the engine has heard of it
            run.end(name, 1, DeclaredDead("view 1.4 is without this worker-1"))
        case "vanishes":
            run.end(name, 0)
            run.supervisor.unfinished(launch, run.now)
        case "vanishes, by the log":
            run.end(name, 0)
            run.supervisor.declared_dead(name, launch, "its process has ended", run.now)


HOWS = ("killed", "fails", "status", "silent", "back", "vanishes", "vanishes, by the log")


@pytest.mark.parametrize("how", HOWS)
def test_a_run_stops_when_a_worker_is_gone_in_any_way(how):
    run = Run("stop")
    leave(run, "worker-1", how)
    assert [each.name for each in run.supervisor.failed] == ["worker-1"]
    run.tick(1.0)
    assert run.over
    assert "worker-1" in run.cause.message


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("option", ["drop", "reassign"])
def test_a_run_goes_on_without_a_worker_that_is_gone_in_any_way(option, how):
    run = Run(option)
    leave(run, "worker-1", how)
    assert [each.name for each in run.supervisor.lost] == ["worker-1"]
    assert run.tick(60.0) == []
    assert not run.over


@pytest.mark.parametrize("how", ["killed", "fails", "status", "vanishes"])
def test_a_run_does_not_begin_without_a_worker(how):
    """The scheduler would wait for it for ever."""
    run = Run("drop", begun=False)
    leave(run, "worker-1", how)
    run.tick(1.0)
    assert run.over
    assert "worker-1" in run.cause.message


@pytest.mark.parametrize("ended_well", [True, False])
def test_a_server_that_was_cut_off_at_the_end_is_no_failure(ended_well):
    run = Run()
    for name in ("worker-0", "worker-1", "server-1"):
        run.end(name, 0)
    if ended_well:
        run.end("scheduler", 0)
    run.end("server-0", 1, RunAborted("the scheduler has not answered for 120 s"))
    assert bool(run.supervisor.failed) != ended_well
    assert (
        any("did not hear of the end" in each for each in run.supervisor.warnings()) == ended_well
    )


@pytest.mark.parametrize("how", HOWS)
def test_a_worker_that_is_gone_in_any_way_is_replaced(how):
    run = Run("replace")
    leave(run, "worker-1", how)
    assert run.tick(0.5) == [Start("worker-1")]
    assert not run.over
    assert not run.supervisor.failed


@pytest.mark.parametrize("how", ["killed", "silent", "back", "status"])
@pytest.mark.parametrize("replicas", [1, 2])
def test_a_server_that_is_gone_in_any_way_is_restarted_if_others_have_its_rows(replicas, how):
    """One that was stopped for 12 s and continued ended the run; killed, it was survived."""
    run = Run("stop", replicas)
    leave(run, "server-1", how)
    if replicas == 2:
        assert run.tick(0.5) == [Start("server-1")]
        assert not run.supervisor.failed
    else:
        assert run.tick(KILLED_S) == []
        assert run.over
        assert "server-1" in run.cause.message


def test_a_process_that_is_dead_to_the_run_may_write_its_error_before_it_is_killed():
    run = Run("replace")
    run.declare("worker-0")
    assert run.tick(0.9 * DEAD_S) == []
    assert run.tick(0.1 * DEAD_S) == [Kill("worker-0")]
    assert run.tick(DEAD_S) == []  # once
    run.end("worker-0", -9)
    assert run.tick() == [Start("worker-0")]


def test_what_is_said_of_an_earlier_process_changes_nothing():
    run = Run("replace")
    first = run.launches["worker-0"]
    run.end("worker-0", -9)
    assert run.tick() == [Start("worker-0")]
    run.begin("worker-0")
    run.supervisor.declared_dead("worker-0", first, "its process has ended", run.now)
    run.supervisor.unfinished(first, run.now)
    assert run.tick(DEAD_S) == []


def test_the_scheduler_is_told_of_each_process_that_ends():
    run = Run("drop")
    assert run.end("worker-0", 0) == [Report(run.launches["worker-0"], True)]
    assert run.end("server-1", -9) == [Report(run.launches["server-1"])]
    run.end("scheduler", 0)
    assert run.end("worker-1", 0) == []


def test_a_run_whose_workers_have_finished_is_over_when_all_have_ended():
    run = Run()
    for name in reversed(NAMES):
        assert not run.over
        run.end(name)
    assert run.over
    assert not run.supervisor.failed


@pytest.mark.parametrize("ended", [False, True])
def test_the_cause_is_the_process_that_is_gone_and_not_those_that_were_told(ended):
    run = Run("stop")
    run.declare("worker-1")
    run.end("worker-0", 1, RunAborted("worker-1 is lost"))
    run.end("scheduler", 1, RunAborted("worker-1 is lost"))
    if ended:
        run.tick(DEAD_S)
        run.end("worker-1", -9)
    assert type(run.cause) is ProcessDied
    assert run.cause.message == (
        f"worker-1 was declared dead ({SILENT}); the run cannot go on without it "
        "(its log: logs/worker-1.log)"
    )


def test_rows_that_are_lost_with_a_server_are_the_cause():
    run = Run("stop", replicas=1)
    run.end("server-0", -9)
    run.end("scheduler", 1, RangeLost("server-0 died with the last replica of w[0:8)"))
    assert run.over
    assert isinstance(run.cause, RangeLost)
    assert run.cause.ranges == ("w[0:8)",)


def test_a_run_ends_with_all_the_workers_that_it_could_go_on_without():
    run = Run("drop")
    for name in ("worker-0", "worker-1"):
        leave(run, name, "killed")
    run.tick()
    run.tick(1.0)
    assert run.over
    assert "worker-0 was killed" in run.cause.message


def test_an_option_that_is_wrong_ends_the_run_at_once_whatever_is_restarted():
    run = Run("replace")
    run.end("worker-0", 1, InvalidValue("lr has to be positive"))
    assert isinstance(run.cause, InvalidValue)


def test_a_successor_waits_until_its_predecessor_counts_as_dead_and_may_come_too_late():
    run = Run("replace")
    leave(run, "worker-0", "killed")
    run.tick()
    run.begin("worker-0")
    run.end("worker-0", 1, ClusterFull("all workers have joined"))
    assert run.tick() == [Start("worker-0")]
    run.begin("worker-0")
    run.end("worker-0", 1, JoinRefused("the run has ended"))
    assert run.tick(1.0) == []
    assert not run.supervisor.failed


def test_a_worker_that_was_too_slow_returns_some_times():
    run = Run("reassign", slow_workers="backup")
    for _ in range(RETURNS):
        run.declare("worker-0", "dropped")
        assert run.tick(DEAD_S) == []  # it ends at its next call
        run.end("worker-0", 1, Dropped("the others waited for worker-0"))
        assert run.tick() == [Start("worker-0")]
        run.begin("worker-0")
    run.end("worker-0", 1, Dropped("the others waited for worker-0"))
    assert run.tick() == []
    assert not run.supervisor.failed


def test_processes_that_may_not_know_of_the_end_are_waited_for_a_while():
    run = Run("drop")
    run.declare("worker-1", "dropped")
    for name in ("worker-0", "server-1", "server-0", "scheduler"):
        run.end(name)
    run.tick()
    assert not run.over
    run.tick(LATE_S)
    assert run.over
    assert run.supervisor.late() == ["worker-1"]
    assert not run.supervisor.failed


def test_a_server_that_has_left_in_order_is_not_restarted_by_its_status():
    """The scheduler knows no member of that process any more, and has not lost one."""
    run = Run()
    launch = run.launches["server-1"]
    run.end("server-1", 0)
    run.supervisor.unfinished(launch, run.now)
    assert run.tick(1.0) == []
    run.supervisor.declared_dead("server-1", launch, "its process has ended", run.now)
    assert run.tick(1.0) == [Start("server-1")]  # but one that vanished is


def test_a_connection_that_looked_on_beside_a_worker_is_not_the_worker():
    """A process may be a member of several groups; the first one's is the run's worker."""
    run = Run("stop")
    launch = run.launches["worker-1"]
    run.end("worker-1", 0)
    run.supervisor.declared_dead("eval/worker-0", launch, "its process has ended", run.now)
    assert not run.supervisor.failed


@pytest.mark.parametrize(("code", "told_first"), [(0, True), (0, False), (1, True), (-9, True)])
def test_a_worker_that_was_dropped_may_end_in_any_way(code, told_first):
    """Its code may take `Dropped` for its end, and end with status 0."""
    for slow_workers, due in (("drop", []), ("backup", [Start("worker-1")])):
        run = Run("reassign" if slow_workers == "backup" else "stop", slow_workers=slow_workers)
        if told_first:
            run.declare("worker-1", "dropped")
        run.end("worker-1", code, Dropped("too slow") if code > 0 else None)
        if not told_first:
            run.declare("worker-1", "dropped")
        run.supervisor.unfinished(run.launches["worker-1"], run.now)
        assert run.tick() == due
        assert not run.supervisor.failed
        assert not run.supervisor.lost


def test_a_silent_server_with_another_rank_than_its_name_is_ended():
    """It came before its predecessor counted as dead, and got the next free rank."""
    run = Run()
    run.supervisor.declared_dead("server-2", run.launches["server-1"], SILENT, run.now)
    assert run.tick(DEAD_S) == [Kill("server-1")]


def lose_host(run, *names):
    """All processes of a host are reported, as its `Host` does."""
    for name in names:
        how = "was lost with its host"
        gone = Exit(name, -9, run.launches[name], how=how, host_lost=True)
        run.supervisor.ended(gone, run.now)


def test_a_run_goes_on_without_the_servers_of_a_lost_host_where_others_have_their_rows():
    """However short their life was: nobody tries to start them there again."""
    run = Run("drop")
    lose_host(run, "server-1", "worker-1")
    assert run.tick(1.0) == []
    assert not run.supervisor.failed
    assert run.supervisor.warnings() == [
        "server-1 was lost with its host, and the run goes on without it",
        "worker-1 is lost, and the run goes on without it: was lost with its host",
    ]
    for name in ("worker-0", "server-0", "scheduler"):
        run.end(name)
    assert run.over


@pytest.mark.parametrize(
    ("lost", "options"),
    [
        (["scheduler"], {}),
        (["server-0"], {"replicas": 1}),
        (["worker-0"], {"on_worker_loss": "replace"}),
        (NAMES, {"on_worker_loss": "drop"}),
    ],
)
def test_a_run_ends_with_a_host_that_had_what_it_cannot_go_on_without(lost, options):
    run = Run(**options)
    lose_host(run, *lost)
    run.tick(KILLED_S)
    assert run.over
    assert f"{lost[0]} was lost with its host" in run.cause.message
