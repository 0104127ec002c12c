"""`shoal bench moving`: the cost of a server that joins, and of one that leaves, to a client.

A client pushes and pulls rows of a table of sixteen megabytes, at half the rate that it can reach.
Then a server joins, and later another is told to leave. A half-second counts as low if fewer than
0.8 of the paced requests were done in it.

low, a server joins   the longest time of low half-seconds in a row; likewise when a server leaves
failed requests       the number of requests that failed
most over even        the rows of the server with most rows, over an even share: after a server has
                      joined, and after one has left
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator

import torch

from shoal.apps.bench.clusters import one_worker
from shoal.apps.bench.rows import Row, quality
from shoal.client.client import Client
from shoal.engines.cluster import server_task
from shoal.errors import ShoalError
from shoal.keys import KeyRange
from shoal.protocol.views import View
from shoal.storage.run_folder import RunFolder
from shoal.tables.spec import Access, TableSpec

ROWS, WIDTH = 4096, 1024
SERVERS, FRAGMENTS_EACH = 2, 64
AFTER_S, BIN_S, LOW = 6.0, 0.5, 0.8
PATIENCE_S = 30.0
CAPACITY_S = 3.0
PARTS = 8
COUNT = 5
ROUNDS = 1


def rows(folder: RunFolder, rounds: int, replicas: int = 1) -> Iterator[Row]:
    """Yield the rows of one round, whatever `rounds` is: it takes half a minute."""
    del rounds
    spec = TableSpec(
        "bench",
        ROWS,
        (WIDTH,),
        access=Access("sgd", {"lr": 1e-3}),
        fragment_rows=ROWS // (SERVERS * FRAGMENTS_EACH),
    )
    with one_worker(folder, spec, SERVERS, replicas=replicas) as (processes, client):
        load = Load(client)
        load.go_on(AFTER_S)
        load.begin()
        processes.start(server_task(processes, processes.scheduler, SERVERS))
        load.go_on(PATIENCE_S, lambda view: len(view.servers) == SERVERS + 1 and _whole(view))
        load.go_on(AFTER_S)
        joined, even = load.longest_low(), _most_over_even(client.view)
        load.begin()
        processes.signal("server-0", signal.SIGTERM)
        load.go_on(PATIENCE_S, lambda view: len(view.servers) == SERVERS and _whole(view))
        load.go_on(AFTER_S)
        left = load.longest_low()
        yield quality("low, a server joins", joined, "s", 3.0, "lower")
        yield quality("low, a server leaves", left, "s", 3.0, "lower")
        yield quality("failed requests", load.failed, "", 1.0, "lower")
        yield quality("most over even, joined", even, "x", 1.1, "lower")
        yield quality("most over even, left", _most_over_even(client.view), "x", 1.1, "lower")


class Load:
    """Requests at half the rate at which they could be done.

    failed: the number of requests that failed
    """

    def __init__(self, client: Client) -> None:
        self.failed = 0
        self._client = client
        self._some = torch.ones(ROWS // PARTS, WIDTH)
        self._into = torch.empty_like(self._some)
        self._number = 0
        self._done: list[float] = []
        self.begin()
        while time.monotonic() < self.began + CAPACITY_S:
            self._request()
        self._rate = len(self._done) / CAPACITY_S / 2
        self.begin()

    def begin(self) -> None:
        """Begin to count requests anew."""
        self.began = time.monotonic()
        self._done.clear()

    def go_on(self, seconds: float, enough: Callable[[View], bool] = lambda view: False) -> None:
        """Send requests for `seconds`, or until the view is `enough`."""
        started, sent = time.monotonic(), 0
        while time.monotonic() < started + seconds and not enough(self._client.view):
            ahead = started + sent / self._rate - time.monotonic()
            if ahead > 0:
                time.sleep(ahead)
            self._request()
            sent += 1

    def _request(self) -> None:
        """Push to some of the rows and pull them."""
        first = self._number % PARTS * (ROWS // PARTS)
        rows = KeyRange(first, first + ROWS // PARTS)
        self._number += 1
        try:
            self._client.blocking.push("bench", self._some, rows)
            self._client.blocking.pull("bench", rows, self._into)
        except ShoalError:
            self.failed += 1
        self._done.append(time.monotonic())

    def longest_low(self) -> float:
        """Return the longest time of low half-seconds in a row, in seconds."""
        bins = Counter(int((at - self.began) / BIN_S) for at in self._done)
        longest = now = 0
        for number in range(int((self._done[-1] - self.began) / BIN_S)):
            now = now + 1 if bins[number] < LOW * self._rate * BIN_S else 0
            longest = max(longest, now)
        return longest * BIN_S


def _whole(view: View) -> bool:
    """Return whether no rows move, and every server has rows."""
    placements = view.placements[0]
    holders = {rank for placement in placements for rank in placement.in_sync}
    return not any(placement.syncing_since for placement in placements) and len(holders) == len(
        view.servers
    )


def _most_over_even(view: View) -> float:
    held = Counter({member.rank: 0 for member in view.servers})
    for placement in view.placements[0]:
        for rank in placement.in_sync:
            held[rank] += len(placement.rows)
    return max(held.values()) / (sum(held.values()) / len(held))
