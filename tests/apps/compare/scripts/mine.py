import torch


def load():
    x = torch.eye(4).repeat(10, 1)
    return x, x.argmax(1), x[:8], x[:8].argmax(1)
