"""shoal.train with a model of one's own: an importable factory in, the trained module out."""

from torch import nn

import shoal


def network() -> nn.Module:
    """Every worker builds it, so it is a function that other processes can import from here."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))


if __name__ == "__main__":
    result = shoal.train(model=network, data="digits", workers=2, servers=2, epochs=8, lr=0.01)
    losses = shoal.load_run(result.run_dir).steps[0]["loss"]
    print(f"loss of worker 0: {losses[0]:.3f} at its first step, {losses[-1]:.3f} at its last")
    print(f"accuracy {result.metrics['accuracy']:.4f}, run {result.run_dir}")
    print(f"the last layer is here: {tuple(result.model[-1].weight.shape)}")
