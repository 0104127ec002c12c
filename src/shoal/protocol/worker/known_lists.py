"""KnownLists: the lists of keys that servers have, as far as a worker knows."""

from __future__ import annotations

from collections import Counter, OrderedDict

from shoal.protocol.messages.base import KeyList
from shoal.protocol.views import NodeId
from shoal.protocol.worker.server_part import ServerPart

LISTS_MAX = 1 << 12  # of a server
LACKED_MAX = 2  # times that a server lacks a list, after which it is always sent


class KnownLists:
    """What servers have admitted, and what they lacked later: they may drop lists at any time."""

    def __init__(self) -> None:
        self._of: dict[NodeId, OrderedDict[bytes, None]] = {}
        self._lacked: Counter[tuple[NodeId, bytes]] = Counter()

    def lists(self, server_part: ServerPart) -> tuple[KeyList, ...]:
        """Return how the keys of each part of a request are sent."""
        known = self._of.get(server_part.server) or OrderedDict[bytes, None]()
        buffers = server_part.buffers
        return tuple(
            KeyList(digest, 0 if digest in known else buffers[at].nbytes)
            for digest, at in zip(server_part.lists, server_part.key_buffers(), strict=True)
        )

    def told(self, server_part: ServerPart) -> tuple[memoryview, ...]:
        """Return the payload of a request: what the server has not got."""
        lists = zip(self.lists(server_part), server_part.key_buffers(), strict=True)
        named = {at for each, at in lists if each.named}
        return tuple(view for at, view in enumerate(server_part.buffers) if at not in named)

    def learn(self, server_part: ServerPart) -> None:
        """Note that a server has the lists of a request, which it has admitted."""
        known = self._of.setdefault(server_part.server, OrderedDict())
        for digest in server_part.lists:
            if digest and self._lacked[server_part.server, digest] < LACKED_MAX:
                known[digest] = None
                known.move_to_end(digest)
        while len(known) > LISTS_MAX:
            known.popitem(last=False)

    def forget(self, server_part: ServerPart) -> None:
        """Note that a server lacks one of the lists of a request."""
        known = self._of.get(server_part.server, OrderedDict())
        if len(self._lacked) > LISTS_MAX:
            self._lacked.clear()
        for digest in server_part.lists:
            if digest in known:
                del known[digest]
                self._lacked[server_part.server, digest] += 1
