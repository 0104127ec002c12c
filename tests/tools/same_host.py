"""The speed of exchanges at tcp:// addresses of this host, beside unix ones, in one run by turns.

python -m tests.tools.same_host
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from time import perf_counter

import torch

from shoal.apps.bench.clusters import one_worker
from shoal.client.client import Client
from shoal.storage.run_folder import RunFolder
from shoal.tables.spec import Access, TableSpec

CALLS = {64: 2000, 1 << 20: 200, 64 << 20: 6}  # in a round, by bytes
ROUNDS, WARM_UP = 24, 2


def seconds(client: Client, values: torch.Tensor, out: torch.Tensor, calls: int) -> float:
    began = perf_counter()
    for _ in range(calls):
        client.blocking.push_pull("bench", values, out=out)
    return (perf_counter() - began) / calls


def compare(nbytes: int) -> list[list[float]]:
    """Return the seconds of an exchange of each round, for unix and for tcp."""
    access = Access("sgd", {"lr": 1e-3})
    table = TableSpec("bench", nbytes // 4, access=access, nonfinite="allow")
    values, out = torch.ones(nbytes // 4), torch.empty(nbytes // 4)
    found: list[list[float]] = [[], []]
    with ExitStack() as stack:
        clients = []
        for listen in ("", "tcp://127.0.0.1:0"):
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            cluster = one_worker(RunFolder.create(Path(folder), "run"), table, server_listen=listen)
            clients.append(stack.enter_context(cluster)[1])
        for turn in range(ROUNDS):
            for side in (0, 1) if turn % 2 else (1, 0):
                found[side].append(seconds(clients[side], values, out, CALLS[nbytes]))
    return [each[WARM_UP:] for each in found]


def main() -> None:
    for nbytes in CALLS:
        unix, tcp = compare(nbytes)
        ratio = median(one / other for one, other in zip(unix, tcp, strict=True))
        times = f"unix {median(unix) * 1e6:.1f} us, tcp {median(tcp) * 1e6:.1f} us"
        print(f"push_pull {nbytes} B: {times}; speed of tcp over unix {ratio:.3f}", flush=True)


if __name__ == "__main__":
    main()
