"""What a task is on the host of its process: its paths, its clock, and the files that it reads."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import msgspec

from shoal.engines.base import Input, Task
from shoal.engines.host_files import INPUTS, HostFiles
from shoal.errors import DataMissing
from shoal.protocol.messages.hosts import PIECE_BYTES
from shoal.protocol.supervision.supervisor import Exit
from shoal.storage.files import open_file
from shoal.storage.run_folder import RunFolder
from shoal.storage.verified import HEADER_AT

RUN_DIR = "SHOAL_RUN_DIR"  # as `engines.environment.ScriptEnvironment` has it


def shares(host: HostFiles, folder: RunFolder) -> bool:
    """Return whether a host's folder of a run is the run's folder itself."""
    mark = folder.mark()
    try:
        return host.mark() == mark if mark else host.path == folder.path.resolve()
    except OSError:  # it is lost, as the next question to it says
        return False


def placed(task: Task, host: HostFiles, folder: RunFolder) -> Task:
    """Return a task as its host starts it, after the files that it reads are there.

    The run's folder becomes that of the host, inputs are where they were sent, and the time at
    which the run began is that of the host's clock.

    Raises:
        DataMissing: the files cannot be sent
    """
    args = {**task.args}
    if "started_at" in args:
        args["started_at"] += host.ahead_s
    there = {str(each): str(host.path) for each in (folder.path, folder.path.resolve())}
    if args.get("folder"):
        args["folder"] = there.get(args["folder"], args["folder"])
    if args.get("state") and host.elsewhere:  # a private folder of the command's host
        args["state"] = str(host.path / Path(args["state"]).name)
    env = {**task.env}
    if RUN_DIR in env:
        env[RUN_DIR] = there.get(env[RUN_DIR], env[RUN_DIR])
    for each in task.inputs:
        if where := _sent(each, host):
            args = _with(args, each, where)
            if each.later:
                args[each.later] = str(host.path / INPUTS / each.later)
    return replace(task, args=args, env=env)


def collected(report: Exit, host: HostFiles, folder: RunFolder) -> Exit:
    """Return the end of a process with the paths, in its error, of the run's own folder."""
    if report.error is None:
        return report
    here = report.error.message.replace(str(host.path), str(folder.path.resolve()))
    return msgspec.structs.replace(report, error=type(report.error)(here, report.error.trace))


def _with(args: dict[str, Any], given: Input, where: Path) -> dict[str, Any]:
    """Return a task's arguments with the path of its input on its host."""
    *names, last = given.argument
    args = {**args, **{name: {**args[name]} for name in names[:1]}}
    into = reduce(dict.__getitem__, names, args)
    into[last] = str(where / Path(into[last]).relative_to(given.folder))
    return args


def _sent(given: Input, host: HostFiles) -> Path | None:
    """Send the files that a host does not have; return their folder there, None for the same."""
    source = Path(given.folder)
    place = f"{INPUTS}/{given.argument[-1]}"
    try:
        sizes = {name: (source / name).stat().st_size for name in given.files}
        if all(host.sees((source / name).absolute(), size) for name, size in sizes.items()):
            return None
        for name, size in sizes.items():
            if _size_of(host, f"{place}/{name}") != size:
                whole = send if not given.later else _send_header
                whole(source / name, host, f"{place}/{name}")
    except OSError as error:
        raise DataMissing(f"{source} cannot be sent to {host.label}: {error}") from None
    return host.path / place


def _size_of(host: HostFiles, name: str) -> int:
    """Return the size of a file on a host; -1 if there is none."""
    try:
        return host.state(name).size
    except FileNotFoundError:
        return -1


def send(path: Path, host: HostFiles, name: str) -> None:
    """Send a file to a host, piece by piece.

    Raises:
        OSError: it cannot be read, or the host cannot write it or is gone
    """
    with open_file(path) as file:
        start, piece = 0, file.read(PIECE_BYTES)
        while True:
            following = file.read(PIECE_BYTES)
            host.put(name, start, piece, last=not following)
            if not following:
                return
            start, piece = start + len(piece), following


def _send_header(path: Path, host: HostFiles, name: str) -> None:
    """Send the header of a file of tensors; where they are, the host's file has a hole."""
    with open_file(path) as file:
        size = path.stat().st_size
        begin = HEADER_AT + int.from_bytes(file.read(HEADER_AT), "little")
        if begin >= size:
            send(path, host, name)
            return
        file.seek(0)
        for start in range(0, begin, PIECE_BYTES):
            host.put(name, start, file.read(min(PIECE_BYTES, begin - start)), last=False)
    host.put(name, size - 1, b"\0", last=True)


def all_of(argument: tuple[str, ...], path: Path) -> Input:
    """Return a file, or all files of a folder, as what a task reads."""
    files = (
        [each for each in sorted(path.rglob("*")) if each.is_file()] if path.is_dir() else [path]
    )
    names = tuple(each.relative_to(path.parent).as_posix() for each in files)
    return Input(argument, str(path.parent), names)
