import time
from pathlib import Path

import torch


class Model(torch.nn.Sequential):
    def __init__(self, slow):
        super().__init__(torch.nn.Flatten(), torch.nn.Linear(64, 10))
        self.slow = slow

    def forward(self, x):
        if self.slow and self.training:
            time.sleep(0.3)  # the fault: this worker's compute is slow
        return super().forward(x)


def make():  # one worker is slow, until it is started again
    try:
        Path(__file__).with_name("taken").touch(exist_ok=False)
        return Model(True)
    except FileExistsError:
        return Model(False)
