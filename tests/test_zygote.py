"""A fork of the zygote is as the process that a test would have started without it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.zygote import zygote
from tests.zygote.sitecustomize import ZYGOTE

pytestmark = pytest.mark.real
TELLS = "import os, sys; print(sys.argv, os.getcwd(), sys.path[0], __name__, os.environ.get('X'))"
PROGRAMS = {
    "words": (TELLS, 0),
    "status": ("import sys; sys.exit(7)", 7),
    "text": ("import sys; sys.exit('why')", 1),
    "error": ("1 / 0", 1),
    "at the end": ("import atexit; atexit.register(print, 'last'); print('first')", 0),
    "threads": (
        "import threading as t; t.Thread(target=lambda: print(t.main_thread().join())).start()",
        0,
    ),
    "killed": ("import os; os.kill(os.getpid(), 9)", -9),
    "terminated": ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -15),
    "interrupted": ("import os, signal; os.kill(os.getpid(), signal.SIGINT); input()", -2),
    "input": ("print(input())", 0),
    "name": ("print(globals().get('__file__'), __name__, __spec__ is None)", 0),
    "warning": ("import warnings; warnings.warn('w'); print('on')", None),
    "errors": ("import sys; print('é\\udcff', file=sys.stderr)", 0),
    "child": (
        "import subprocess as s, sys; print(s.run([sys.executable, '-c', 'print(2)']).returncode)",
        0,
    ),
}


def ended(command, cwd, **more):
    return subprocess.run(
        command, cwd=cwd, input="typed\n", capture_output=True, text=True, timeout=60, **more
    )


def is_forked():
    code = "import sys; print('torch' in sys.modules)"
    return subprocess.check_output([sys.executable, "-c", code], text=True) == "True\n"


@pytest.fixture(autouse=True, scope="module")
def forked(tmp_path_factory):
    """The zygote of these tests; one of this file where the others have none."""
    if os.environ.get(ZYGOTE, "off") != "off":
        yield
    else:
        with zygote(tmp_path_factory.mktemp("zygote")):
            yield


def test_processes_are_forked():
    assert is_forked()


@pytest.mark.parametrize("how", ["-c", "-m", "file", "-W", "-u"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_fork_does_what_the_process_would(name, how, tmp_path, monkeypatch):
    program, status = PROGRAMS[name]
    (tmp_path / "program.py").write_text(program)
    monkeypatch.setenv("X", "1")
    words = {"-c": ["-c", program], "-m": ["-m", "program"], "file": ["program.py"]}
    words |= {"-W": ["-W", "error", *words["-c"]], "-u": ["-u", *words["file"]]}
    words = words[how]
    command = [sys.executable, *words, "--a", "b"]
    # a file is found from the folder of these tests
    command = [str(tmp_path / each) if each == "program.py" else each for each in command]
    one = ended(command, tmp_path)
    monkeypatch.delenv(ZYGOTE)
    other = ended(command, tmp_path)
    assert one.returncode == other.returncode
    assert status in (None, one.returncode)
    assert one.stdout == other.stdout
    assert one.stderr.splitlines()[-1:] == other.stderr.splitlines()[-1:]
    assert "zygote" not in one.stderr


def test_a_fork_can_be_waited_for_killed_and_has_the_files_it_is_given(tmp_path):
    reads, writes = os.pipe()
    code = f"import os, signal; os.write({writes}, b'x'); signal.pause()"
    with subprocess.Popen([sys.executable, "-c", code], pass_fds=[writes]) as process:
        os.close(writes)
        assert os.read(reads, 1) == b"x"
        os.close(reads)
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        process.send_signal(signal.SIGSTOP)
        process.kill()
        assert process.wait() == -signal.SIGKILL
        assert process.poll() == -signal.SIGKILL


def test_a_program_that_is_typed_is_run():
    code = "import sys; print(sys.argv, 'torch' in sys.modules, __name__)"
    command = [sys.executable, "-", "a"]
    done = subprocess.run(command, input=code, capture_output=True, text=True, check=True)
    assert done.stdout == "['-', 'a'] True __main__\n"


@pytest.mark.parametrize(
    ("options", "env"), [(["-X", "dev"], {}), ([], {"HOME": "/tmp"}), ([], {ZYGOTE: "off"})]
)
def test_an_unusual_process_is_a_new_one(options, env):
    code = "import sys; print('torch' in sys.modules)"
    command = [sys.executable, *options, "-c", code]
    text = subprocess.check_output(command, env={**os.environ, **env}, text=True)
    assert text == "False\n"


def test_libraries_may_set_variables():
    import sklearn.metrics  # noqa: F401
    import torch  # noqa: F401

    assert is_forked()


def test_a_command_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError):
        subprocess.run([str(tmp_path / "nobody")], check=False)
    done = ended([sys.executable, str(tmp_path / "nobody.py")], tmp_path)
    assert done.returncode == 2
    assert Path(sys.executable).name in done.stderr
