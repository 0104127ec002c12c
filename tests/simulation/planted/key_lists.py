"""Bugs of lists of keys that servers keep, each planted by replacing one method."""

from contextlib import contextmanager
from hashlib import blake2b
from unittest.mock import patch

from shoal.protocol.server.requests import key_lists
from shoal.protocol.server.requests.key_lists import KeyLists
from shoal.protocol.worker import routing
from shoal.protocol.worker.known_lists import KnownLists
from shoal.protocol.worker.sender import Sender


@contextmanager
def the_latest_list_will_do():
    """A server takes the list that it got last, if that has as many keys."""
    right = KeyLists.fill

    def fill(self, request, loads):
        latest = next(reversed(self._kept.values()), b"")
        before = dict(self._kept)
        for digest, keys in before.items():
            if len(keys) == len(latest):
                self._kept[digest] = latest
        right(self, request, loads)
        self._kept.update(before)

    with patch.object(KeyLists, "fill", fill):
        yield


@contextmanager
def a_list_that_is_lacking_is_named_again():
    """A worker answers a server that lacks a list with the same request."""
    with patch.object(Sender, "lacks_keys", lambda self, part: None):
        yield


@contextmanager
def a_list_is_known_once_it_is_sent():
    """A worker names a list that no server has, and a server takes what is in its memory."""
    right = KnownLists.told

    def told(self, server_part):
        self.learn(server_part)
        return right(self, server_part)

    def fill(self, request, loads):
        some = [each for each in request.lists if each.digest in self._kept]
        if len(some) == len(request.lists):
            right_fill(self, request, loads)

    right_fill = KeyLists.fill
    with (
        patch.object(KnownLists, "told", told),
        patch.object(KeyLists, "fill", fill),
        patch.object(KeyLists, "lacks", lambda self, request: False),
    ):
        yield


@contextmanager
def a_list_is_named_by_its_first_key():
    """Lists that begin with the same key have the same name."""

    def digest(told):
        return blake2b(bytes(told)[:8], digest_size=16).digest()

    with patch.object(routing, "digest128", digest), patch.object(key_lists, "digest128", digest):
        yield
