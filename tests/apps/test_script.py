"""`shoal run`: what it says where a run could go on."""

import shlex
from pathlib import Path

from shoal.apps.script import ScriptRun, _words
from shoal.cli.cluster import run


def test_the_command_that_goes_on_has_all_that_was_asked_and_nothing_of_the_last_resume():
    how = ScriptRun(
        workers=4,
        servers=2,
        out=Path("runs"),
        imports=["my method.py"],
        replicas=2,
        checkpoint_every_s=60.0,
        resume="before",
        resume_at=30,
    )
    words = shlex.split(_words(Path("train.py"), ["--lr", "0.1"], how))
    asked = run.make_context("run", words, resilient_parsing=True).params
    assert (asked["workers"], asked["servers"], asked["replicas"]) == (4, 2, 2)
    assert (asked["out"], asked["imports"]) == ("runs", ("my method.py",))
    assert asked["checkpoint_every_s"] == 60.0
    assert (asked["resume"], asked["resume_at"]) == ("", -1)
    assert asked["args"] == ("--lr", "0.1")
