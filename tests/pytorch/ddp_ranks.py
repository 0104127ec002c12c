"""Ranks of torch DDP with a codec, for `test_ddp.py`: `python ddp_ranks.py RANK FILE OUT JSON`."""

import json
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import shoal

BATCH = 64


def problem(rank):
    """A classification that a small network learns, and this rank's batches."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(
        nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)
    )
    drawn = torch.Generator().manual_seed(7)
    teacher = torch.randn(40, 10, generator=drawn)
    drawn.manual_seed(100 + rank)

    def batch():
        x = torch.randn(BATCH, 40, generator=drawn)
        return x, (x @ teacher).argmax(1)

    return model, batch


def residuals(state):
    """What a hook's codec has left out, by parameter."""
    kept = {} if state is None else state.state_dict()
    return {name: of["residual"] for name, of in kept.items() if name.isdecimal() and of}


def main(rank, rendezvous, out, how):
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    world = how.get("world", 2)
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=world)
    groups = [dist.new_group([first, first + 1]) for first in range(0, world, 2)]
    group = groups[rank // 2]
    module, batch = problem(rank)
    model = DistributedDataParallel(module, bucket_cap_mb=0.01, process_group=group)
    state = None
    if how["codec"]:
        state, hook = shoal.ddp_hook(how["codec"], process_group=group)
        model.register_comm_hook(state, hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    at = how.get("from", 0)
    if at:
        saved = torch.load(f"{out}-{rank}-{at}.pt", weights_only=True)
        module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        if state is not None:
            state.load_state_dict(saved["hook"])
    for _ in range(at):
        batch()
    losses, finite, kept = [], [], -1.0
    for step in range(at, how["steps"]):
        x, y = batch()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        if step == how.get("nan_at") and rank == 1:
            loss = loss * torch.nan
        before = residuals(state)
        loss.backward()
        if step == how.get("nan_at"):
            kept = max(
                float((after - before[n]).abs().max()) for n, after in residuals(state).items()
            )
        finite.append(all(bool(p.grad.isfinite().all()) for p in module.parameters()))
        if finite[-1]:
            optimizer.step()
        losses.append(loss.item())
        if step + 1 == how.get("save"):
            kept = {"model": module.state_dict(), "optimizer": optimizer.state_dict()}
            if state is not None:
                kept["hook"] = state.state_dict()
            torch.save(kept, f"{out}-{rank}-{step + 1}.pt")
    flat = nn.utils.parameters_to_vector(module.parameters()).detach()
    found = {"flat": flat, "losses": losses, "finite": finite, "kept": kept}
    torch.save(found, f"{out}-{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3], json.loads(sys.argv[4]))
