"""Pushes ones to a table, 200 times, and prints what the table has when all workers have."""

import os

import torch

import shoal

PUSHES = 200

context = shoal.init()
client = context.client
client.create_table(shoal.TableSpec("w", 64, consistency=shoal.asp()))
for _ in range(PUSHES):
    client.blocking.push("w", torch.ones(64))
client.barrier("pushed")
row = client.blocking.pull("w")
words = "rank", os.environ["DMLC_RANK"], context.rank, "has", row.min().item(), row.max().item()
os.write(1, f"{' '.join(map(str, words))}\n".encode())  # a line whole: other processes write too
