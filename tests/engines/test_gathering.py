"""Who has not joined the run, and what they do: said on the terminal."""

import logging
import os
import re
import shutil
from pathlib import Path

import pytest

from shoal.apps.script import ScriptApplication, ScriptRun
from shoal.apps.train.command import TrainApplication
from shoal.engines import gathering
from shoal.engines.gathering import UNLIMITED_S, Gathering
from shoal.engines.processes import Processes
from shoal.runs.job import from_mapping
from shoal.runs.plan import tasks_of
from shoal.runs.run import run_here
from shoal.storage.run_folder import RunFolder

SCRIPT = Path(__file__).parent / "scripts" / "prepare.py"


class Release(logging.Handler):
    """Lets a script go on that reads from a pipe, once it was told of."""

    def __init__(self, pipe):
        super().__init__()
        self.pipe = pipe

    def emit(self, record):
        if "in tokenise" in record.getMessage() and self.pipe.exists():
            self.pipe.open("w").close()
            self.pipe.unlink()


@pytest.mark.real
def test_the_terminal_says_who_has_not_joined_and_where_it_is(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(gathering, "SAY_S", 1.0)
    own = tmp_path / "shoal"  # the user's folder may have any name
    own.mkdir()
    script, pipe = Path(shutil.copy(SCRIPT, own)), tmp_path / "pipe"
    os.mkfifo(pipe)
    release = Release(pipe)
    gathering.log.addHandler(release)
    try:
        run_here(ScriptApplication(script, [str(pipe)], ScriptRun(out=str(tmp_path), workers=1)))
    finally:
        gathering.log.removeHandler(release)
    told = [each for each in caplog.messages if "not in the run yet" in each]
    assert told
    assert re.search(r"worker-0 \(at .*prepare.py, line 8, in tokenise\)", "\n".join(told))


def test_processes_that_have_joined_and_the_scheduler_are_not_named(tmp_path, caplog):
    log = tmp_path / "a.log"
    log.touch()
    known = Gathering(lambda name: log)
    known.joined("12")
    living, asked = {"scheduler": "10", "server-0": "11", "worker-0": "12"}, []
    for now in (0.0, 29.9, 30.0, 30.1, 60.0, 89.9, 90.0, 90.1):
        known.look(living, now, lambda *given: asked.append(given))
    assert asked == [("server-0", gathering.STACK_SIGNAL)] * 2
    assert caplog.messages == [
        "not in the run yet after 30 s: server-0",
        "not in the run yet after 90 s: server-0",
    ]


def test_a_process_that_has_begun_another_program_is_not_signalled():
    """Its handler is gone: the signal would end it."""
    assert not gathering.shows_stack(1)
    assert not gathering.shows_stack(1 << 22)


def test_processes_that_are_watched_may_take_any_time_to_join(tmp_path):
    with Processes(RunFolder.create(tmp_path, "run")) as processes:
        application = TrainApplication(from_mapping({"data": "digits"}), [])
        tasks = {t.name: t for t in tasks_of(application, processes, 0.0)}
    assert tasks["scheduler"].args["join_timeout_s"] == UNLIMITED_S
    assert tasks["server-0"].args["init_timeout_s"] == UNLIMITED_S
