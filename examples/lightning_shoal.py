"""Lightning's Trainer on Shoal: `shoal run --workers 2 --servers 2 examples/lightning_shoal.py`.

Each worker is a process with a Trainer of its own, on one device. The optimizer exchanges gradients and
parameters; Lightning knows nothing of it. Needs `pip install lightning`.
"""

import argparse

import lightning
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import shoal


class Digits(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 10))

    def training_step(self, batch: list[torch.Tensor], number: int) -> torch.Tensor:
        x, y = batch
        return functional.cross_entropy(self.layers(x), y)

    def validation_step(self, batch: list[torch.Tensor], number: int) -> None:
        x, y = batch
        accuracy = (self.layers(x).argmax(1) == y).float().mean()
        self.log("accuracy", accuracy, prog_bar=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return shoal.Optimizer(torch.optim.Adam(self.parameters(), lr=1e-3), strategy="sync")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--save", default="digits.ckpt")
    parser.add_argument("--load", default=None, help="a checkpoint of Lightning to go on from")
    args = parser.parse_args()
    context = shoal.init()
    lightning.seed_everything(context.rank, verbose=False)
    x, y = load_digits(return_X_y=True)
    images, labels = torch.tensor(x, dtype=torch.float32) / 16, torch.tensor(y)
    train = TensorDataset(images[:1500], labels[:1500])
    test = TensorDataset(images[1500:], labels[1500:])
    trainer = lightning.Trainer(
        max_epochs=args.epochs,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=context.rank == 0,
        enable_model_summary=context.rank == 0,
    )
    trainer.fit(
        Digits(),
        DataLoader(train, batch_size=32, sampler=shoal.Sampler(train)),
        DataLoader(test, batch_size=512),
        ckpt_path=args.load,
        weights_only=True,
    )
    if context.rank == 0:
        trainer.save_checkpoint(args.save)  # the optimizer's state is torch's, with its moments
        print(f"accuracy {trainer.callback_metrics['accuracy']:.4f}")
    context.client.barrier("saved")


if __name__ == "__main__":
    main()
