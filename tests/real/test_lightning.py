"""Lightning's loop with Shoal's optimizer computes what it computes with torch's."""

import subprocess
import sys

import pytest
import torch

pytestmark = pytest.mark.real

SCRIPT = """
import sys
import lightning, torch
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
        max_epochs=3, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, gradient_clip_val=0.5,
        accumulate_grad_batches=2,
    )
    module = Small(wraps)
    trainer.fit(module, DataLoader(rows, batch_size=8))
    return nn.utils.parameters_to_vector(module.parameters()).detach()


if __name__ == "__main__":
    shoal.init()
    torch.save([trained(each) for each in ("", "sync", "allreduce")], sys.argv[1])
"""


def test_lightning_with_shoals_optimizer_is_lightning_with_torchs(tmp_path):
    """With a schedule, clipped gradients, and two batches a step."""
    (tmp_path / "small.py").write_text(SCRIPT)
    command = [sys.executable, "small.py", "out.pt"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    plain, on_servers, on_workers = torch.load(tmp_path / "out.pt")
    assert plain.abs().sum() > 1
    torch.testing.assert_close(on_servers, plain, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(on_workers, plain, rtol=1e-5, atol=1e-6)
