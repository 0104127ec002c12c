"""Lightning's loop with Shoal's optimizer computes what it computes with torch's."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.real

SCRIPT = Path(__file__).parent / "scripts" / "in_lightning.py"


def test_lightning_with_shoals_optimizer_is_lightning_with_torchs(tmp_path):
    """With a schedule, clipped gradients, and two batches a step."""
    command = [sys.executable, SCRIPT, "out.pt"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    plain, on_servers, on_workers = torch.load(tmp_path / "out.pt")
    assert plain.abs().sum() > 1
    torch.testing.assert_close(on_servers, plain, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(on_workers, plain, rtol=1e-5, atol=1e-6)
