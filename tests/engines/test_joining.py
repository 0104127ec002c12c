"""`shoal.init`: what arguments and the environment say of the connection."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.engines import joining
from shoal.engines.environment import ScriptEnvironment
from shoal.errors import InvalidValue

SCRIPTS = Path(__file__).parent / "scripts"


class Joined(Exception):
    """Raised instead of joining, with the options."""


@pytest.fixture
def options(monkeypatch):
    """The options of the client that `init` makes, with an environment."""

    def client(address, options, check):
        raise Joined(options)

    monkeypatch.setattr(joining, "Client", client)

    def made(env=(), **given):
        for name, value in dict(env).items():
            monkeypatch.setenv(name, value)
        with pytest.raises(Joined) as found:
            joining.init(scheduler="tcp://127.0.0.1:1", **given)
        return found.value.args[0]

    return made


def test_the_sync_timeout_is_the_arguments_then_the_environments(options):
    assert options().sync_timeout_s == 10.0
    assert options({"SHOAL_SYNC_TIMEOUT_S": "2.5"}).sync_timeout_s == 2.5
    assert options(sync_timeout_s=3.0).sync_timeout_s == 3.0


def test_what_happens_on_a_timeout_is_the_arguments_then_the_environments(options):
    assert options().on_timeout == "ask"
    assert options({"SHOAL_ON_TIMEOUT": "drop"}).on_timeout == "drop"
    assert options(on_timeout="wait").on_timeout == "wait"


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("SHOAL_ON_TIMEOUT", "panic", "SHOAL_ON_TIMEOUT is one of wait, ask, drop, not 'panic'"),
        ("SHOAL_SYNC_TIMEOUT_S", "soon", "SHOAL_SYNC_TIMEOUT_S='soon' is not a number"),
        ("SHOAL_RANK", "1.5", "SHOAL_RANK='1.5' is not a whole number"),
    ],
)
def test_a_variable_that_is_no_number_is_named(name, value, told, monkeypatch):
    monkeypatch.setenv(name, value)
    with pytest.raises(InvalidValue, match=told):
        joining.init(scheduler="tcp://127.0.0.1:1")


@pytest.mark.parametrize(
    ("scheduler", "env", "folder"),
    [
        ("", {}, "shoal-runs/run-7"),
        ("tcp://host:1", {"SHOAL_RUN_DIR": "/runs/other"}, "shoal-runs/run-7"),
        ("/runs/mine", {"SHOAL_RUN_DIR": "/runs/other"}, "/runs/mine"),
        ("", {"SHOAL_RUN_DIR": "/runs/mine", "SHOAL_SCHEDULER": "unix:///socket"}, "/runs/mine"),
        ("", {"SHOAL_SCHEDULER": "unix:///socket"}, "shoal-runs/run-7"),
        ("", {"SHOAL_SCHEDULER": "/runs/mine"}, "/runs/mine"),
    ],
)
def test_the_folder_of_the_run_is_the_arguments_then_the_environments(scheduler, env, folder):
    assert (
        joining._run_dir(scheduler, ScriptEnvironment.read(env), "run-7") == Path(folder).absolute()
    )


@pytest.mark.real
def test_a_cluster_outlives_the_thread_that_called_init(tmp_path):
    ended = subprocess.run(
        [sys.executable, SCRIPTS / "thread.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.stdout == "[1.0, 1.0, 1.0, 1.0]\n", ended.stderr


@pytest.mark.real
@pytest.mark.parametrize("name", ["scheduler", "server-0"])
def test_a_process_that_dies_at_its_start_is_named_at_once(tmp_path, name):
    """`init` does not wait for a cluster that will never be complete."""
    ended = subprocess.run(
        [sys.executable, SCRIPTS / "loses.py", name],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=40,
    )
    assert ended.stdout == f"{name} was killed by SIGKILL\n", ended.stderr


@pytest.mark.real
def test_a_long_temporary_folder_is_no_obstacle(tmp_path):
    """Its sockets have longer paths than the kernel takes."""
    folder = tmp_path / ("f" * 200)
    folder.mkdir()
    ended = subprocess.run(
        [sys.executable, SCRIPTS / "thread.py"],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.stdout == "[1.0, 1.0, 1.0, 1.0]\n", ended.stderr
    assert not list(folder.iterdir())
