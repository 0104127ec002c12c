"""A worker that pushes to tables side by side, and says how long each push took."""

import time
from functools import partial
from pathlib import Path
from threading import Thread

import torch

from shoal.client.client import Client
from shoal.client.options import ClientOptions
from shoal.tables.spec import TableSpec, asp


def push_until(scheduler: str, token: str, folder: str, tables: int) -> None:
    """Push ones to each table, one after the other, until the file `over` is in `folder`.

    Each push adds a line to the file of its table there: when it began, seconds. A last line says
    how many pushes there were, and what the table has in the end.
    """
    options = ClientOptions(token=token, sync_timeout_s=60.0)
    names = [f"t{number}" for number in range(tables)]
    with Client(scheduler, options) as client:
        for name in names:
            client.create_table(TableSpec(name, 64, consistency=asp()))
        threads = [Thread(target=partial(_push, client, name, Path(folder))) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def _push(client: Client, name: str, folder: Path) -> None:
    count = 0
    with (folder / name).open("w") as file:
        while not (folder / "over").exists():
            began = time.monotonic()
            client.push(name, torch.ones(64)).wait()
            print(began, time.monotonic() - began, file=file, flush=True)
            count += 1
            time.sleep(0.005)  # leaves the processor to the others
        print(count, client.pull(name).wait().max().item(), file=file, flush=True)
