"""A small transformer that learns to write Python: the whole life of a training script.

    shoal run --workers 2 --servers 2 --checkpoint-every 20 --title writer examples/transformer.py
    shoal run --resume shoal-runs/writer-*
    python examples/transformer.py --write writer.pt        # the weights, without Shoal

It has two parameter groups (decay for matrices only), mixed precision, a learning-rate schedule,
clipped gradients, evaluation and checkpoints. The second command goes on where a run that was
killed has stopped, to the same weights as if nothing had happened.
"""

import argparse
import math
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import shoal

WINDOW, BATCH = 64, 16
TEXT = Path(argparse.__file__).read_bytes()  # a module of the standard library


class Writer(nn.Module):
    def __init__(self, width=64, heads=4, layers=2):
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, width), nn.Embedding(WINDOW, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.next = nn.Linear(width, 256)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        h = self.bytes(x) + self.places(torch.arange(x.shape[1]))
        return self.next(self.layers(h, mask=mask, is_causal=True))


def windows(text, stride):
    data = torch.tensor(list(text))
    starts = range(0, len(data) - WINDOW - 1, stride)
    return TensorDataset(torch.stack([data[s : s + WINDOW + 1] for s in starts]))


def loss_of(model, batch):
    with torch.autocast("cpu", torch.bfloat16):  # mixed precision; weights stay float32
        scores = model(batch[:, :-1])
    return nn.functional.cross_entropy(scores.float().flatten(0, 1), batch[:, 1:].flatten())


def train(epochs, path):
    context = shoal.init()
    torch.manual_seed(0)
    model, cut = Writer(), len(TEXT) * 9 // 10
    learn, test = windows(TEXT[:cut], WINDOW // 2), windows(TEXT[cut:], WINDOW)
    steps = epochs * math.ceil(len(learn) / (BATCH * context.world_size))

    matrices = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    groups = [
        {"params": matrices, "weight_decay": 0.1, "initial_lr": 3e-3},
        {"params": others, "weight_decay": 0.0, "initial_lr": 3e-3},
    ]
    optimizer = shoal.Optimizer(torch.optim.AdamW(groups, lr=3e-3))

    def rate(step):  # warm-up, then half a cosine
        return min(1, (step + 1) / 10) * (1 + math.cos(math.pi * min(1, step / steps))) / 2

    step = context.began_at  # 0 in a new run
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate, last_epoch=step - 1)
    # a resumed run leaves out the epochs and the batches that were done before the checkpoint
    loader = DataLoader(learn, BATCH, sampler=shoal.Sampler(learn, batch_size=BATCH))
    for epoch in range(context.first_epoch(loader), epochs):
        for (batch,) in loader:
            torch.manual_seed(step * context.world_size + context.rank)  # dropout, also resumed
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step(weight=len(batch))
            schedule.step()
            step += 1
        model.eval()
        with torch.no_grad():
            heard = torch.stack([loss_of(model, batch) for (batch,) in DataLoader(test, 64)])
        model.train()
        print(f"epoch {epoch}: step {step}, loss on other text {heard.mean():.3f}", flush=True)
    context.client.barrier("trained")
    if context.rank == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, path)
        print(f"saved to {path}")
    context.close()


def write(path, begin=b"def ", length=120):
    model = Writer()
    model.load_state_dict(torch.load(path, weights_only=True)["model"])
    model.eval()
    text = list(begin)
    for _ in range(length):
        with torch.no_grad():
            scores = model(torch.tensor([text[-WINDOW:]]))[0, -1]
        text.append(int(scores.argmax()))
    print(bytes(text).decode("utf-8", "replace"))


if __name__ == "__main__":
    options = argparse.ArgumentParser()
    options.add_argument("--out", default="writer.pt", help="where the weights go")
    options.add_argument("--epochs", type=int, default=2, help="passes over the text")
    options.add_argument("--write", metavar="FILE", help="write text with these weights")
    chosen = options.parse_args()
    if chosen.write:
        write(chosen.write)
    else:
        train(chosen.epochs, chosen.out)
