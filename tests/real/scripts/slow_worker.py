"""Steps of which worker 2 takes its time: slow_worker.py always|once"""

import sys
import time

import torch

import shoal

STEPS, SLOW_S = (60, 0.4) if sys.argv[1] == "always" else (30, 0.05)

with shoal.init() as context:
    client = context.client
    client.create_table(shoal.TableSpec("w", 100, merge="sum", consistency=shoal.bsp()))
    for step in range(STEPS):
        if sys.argv[1] == "once" and context.rank == 2 and step == 10:
            time.sleep(10)  # stands for compute that is longer than the time-out
        time.sleep(SLOW_S if context.rank == 2 else 0.01)  # stands for compute: one worker is slow
        client.push_pull("w", torch.ones(100), advance=True).wait()
