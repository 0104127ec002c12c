"""Collector: what the processes of a run leave on their hosts becomes the run's one folder.

Events and logs come as they are written, checkpoints file by file, as each is whole, and the rest
at the end. Each piece of a whole file is compared with its host's by checksum. A host that shares
the run's folder has nothing to collect.
"""

from __future__ import annotations

import logging
import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from threading import Event, Lock, Thread
from time import monotonic

from shoal.engines.host_files import FileState, HostFiles, below
from shoal.errors import ShoalError
from shoal.protocol.messages.hosts import PIECE_BYTES
from shoal.storage.checkpoints import Checkpoints
from shoal.storage.event_log import EVENT_BYTES_MAX
from shoal.storage.files import make_folder, write_whole
from shoal.storage.run_folder import CHECKPOINTS, EVENTS, LEASES, SUPERVISORS, RunFolder, is_log

log = logging.getLogger("shoal.engine")

LOOK_S = 0.1  # between two looks for what is new on a host
REST = 5  # times as long as a look took, before the next
SHOWN = 3  # names in a warning
AGAIN = 3  # times that a file is read which changes meanwhile
HEADER = b'{"t": 0.0, "kind": "format"'  # of an event log: the run's own has one


class _Unlike(Exception):
    """A file was not copied as it is on its host."""


class _Source:
    """A folder on a host, and what has come from it.

    came:    bytes of files that grow, by name
    copied:  states of whole files, by name
    left:    why a file has not come, by name
    problem: why nothing more has come; `gone` if nothing will
    """

    def __init__(self, host: HostFiles) -> None:
        self.host = host
        self.lock = Lock()  # of `came`: two threads follow events
        self.came: dict[str, int] = {}
        self.copied: dict[str, FileState] = {}
        self.left: dict[str, str] = {}
        self.problem = ""
        self.gone = False


class Collector:
    """Collects the files of a run from hosts with folders of their own.

    Args:
        folder: the run's folder.
        hosts: the hosts that do not share it; some may share one with each other.

    Attributes:
        keep: the number of checkpoints to keep; 0 for all of them.
    """

    def __init__(self, folder: RunFolder, hosts: Sequence[HostFiles]) -> None:
        self.keep = 0
        self._folder = folder
        self._sources: dict[str, _Source] = {}  # by the mark of the folder
        self._of = {id(host): self._source(host) for host in hosts}
        self._writing: defaultdict[str, Lock] = defaultdict(Lock)  # by the name of a file
        self._pruning = Lock()
        self._oldest = 0  # clock of the first checkpoint that was not pruned
        self._over = Event()
        self._ended = False
        self._threads = [
            Thread(target=self._run, args=(each,), name="shoal-collector", daemon=True)
            for each in self._sources.values()
        ]
        for each in self._threads:
            each.start()

    def events(self, host: HostFiles) -> None:
        """Collect what a host's processes have reported so far."""
        source = self._of.get(id(host))
        if source is not None:
            self._guarded(source, partial(self._follow, source, EVENTS, -1, last=False))

    def finish(self) -> None:
        """Collect everything that is left, once the processes have ended; may be called again."""
        if self._ended:
            return
        self._over.set()
        for each in self._threads:
            each.join()
        for source in [*self._sources.values()] * 2:  # again, for what was pruned
            self._guarded(source, partial(self._take, source, last=True))
        self._ended = True
        for label, names in self.left.items():
            more = f", and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            log.warning("left on host %s: %s%s", label, ", ".join(names[:SHOWN]), more)

    @property
    def left(self) -> dict[str, list[str]]:
        """What has stayed on hosts, with the reason, by the host's name."""
        found: dict[str, list[str]] = {}
        for source in self._sources.values():
            names = [f"{name}: {why}" for name, why in sorted(source.left.items())]
            told = [source.problem] if source.problem else []
            if told or names:
                found[source.host.label] = found.get(source.host.label, []) + told + names
        return found

    def _source(self, host: HostFiles) -> _Source:
        try:
            mark = host.mark() or str(id(host))
        except OSError:  # it is lost, as the first look says
            mark = str(id(host))
        return self._sources.setdefault(mark, _Source(host))

    def _run(self, source: _Source) -> None:
        took = 0.0
        while not self._over.wait(max(LOOK_S, REST * took)):
            began = monotonic()
            self._guarded(source, partial(self._take, source, last=False))
            took = monotonic() - began

    def _guarded(self, source: _Source, collect: Callable[[], None]) -> None:
        """Collect from a host, as long as it answers."""
        if source.gone:
            return
        try:
            collect()
        except (OSError, ShoalError) as error:
            source.gone = isinstance(error, ConnectionError)
            source.problem = f"all that had not been collected before: {error}"
        else:
            source.problem = ""

    def _take(self, source: _Source, last: bool) -> None:
        """Collect what is new on a host; the last time, what is left."""
        listed = source.host.listed()
        due = False
        for name in sorted(listed, key=lambda name: (not _grows(name), name)):
            if not last and self._over.is_set():
                return
            if _grows(name):
                self._follow(source, name, listed[name].size, last)
            elif name not in SUPERVISORS and (last or _is_checkpoint(name)):
                due |= self._take_whole(source, name, listed[name], last)
        if due and self.keep:
            self._prune()

    def _take_whole(self, source: _Source, name: str, state: FileState, last: bool) -> bool:
        """Copy a whole file if it is new; return whether a checkpoint has another file."""
        if self._pruned(name):
            source.host.remove(name)
            return False
        if source.copied.get(name) == state or (name in source.left and not last):
            return False
        with self._writing[name]:
            self._copy(source, name, state)
        return _is_checkpoint(name)

    def _follow(self, source: _Source, name: str, size: int, last: bool) -> None:
        """Append what has been added to a file; of lines of events and leases, whole ones.

        size:  the file's size, up to which it is followed; -1 for one piece
        """
        with source.lock:
            path = below(self._folder.path, name)
            if last and not path.exists():
                make_folder(path.parent)
                path.touch()
            while size < 0 or source.came.get(name, 0) < size:
                at = source.came.get(name, 0)
                data = _lines(source, name, at, last)
                header = data.find(b"\n") + 1 if at == 0 and data.startswith(HEADER) else 0
                if not data:
                    return
                try:
                    make_folder(path.parent)
                    with path.open("ab", buffering=0) as file:
                        written = file.write(data[header:])
                except OSError as error:
                    source.left[name] = str(error.strerror)
                    return
                source.left.pop(name, None)
                source.came[name] = at + header + written
                if size < 0:
                    return

    def _copy(self, source: _Source, name: str, state: FileState) -> None:
        """Copy a whole file, unless there is a later one of that name."""
        changed = state.modified - round(source.host.ahead_s * 1e9)
        path = below(self._folder.path, name)
        problem = ""
        for _ in range(AGAIN):
            try:
                if not path.exists() or path.stat().st_mtime_ns <= changed:
                    make_folder(path.parent)
                    write_whole(path, partial(_copy_to, source.host, name, state))
                    os.utime(path, ns=(changed, changed))
            except FileNotFoundError:  # its process has removed it meanwhile
                return
            except _Unlike as error:
                problem = str(error)
                state = source.host.state(name)
            except ConnectionError:
                raise
            except OSError as error:
                problem = str(error.strerror)
                break
            else:
                source.left.pop(name, None)
                source.copied[name] = state
                return
        source.left[name] = problem

    def _prune(self) -> None:
        """Remove checkpoints that are not kept; the next looks remove them from their hosts."""
        checkpoints = Checkpoints(self._folder.checkpoints)
        with self._pruning, suppress(OSError, ShoalError):  # the next file tries again
            checkpoints.keep(self.keep)
            self._oldest = min(checkpoints.complete(), default=0)

    def _pruned(self, name: str) -> bool:
        """Return whether a file is of a checkpoint before those that are kept, and is not here."""
        clock = name.split("/")[1] if _is_checkpoint(name) else ""
        older = clock.isdecimal() and int(clock) < self._oldest
        return older and not below(self._folder.path, name).exists()


def _grows(name: str) -> bool:
    """Return whether a file is only ever appended to."""
    return is_log(name) or name in (EVENTS, LEASES)


def _is_checkpoint(name: str) -> bool:
    return name.startswith(f"{CHECKPOINTS}/") and name.count("/") == 2


def _lines(source: _Source, name: str, at: int, last: bool) -> bytes:
    """Return what follows in a file that grows: of a log anything, else whole lines.

    A line that its process has not ended, because it was killed, is left out.
    """
    data = b""
    while piece := _read(source, name, at + len(data)):
        data += piece
        if is_log(name):
            return data
        if b"\n" in piece or len(data) > EVENT_BYTES_MAX:
            break
    return data[: data.rfind(b"\n") + 1]


def _read(source: _Source, name: str, start: int) -> bytes:
    """Read a piece of a file of a host; nothing if there is no such file."""
    try:
        return source.host.read(name, start, PIECE_BYTES)
    except FileNotFoundError:
        return b""


def _copy_to(host: HostFiles, name: str, state: FileState, fresh: Path) -> None:
    """Write a host's file to a path, and compare each piece with the host's.

    Raises:
        _Unlike: it is another file by now, or a piece is not as on its host
    """
    at = 0
    with fresh.open("xb") as file:
        while piece := host.read(name, at, PIECE_BYTES):
            if sha256(piece).hexdigest() != host.digest(name, at, PIECE_BYTES):
                raise _Unlike("its checksum is not that on its host")
            file.write(piece)
            at += len(piece)
    if at != state.size or host.state(name) != state:
        raise _Unlike("it changed whenever it was read")
