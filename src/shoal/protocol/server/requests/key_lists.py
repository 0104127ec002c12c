"""KeyLists: lists of keys that workers have sent, which later requests name by their digest.

They are no state of the tables: a server that lacks a list asks for it. So no other server has to
have it, and the oldest lists may be dropped.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from shoal.keys import digest128
from shoal.protocol.layout import KEY_BYTES
from shoal.protocol.messages.base import KeyList
from shoal.protocol.messages.requests import Request
from shoal.protocol.server.state.shard_store import Loads, Staged

LIST_BYTES = 200  # that a list takes beside its keys


class KeyLists:
    """The lists that were used last, up to a number of bytes.

    Args:
        most_bytes: the bytes of all lists; a longer list is not kept.

    Attributes:
        nbytes: the bytes of the lists that are here.
    """

    def __init__(self, most_bytes: int) -> None:
        self.nbytes = 0
        self._most = most_bytes
        self._kept: OrderedDict[bytes, bytes] = OrderedDict()

    def lacks(self, request: Request) -> bool:
        """Return whether a request names a list that is not here, or has another length here."""
        return any(
            each.named and len(self._kept.get(each.digest, b"")) != KEY_BYTES * count
            for count, each in zip(request.key_counts(), request.lists, strict=False)
        )

    def fill(self, request: Request, loads: Loads) -> None:
        """Copy the lists that a request names, all of which are here, to its loads."""
        for each, staged in _listed(request, loads):
            if each.named:
                self._kept.move_to_end(each.digest)
                keys = staged.views[0]
                keys[:] = self._kept[each.digest]

    def destinations(self, request: Request, loads: Loads) -> list[memoryview]:
        """Return the destinations of a request's payload: all but those of keys that are here."""
        filled = {id(staged) for each, staged in _listed(request, loads) if each.named}
        return [view for load in loads for view in load.views[1 if id(load) in filled else 0 :]]

    def keep(self, request: Request, loads: Loads) -> str:
        """Keep the lists that have come with a request; return why one of them is wrong, or ""."""
        for each, staged in _listed(request, loads):
            if each.digest and not each.named:
                keys = bytes(staged.views[0])
                if digest128(keys) != each.digest:
                    return "a list of keys has another digest than the request says"
                self._keep(each.digest, keys)
        return ""

    def _keep(self, digest: bytes, keys: bytes) -> None:
        if digest in self._kept:
            self._kept.move_to_end(digest)
        elif len(keys) + LIST_BYTES <= self._most:
            self._kept[digest] = keys
            self.nbytes += len(keys) + LIST_BYTES
            while self.nbytes > self._most:
                _, oldest = self._kept.popitem(last=False)
                self.nbytes -= len(oldest) + LIST_BYTES


def _listed(request: Request, loads: Loads) -> Iterator[tuple[KeyList, Staged]]:
    """Yield each list of a request with the load that has its keys."""
    parts = [*request.pushes, *(part for part in request.pulls if part.keys >= 0)]
    keyed = [load for part, load in zip(parts, loads, strict=True) if part.keys >= 0]
    return zip(request.lists, keyed, strict=True)
