"""Evaluate what mnist_shoal.py trains while it does: `python beside.py shoal-runs/mnist_shoal-...`.

It attaches to that run as a group of its own. Nobody waits for it, and it reads parameters as they are.
"""

import gzip
import os
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

import shoal

FOLDER = Path(os.environ.get("SHOAL_DATA", ".")) / "mnist"


def read(name: str) -> np.ndarray:
    data = np.frombuffer(gzip.open(FOLDER / f"{name}.gz").read(), np.uint8)
    return data[16:].reshape(-1, 784) if "images" in name else data[8:]


x, y = (
    torch.tensor(read("t10k-images-idx3-ubyte")) / 255,
    torch.tensor(read("t10k-labels-idx1-ubyte")).long(),
)
model = nn.Sequential(
    nn.Linear(784, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 10)
)
params, began = shoal.pytorch.FlatParams(model.parameters()), time.monotonic()

with shoal.connect(sys.argv[1], group=f"beside-{os.getpid()}") as client:
    running = True
    while running:
        running = "" in client.groups  # the first group, whose run it is
        if client.view.tables:
            params.pull(client, "/params")
            with torch.no_grad():
                accuracy = (model(x).argmax(1) == y).float().mean()
            print(f"{time.monotonic() - began:4.1f} s: accuracy {accuracy:.4f}", flush=True)
        time.sleep(0.5)
