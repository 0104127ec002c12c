"""Trains with torch's optimizer, and wrapped by two strategies: in_lightning.py FILE"""

import sys

import lightning
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import shoal


class Small(lightning.LightningModule):
    def __init__(self, wraps):
        super().__init__()
        torch.manual_seed(3)
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
        self.wraps = wraps

    def training_step(self, batch, number):
        x, y = batch
        return functional.mse_loss(self.layers(x), y)

    def configure_optimizers(self):
        inner = torch.optim.AdamW(self.parameters(), lr=0.05)
        optimizer = shoal.Optimizer(inner, strategy=self.wraps) if self.wraps else inner
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)]


def trained(wraps):
    torch.manual_seed(5)
    x = torch.randn(64, 6)
    rows = TensorDataset(x, x.sum(1, keepdim=True))
    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        gradient_clip_val=0.5,
        accumulate_grad_batches=2,
    )
    module = Small(wraps)
    trainer.fit(module, DataLoader(rows, batch_size=8))
    return nn.utils.parameters_to_vector(module.parameters()).detach()


if __name__ == "__main__":
    shoal.init()
    torch.save([trained(each) for each in ("", "sync", "allreduce")], sys.argv[1])
