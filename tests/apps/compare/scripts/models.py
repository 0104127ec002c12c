import torch


def small():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))


class Wrong(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = small()

    def forward(self, x):
        raise ValueError("it was planted")
