"""Supplies: files that processes on other hosts ask for, because only they know which they read.

A server begins with the headers of all files of a checkpoint. Which rows it has is decided when
tables are declared, and then it asks for the files of those rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from threading import Lock, Thread
from time import sleep

from shoal.engines.base import Input, Task
from shoal.engines.host_files import INPUTS, HostFiles
from shoal.engines.placing import send
from shoal.errors import DataMissing
from shoal.node.launch import wants

log = logging.getLogger("shoal.engine")

LOOK_S = 0.02  # between looks for a file that another host sends


class Supplies:
    """Sends hosts the files for which their processes ask, each in a thread of its own."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._under_way: set[tuple[str, str]] = set()  # folder of the host, name
        self._problem: DataMissing | None = None

    def asked(self, task: Task, host: HostFiles, file: str) -> None:
        """Begin to send a file to a host, unless it is on its way."""
        given = next((each for each in task.inputs if each.later and file in each.files), None)
        if given is None:
            self._problem = DataMissing(f"{task.name} asks for {file!r:.200}, which it cannot have")
            return
        with self._lock:
            if (key := (str(host.path), file)) in self._under_way:
                return
            self._under_way.add(key)
        Thread(target=self._send, args=(given, host, file, key), daemon=True).start()

    def check(self) -> None:
        """Raise the reason if a file could not be sent.

        Raises:
            DataMissing: it cannot be read here, or written there
        """
        if self._problem is not None:
            raise self._problem

    def _send(self, given: Input, host: HostFiles, file: str, key: tuple[str, str]) -> None:
        try:
            send(Path(given.folder, file), host, f"{INPUTS}/{given.later}/{file}")
        except ConnectionError as error:  # its processes have ended with it, as it reports
            log.info("%s is not sent to %s: %s", file, host.label, error)
        except Exception as error:  # of whatever kind: the process would wait for ever
            self._problem = DataMissing(
                f"{Path(given.folder, file)} cannot be sent to {host.label}: {error}"
            )
        finally:
            with self._lock:
                self._under_way.discard(key)


def fetching(init: str, rows: str) -> Callable[[Path], Path]:
    """Return a function that returns the whole file in the place of one with its header alone.

    init:  the folder of the shards that a server begins with
    rows:  the folder into which their files come when they are asked for; "" if `init` has them
    """
    above = Path(init).parent

    def fetched(path: Path) -> Path:
        if not rows:
            return path
        name = path.relative_to(above)
        there = Path(rows, name)
        if not there.exists():
            wants(name.as_posix())
        while not there.exists():
            sleep(LOOK_S)  # nothing tells of it
        return there

    return fetched
