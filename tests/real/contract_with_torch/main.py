"""What a training loop may do in torch: a list of features, each a small loop of its own.

    python main.py [STRATEGY]    prints, as JSON, what each feature has trained, or the refusal

Without a strategy torch's optimizers train alone; with one they are wrapped. Under `shoal run` each
worker trains on its share of every batch where the feature's loss is a mean over rows.
"""

import json
import sys
from importlib import import_module

import torch
from setting import FEATURES, Setting

for each in ("optimizers", "gradients", "writes", "models"):
    import_module(each)  # its features


def trained(name, at):
    """What a feature ends with: all values, or the refusal of Shoal, by name."""
    torch.manual_seed(0)
    try:
        found = FEATURES[name](at)
    except Exception as error:
        if at.strategy:
            from shoal.errors import ShoalError

            if isinstance(error, ShoalError):
                return f"refused: {error.message}"
        return f"{type(error).__name__}: {error}"
    values = [each.detach().double().reshape(-1) for each in found.state_dict().values()]
    return torch.cat(values).tolist()


def main():
    strategy = sys.argv[1] if len(sys.argv) > 1 else ""
    rank, world = 0, 1
    if strategy:
        import shoal

        context = shoal.init()
        rank, world = context.rank, context.world_size
    at = Setting(strategy, rank, world)
    found = {name: trained(name, at) for name in FEATURES}
    print("FOUND", json.dumps([rank, found]), flush=True)


if __name__ == "__main__":
    main()
