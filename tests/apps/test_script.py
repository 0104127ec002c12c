"""`shoal run`: what it refuses, and the command that resumes it."""

import shlex
from pathlib import Path

import pytest

from shoal.apps.script import ScriptApplication, ScriptRun
from shoal.cli.cluster import run
from shoal.errors import InvalidValue
from shoal.runs.run import run_here


def test_words_of_a_resumed_run_keep_all_options_but_those_of_the_last_resume():
    how = ScriptRun(
        workers=4,
        servers=2,
        out="runs",
        imports=("my method.py",),
        replicas=2,
        checkpoint_every_s=60.0,
        resume="before",
        resume_at=30,
    )
    words = shlex.split(ScriptApplication(Path("train.py"), ["--lr", "0.1"], how).resume_words())
    asked = run.make_context("run", words, resilient_parsing=True).params
    assert (asked["workers"], asked["servers"], asked["replicas"]) == (4, 2, 2)
    assert (asked["out"], asked["imports"]) == ("runs", ("my method.py",))
    assert asked["checkpoint_every_s"] == 60.0
    assert (asked["resume"], asked["resume_at"]) == ("", -1)
    assert asked["args"] == ("--lr", "0.1")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"replicas": 3}, r"--replicas 3 needs at least 3 servers \(got 1\)"),
        ({"on_worker_loss": "reassign"}, "use shoal.leases, and --on-worker-loss drop"),
        ({"servers": 0, "checkpoint_every": 3}, "add --servers 1"),
        ({"resume_at": 3}, "add --resume RUN"),
    ],
    ids=lambda each: next(iter(each)) if isinstance(each, dict) else "",
)
def test_options_that_cannot_be_kept_are_refused(options, told):
    with pytest.raises(InvalidValue, match=told):
        ScriptRun(**options)


def test_a_script_that_is_not_python_starts_nothing(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("for\n")
    with pytest.raises(InvalidValue, match=r"script\.py is not a Python script"):
        run_here(ScriptApplication(script, [], ScriptRun(out=str(tmp_path / "runs"))))
    assert not Path(tmp_path / "runs").exists()
