"""A small language model, in the manner of nanoGPT and minGPT.

Weight decay for matrices only, gradients accumulated over micro-batches and clipped, warm-up and half a cosine.
`clip_norm` clips what all workers have averaged, as scripts for DistributedDataParallel do; with servers ("sync")
it is refused for more workers than one.

Lines changed for Shoal: 5; for DistributedDataParallel: 6.
"""

import argparse
import math
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

import shoal  # shoal

# ddp: import torch.distributed as dist
# ddp: from torch.nn.parallel import DistributedDataParallel as DDP
BLOCK, BATCH, ACCUMULATION, WIDTH, HEADS, LAYERS = 32, 4, 3, 32, 2, 2
DATA = torch.tensor(list(Path(argparse.__file__).read_bytes()[:20000]))  # a text that all have


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.project = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, HEADS, c // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.project(y.transpose(1, 2).reshape(b, t, c))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.attend = nn.LayerNorm(WIDTH), Attention()
        self.between = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1)
        )

    def forward(self, x):
        x = x + self.attend(self.before(x))
        return x + self.mlp(self.between(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(256, WIDTH), nn.Embedding(BLOCK, WIDTH)
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.last, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256, bias=False)
        self.tokens.weight = self.head.weight  # tied
        self.apply(self.begin)

    def begin(self, module):
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, x, y):
        h = self.tokens(x) + self.places(torch.arange(x.shape[1]))
        logits = self.head(self.last(self.blocks(h)))
        return F.cross_entropy(logits.flatten(0, 1), y.flatten())

    def configure_optimizers(self, weight_decay, lr, betas):
        groups = [
            {
                "params": [p for p in self.parameters() if p.dim() >= 2],
                "weight_decay": weight_decay,
            },
            {"params": [p for p in self.parameters() if p.dim() < 2], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=lr, betas=betas)


def get_batch():
    starts = torch.randint(len(DATA) - BLOCK - 1, (BATCH,))
    return tuple(torch.stack([DATA[s + i : s + i + BLOCK] for s in starts]) for i in (0, 1))


def get_lr(step, steps, lr=1e-2, least=1e-3, warmup=3):
    if step < warmup:
        return lr * (step + 1) / (warmup + 1)
    return least + 0.5 * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup))) * (lr - least)


def train(steps=12):
    torch.manual_seed(1337)
    model = GPT()
    optimizer = model.configure_optimizers(weight_decay=0.1, lr=1e-2, betas=(0.9, 0.95))
    context = shoal.init()  # shoal
    optimizer = shoal.Optimizer(optimizer, "allreduce", module=model, clip_norm=0.5)  # shoal
    torch.manual_seed(1337 + context.rank)  # shoal
    # ddp: model = DDP(model)
    # ddp: torch.manual_seed(1337 + dist.get_rank())
    losses = []
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = get_lr(step, steps)
        total = 0.0
        for _micro in range(ACCUMULATION):
            # ddp: model.require_backward_grad_sync = _micro == ACCUMULATION - 1
            loss = model(*get_batch()) / ACCUMULATION
            loss.backward()
            total += loss.item()
        # plain, ddp: nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(total)
    return losses


if __name__ == "__main__":
    # ddp: dist.init_process_group("gloo")
    for step, loss in enumerate(train()):
        print(f"iter {step}: loss {loss:.4f}")
