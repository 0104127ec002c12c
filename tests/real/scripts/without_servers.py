import torch

import shoal

shoal.init()
model = torch.nn.Linear(1, 1)
shoal.Optimizer(torch.optim.SGD(model.parameters()), strategy="allreduce")
