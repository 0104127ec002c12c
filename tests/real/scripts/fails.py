"""Trains; worker 1 may fail at its sixth step: fails.py FOLDER price|nan|never plain|with"""

import sys
from pathlib import Path

import torch

import shoal

folder, fails, begins = sys.argv[1:]


def price_of(row):
    return row["price"]


def train(context):
    model = torch.nn.Linear(4, 1)
    optimizer = shoal.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), strategy="asgd")
    for step in range(20):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        if context.rank == 1 and step == 5:
            if fails == "price":
                price_of({"cost": 1})
            elif fails == "nan":
                model.weight.grad[0, 0] = float("nan")
        optimizer.step()
    print(f"rank {context.rank} is done")
    Path(folder, f"done-{context.rank}").touch()


if begins == "plain":
    train(shoal.init())
else:
    with shoal.init() as context:
        train(context)
