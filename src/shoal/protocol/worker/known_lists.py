"""KnownLists: the lists of keys that servers have, as far as a worker knows."""

from __future__ import annotations

from collections import Counter

from shoal.protocol.messages.base import KeyList
from shoal.protocol.views import NodeId
from shoal.protocol.worker.server_part import ServerPart

LISTS_MAX = 1 << 12  # of a server
LACKED_MAX = 3  # times that a server lacks a list that it had got, before it is sent as any other


class KnownLists:
    """What servers have admitted, and what they lacked later: they may drop lists at any time."""

    def __init__(self) -> None:
        self._of: dict[NodeId, dict[bytes, None]] = {}  # the one used last at the end
        self._lacked: Counter[tuple[NodeId, bytes]] = Counter()

    def lists(self, server_part: ServerPart) -> tuple[KeyList, ...]:
        """Return how the keys of each part of a request are sent."""
        known, buffers = self._of.get(server_part.server, {}), server_part.buffers
        found = []
        for digest, at in zip(server_part.lists, server_part.key_buffers(), strict=True):
            nbytes = 0 if digest in known else buffers[at].nbytes
            found.append(KeyList(self._told(server_part.server, digest), nbytes))
        return tuple(found)

    def told(self, server_part: ServerPart) -> tuple[memoryview, ...]:
        """Return the payload of a request: what the server has not got."""
        lists = zip(self.lists(server_part), server_part.key_buffers(), strict=True)
        named = {at for each, at in lists if each.named}
        return tuple(view for at, view in enumerate(server_part.buffers) if at not in named)

    def _told(self, server: NodeId, digest: bytes) -> bytes:
        """Return the digest of a list for a server; empty if that is not to keep the list."""
        return digest if self._lacked[server, digest] < LACKED_MAX else b""

    def learn(self, server_part: ServerPart) -> None:
        """Note that a server has the lists of a request, which it has admitted."""
        server = server_part.server
        known = self._of.setdefault(server, {})
        for digest in server_part.lists:
            if digest in known:  # it was named
                self._lacked.pop((server, digest), None)
            if self._told(server, digest):
                known.pop(digest, None)
                known[digest] = None
        while len(known) > LISTS_MAX:
            del known[next(iter(known))]

    def forget(self, server_part: ServerPart) -> None:
        """Note that a server lacks one of the lists of a request."""
        known = self._of.get(server_part.server, {})
        if len(self._lacked) > LISTS_MAX:
            self._lacked.clear()
        for digest in server_part.lists:
            if digest in known:
                del known[digest]
                self._lacked[server_part.server, digest] += 1
