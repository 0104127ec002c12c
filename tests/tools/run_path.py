"""The path of a run: the files from the parsed options of `shoal train` to its worker's loop.

    python -m tests.tools.run_path

A small run is carried out. In the process of the command and in that of a worker each call of a
function of this package is looked at that is given the run: its options, its application, a task of
it. The chain is the calls that were open when the worker was started, and when its loop began: the
functions that hand the options on. The others are given them to check, read or write something, and
return.
"""

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import shoal
from shoal.apps.train.command import TrainApplication
from shoal.apps.train.worker import run_worker
from shoal.cli import main as command
from shoal.engines.base import Task
from shoal.engines.processes import Processes
from shoal.runs.application import Application
from shoal.runs.options import RunOptions
from shoal.runs.worker import WorkerTask

ROOT = str(Path(shoal.__file__).parent)
GIVEN = (RunOptions, Application, Task, WorkerTask)
TRACE = "path.json"  # in the run's folder: what the worker has seen
LOOP = "train_program"  # the worker's loop


class Route:
    """The files of calls that are given a run, in the order of their first calls.

    chain:  those whose calls were open when it ended
    """

    def __init__(self) -> None:
        self.files: list[str] = []
        self.chain: list[str] = []

    def called(self, frame: FrameType, event: str, arg: object) -> None:
        file = frame.f_code.co_filename
        if event != "call" or not file.startswith(ROOT):
            return
        if carries(frame):
            self._note(self.files, file)
        if frame.f_code.co_name == LOOP:
            self.end(frame)

    def end(self, frame: FrameType | None) -> None:
        sys.setprofile(None)
        open_calls = []
        while frame is not None:
            open_calls.append(frame)
            frame = frame.f_back
        for each in reversed(open_calls):
            if each.f_code.co_filename.startswith(ROOT) and carries(each):
                self._note(self.chain, each.f_code.co_filename)

    @staticmethod
    def _note(files: list[str], file: str) -> None:
        name = file.removeprefix(ROOT + "/")
        if name not in files:
            files.append(name)


def carries(frame: FrameType) -> bool:
    """Whether a call is given a run."""
    values = frame.f_locals.values()
    plain = any(isinstance(each, dict) and "spec" in each for each in values)
    return plain or any(isinstance(each, GIVEN) for each in values)


def traced_worker(**given: Any) -> None:
    """A worker that writes down its path, and then does its work."""
    path = Route()
    sys.setprofile(path.called)
    try:
        run_worker(**given)
    finally:
        sys.setprofile(None)
        told = {"files": path.files, "chain": path.chain}
        (Path(given["folder"]) / TRACE).write_text(json.dumps(told))


@contextmanager
def watched(path: Route) -> Iterator[None]:
    """Follow the options in this process until the first worker is started."""
    start: Callable[[Processes, Task], None] = Processes.start

    def starting(processes: Processes, task: Task) -> None:
        if task.name == "worker-0":
            path.end(sys._getframe(1))
            path._note(path.chain, start.__code__.co_filename)
        start(processes, task)

    entry = "tests.tools.run_path:traced_worker"
    with (
        mock.patch.object(Processes, "start", starting),
        mock.patch.object(TrainApplication, "entry", entry),
    ):
        yield


def measure() -> tuple[list[str], list[str]]:
    """The files that hand the options on, and all that are given them."""
    path = Route()
    with tempfile.TemporaryDirectory() as folder, watched(path):
        words = ["train", "digits", "--epochs", "1", "--workers", "1", "--out", folder, "--json"]
        sys.setprofile(path.called)
        try:
            command.main(words, standalone_mode=False)
        finally:
            sys.setprofile(None)
        [found] = Path(folder).glob(f"*/{TRACE}")
        there = json.loads(found.read_text())
    return [
        list(dict.fromkeys([*here, *of_worker]))
        for here, of_worker in ((path.chain, there["chain"]), (path.files, there["files"]))
    ]


def main() -> None:
    chain, files = measure()
    print(f"{len(chain)} files hand the options on:", *chain, sep="\n  ")
    print(f"{len(files)} files are given them:", *files, sep="\n  ")


if __name__ == "__main__":
    main()
