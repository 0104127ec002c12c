"""Disk: writes a node's journal and lease log before the node sends what depends on them."""

from __future__ import annotations

import logging
from collections import deque
from time import monotonic

from shoal.protocol.machine import Append, Effect, Effects, Persist, Send
from shoal.protocol.messages.admin import StatusReply
from shoal.protocol.messages.membership import HeartbeatSeen
from shoal.storage.files import FULL
from shoal.storage.journal import Journal
from shoal.storage.lease_log import LeaseLogFile

RETRY_S = 0.5
HARMLESS = HeartbeatSeen | StatusReply  # messages that depend on nothing on the disk

log = logging.getLogger("shoal.node")


class Disk:
    """Performs the durable effects of a machine; holds them and all after them if the disk is full.

    Args:
        journal: the journal, which receives the machine's records.
        leases: the file that receives the entries of the machine's lease log.
    """

    def __init__(self, journal: Journal | None, leases: LeaseLogFile | None) -> None:
        self._journal = journal
        self._leases = leases
        self._held: deque[Effect] = deque()
        self._retry_at = 0.0
        self._full = False

    def takes(self, effect: Effect) -> bool:
        """Write or hold an effect; return False if the caller has to perform it."""
        if self._held:
            if isinstance(effect, Send) and isinstance(effect.message, HARMLESS):
                return False
            self._held.append(effect)
            return True
        if isinstance(effect, Persist | Append):
            if not self._write(effect):
                self._held.append(effect)
            return True
        return False

    def due(self, now: float) -> Effects:
        """Return the held effects, and hold them no more, if they are due to be tried again."""
        if not self._held or now < self._retry_at:
            return []
        held, self._held = self._held, deque()
        return list(held)

    def __bool__(self) -> bool:
        """Return whether an effect is held."""
        return bool(self._held)

    def _write(self, effect: Persist | Append) -> bool:
        try:
            if isinstance(effect, Append):
                if self._leases is not None:
                    self._leases.append(effect.entry)
            elif self._journal is not None:
                self._journal.write(effect.record, effect.reserve)
        except OSError as error:
            if error.errno not in FULL:
                raise
            if not self._full:
                log.error("no space left in %s: decisions wait for room", self._folder(effect))
            self._full, self._retry_at = True, monotonic() + RETRY_S
            return False
        if self._full:
            log.warning("there is room in %s again", self._folder(effect))
            self._full = False
        return True

    def _folder(self, effect: Persist | Append) -> str:
        file = self._leases if isinstance(effect, Append) else self._journal
        return str(file.path.parent) if file is not None else ""

    def close(self) -> None:
        if self._leases is not None:
            self._leases.close()
