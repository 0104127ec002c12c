"""The script mnist.py, distributed: three lines differ (and this one)."""

import gzip
import os
from pathlib import Path

import numpy as np
import shoal, torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

FOLDER = Path(os.environ.get("SHOAL_DATA", ".")) / "mnist"


def read(name: str) -> np.ndarray:
    data = np.frombuffer(gzip.open(FOLDER / f"{name}.gz").read(), np.uint8)
    return data[16:].reshape(-1, 784) if "images" in name else data[8:]


def tensors(part: str) -> TensorDataset:
    images, labels = read(f"{part}-images-idx3-ubyte"), read(f"{part}-labels-idx1-ubyte")
    return TensorDataset(torch.tensor(images) / 255, torch.tensor(labels).long())


torch.manual_seed(0)
train, test = tensors("train"), tensors("t10k")
model = nn.Sequential(nn.Linear(784, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 10))
shoal.init(); optimizer = shoal.Optimizer(torch.optim.SGD(model.parameters(), lr=0.2))
loader = DataLoader(train, batch_size=64, sampler=shoal.Sampler(train))

for epoch in range(1):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        x, y = test.tensors
        accuracy = (model(x).argmax(1) == y).float().mean()
    print(f"epoch {epoch}: accuracy {accuracy:.4f}")
