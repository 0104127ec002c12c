import json
import os

import torch
from striking import FOLDER, strike


def rank():
    for path in FOLDER.glob("runs/*/pids.json"):
        names = {pid: name for name, pid in json.loads(path.read_text()).items()}
        name = names.get(os.getpid(), "")
        return int(name[7:]) if name.startswith("worker") else -1
    return None


class Net(torch.nn.Linear):
    steps = 0

    def forward(self, x):
        if self.training:
            strike(rank(), self.steps)
            self.steps += 1
        return super().forward(x.flatten(1))


def load():
    return Net(64, 10)
