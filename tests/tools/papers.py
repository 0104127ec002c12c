"""What papers claim of their algorithms, measured on simulated clusters with real models and data.

    python tests/tools/papers.py DATA [robust diloco] [--seeds 1]

DATA is the folder with data sets. Computing takes a fixed time of the simulated clock, and messages
what the network's options say: the figures do not depend on this machine, only how long it takes to
get them. docs/papers.md has them, with the settings; what a grid of jobs can show is in
examples/grids, for `shoal compare`.
"""

import argparse
import gzip
import time
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from shoal.apps.train.models import mlp
from shoal.data.catalogue import find_source
from shoal.pytorch.model import LossModel
from shoal.simulation.network import NetworkOptions
from shoal.simulation.training import SimulatedWorker, simulate_training
from shoal.strategies import StrategyOptions, strategies
from shoal.tables.spec import Access

LAN = NetworkOptions(delay_s=0.0002, jitter_s=0.0002, bandwidth=125e6)  # 1 Gbit/s
BATCH_S = 0.02


class Samples:
    """A worker's samples as batches, in an order of each epoch's own."""

    def __init__(
        self, x: Tensor, y: Tensor, rank: int, workers: int, batch: int, seed: int
    ) -> None:
        self.own = torch.arange(rank, len(y), workers)
        self.x, self.y, self.batch, self.seed = x, y, batch, seed * 1000 + rank

    def epoch(self, epoch):
        drawn = torch.Generator().manual_seed(self.seed * 100 + epoch)
        order = self.own[torch.randperm(len(self.own), generator=drawn)]
        for at in range(0, len(order) - self.batch + 1, self.batch):
            chosen = order[at : at + self.batch]
            yield self.x[chosen], self.y[chosen]


def run(
    name, access, make_model, batches, epochs, max_steps=0, batch_s=BATCH_S, seed=0, **settings
):
    """The workers of a simulated run, the bytes that they pushed and pulled, and sent in a step."""
    workers: list[SimulatedWorker] = []
    sent: dict[int, list[int]] = {}
    staleness, codec = settings.pop("staleness", 0), settings.pop("codec", "")
    for rank, own in enumerate(batches):
        torch.manual_seed(seed)
        options = StrategyOptions(
            access,
            staleness,
            workers=len(batches),
            rank=rank,
            codec=codec,
            settings=settings,
        )
        took = batch_s[rank] if isinstance(batch_s, list) else batch_s
        made = SimulatedWorker(strategies[name](options), make_model(), own, epochs, took)
        made.watched = Sent(sent.setdefault(rank, []))
        workers.append(made)
    world = simulate_training(workers, 2, seed, LAN, max_steps)
    machines = [world.nodes[f"worker-{rank}"].machine for rank in range(len(workers))]
    peak = max(after - before for each in sent.values() for before, after in pairwise(each))
    moved = sum(each.bytes_pushed for each in machines), sum(each.bytes_pulled for each in machines)
    return workers, moved, peak


class Sent:
    """Hooks that note how many bytes a worker has sent after each of its steps with data."""

    def __init__(self, into: list[int]) -> None:
        self.into = into

    def __call__(self, client):
        self.client = client
        return self

    def stepped(self, epoch, step, result):
        if result.weight:
            self.into.append(self.client.bytes_sent)

    def exchanged(self): ...

    def epoch_done(self, epoch, step): ...


def pictures(data: Path, name: str, most: int = 0):
    source = find_source(name).load([data])
    train = source.transform(source.train_x, source.train_y)
    test = source.transform(source.test_x, source.test_y)
    shape = tuple(source.train_x.shape[1:])
    return (train[0][: most or None], train[1][: most or None]), test, shape


# ---------------------------------------------------------------------------- DiLoCo

CONTEXT, EMBEDDED, HIDDEN = 16, 24, 256
# 60 rounds at H = 50: with the paper's 0.7 and 0.9, for thousands of rounds, it comes less far
OUTER = {"outer_lr": 1.0, "outer_momentum": 0.5}


class CharModel(nn.Module):
    """The next character from the last ones, with one hidden layer (Bengio et al. 2003)."""

    def __init__(self, characters: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(characters, EMBEDDED)
        self.hidden = nn.Linear(CONTEXT * EMBEDDED, HIDDEN)
        self.out = nn.Linear(HIDDEN, characters)

    def forward(self, x):
        return self.out(torch.tanh(self.hidden(self.embed(x).flatten(1))))


class Text:
    """Random windows of a worker's part of the text."""

    def __init__(self, text: Tensor, steps: int, batch: int, seed: int) -> None:
        self.windows, self.steps, self.batch, self.seed = (
            text.unfold(0, CONTEXT + 1, 1),
            steps,
            batch,
            seed,
        )

    def epoch(self, epoch):
        drawn = torch.Generator().manual_seed(self.seed)
        for _ in range(self.steps):
            chosen = torch.randint(len(self.windows), (self.batch,), generator=drawn)
            windows = self.windows[chosen]
            yield windows[:, :-1], windows[:, -1]


def _adamw(steps: int) -> Access:
    """AdamW whose rate falls to nothing, by a cosine, in so many steps."""
    more = {"schedule": "cosine", "schedule_total": steps}
    return Access("adam", {"lr": 0.003, "weight_decay": 0.01, "decoupled": True, **more})


def shakespeare(data: Path):
    """The text of each worker, windows of what is held out, and the alphabet."""
    raw = gzip.decompress((data / "shakespeare" / "input.txt.gz").read_bytes()).decode()
    alphabet = {c: at for at, c in enumerate(sorted(set(raw)))}
    text = torch.tensor([alphabet[c] for c in raw])
    train, held = text[: int(0.9 * len(text))], text[int(0.9 * len(text)) :]
    return train.chunk(4), held.unfold(0, CONTEXT + 1, 1)[::5], alphabet


def outer(data: Path, seeds: int) -> None:
    """Douillard et al. 2025, section 4.4: outer gradients of 4 bits cost no loss."""
    parts, windows, alphabet = shakespeare(data)
    steps, whole = 3000, []
    print(f"tiny Shakespeare: 4 workers, DiLoCo, H = 50, {steps} steps, means of {seeds} seeds")
    print(f"{'codec':>16} {'loss':>8} {'of none':>8} {'pushed':>12} {'of none':>8}")
    for codec in ("none", "natural:4", "int:4", "qsgd:4", "onebit", "topk:0.1+int:8"):
        losses, pushed = [], 0
        for seed in range(seeds):
            batches = [Text(part, steps, 32, seed * 10 + rank) for rank, part in enumerate(parts)]
            make = lambda: LossModel(CharModel(len(alphabet)))  # noqa: E731
            how = {"seed": seed, "codec": codec, "tau": 50, **OUTER}
            workers, (pushed, _), _ = run("diloco", _adamw(steps), make, batches, 1, **how)
            with torch.no_grad():
                scores = workers[0].model.module(windows[:, :-1])
                losses.append(functional.cross_entropy(scores, windows[:, -1]).item())
        loss = sum(losses) / seeds
        whole = whole or [loss, pushed]
        shares = f"{loss / whole[0]:8.4f} {pushed:12,} {pushed / whole[1]:8.4f}"
        print(f"{codec:>16} {loss:8.4f} {shares}", flush=True)


def diloco(data: Path, seeds: int) -> None:
    """Douillard et al. 2023, section 3: the loss of synchronous training, with 1/H of its bytes."""
    parts, windows, alphabet = shakespeare(data)
    steps = 3000
    print(f"tiny Shakespeare: 4 workers, {steps} steps of 32 characters each, AdamW 0.003, cosine")
    print(f"{'run':>16} {'loss':>8} {'of sync':>8} {'bytes':>12} {'of sync':>8} {'in a step':>10}")
    base = (0.0, 0)
    adam = _adamw(steps)
    for name, settings in (
        ("sync", {}),
        *(("diloco", {"tau": h, **OUTER}) for h in (1, 10, 50, 200, 52)),
        ("streaming_diloco", {"tau": 52, "fragments": 4, "mixing": 0.0, **OUTER}),
    ):
        losses, moved, peak = [], 0, 0
        for seed in range(seeds):
            batches = [Text(part, steps, 32, seed * 10 + rank) for rank, part in enumerate(parts)]
            make = lambda: LossModel(CharModel(len(alphabet)))  # noqa: E731
            workers, both, peak = run(name, adam, make, batches, 1, seed=seed, **settings)
            moved = sum(both)
            with torch.no_grad():
                scores = workers[0].model.module(windows[:, :-1])
                losses.append(functional.cross_entropy(scores, windows[:, -1]).item())
        loss = sum(losses) / seeds
        base = base if base[1] else (loss, moved)
        label = f"H={settings['tau']}" if settings else "sync"
        label += ", P=4" if name == "streaming_diloco" else ""
        shares = f"{loss:8.4f} {loss / base[0]:8.3f} {moved:12,} {moved / base[1]:8.4f}"
        print(f"{label:>16} {shares} {peak:10,}", flush=True)

    _asynchronous(parts, windows, alphabet, steps, seeds, base[0])


def _asynchronous(parts, windows, alphabet, steps, seeds, of_sync) -> None:
    """Liu et al. 2024: one worker four times as slow, at equal characters."""
    print(f"{'one 4 x slower':>16} {'loss':>8} {'of sync':>8} {'seconds':>12} {'of sync':>8}")
    fast = round(4 * steps / 3.25)
    waits = 0.0
    for label, name, counts, settings in (
        ("sync", "sync", [steps] * 4, {}),
        ("async, H=50", "diloco", [fast] * 3 + [fast // 4], {"tau": 50, "mode": "async", **OUTER}),
    ):
        losses, seconds = [], 0.0
        for seed in range(seeds):
            batches = [
                Text(part, count, 32, seed * 10 + rank)
                for rank, (part, count) in enumerate(zip(parts, counts, strict=True))
            ]
            paces = [BATCH_S] * 3 + [4 * BATCH_S]
            make = lambda: LossModel(CharModel(len(alphabet)))  # noqa: E731
            adam = _adamw(max(counts))  # as `shoal train` has it: the longest worker's
            workers, *_ = run(name, adam, make, batches, 1, batch_s=paces, seed=seed, **settings)
            seconds = max(worker.ended_s for worker in workers)
            with torch.no_grad():
                scores = workers[0].model.module(windows[:, :-1])
                losses.append(functional.cross_entropy(scores, windows[:, -1]).item())
        waits, loss = waits or seconds, sum(losses) / seeds
        shares = loss / of_sync, seconds / waits
        print(
            f"{label:>16} {loss:8.4f} {shares[0]:8.3f} {seconds:12.1f} {shares[1]:8.3f}", flush=True
        )


# ---------------------------------------------------------------------------- robust merges


class Poisoned(LossModel):
    """Its gradients go the wrong way, and are 50 times as long."""

    def gradient(self, batch):
        found = super().gradient(batch)
        for gradient in self.grads.values():
            gradient.mul_(-50.0)
        return found


def robust(data: Path, seeds: int) -> None:
    """Yin et al. 2018, section 7: median and trimmed mean bear a wrong worker, unlike the mean."""
    (x, y), test, shape = pictures(data, "mnist")
    print("mnist: 8 workers, 1 epoch, batches of 32, rate 0.1, mlp; accuracy")
    print(f"{'merge':>14} {'clean':>8} {'one of 8 wrong':>15}")
    for merge, more in (("mean", {}), ("median", {}), ("trimmed_mean", {"trim": 0.125})):
        row = []
        for wrong in (None, 3):
            found = []
            for seed in range(seeds):
                kinds = [Poisoned if rank == wrong else LossModel for rank in range(8)]
                made = iter(kinds)
                batches = [Samples(x, y, rank, 8, 32, seed) for rank in range(8)]
                workers, *_ = run(
                    "sync",
                    Access("sgd", {"lr": 0.1}),
                    lambda made=made: next(made)(mlp(shape, 10)),
                    batches,
                    1,
                    seed=seed,
                    merge=merge,
                    **more,
                )
                found.append(workers[0].model.evaluate(*test)[0])
            row.append(sum(found) / seeds)
        print(f"{merge:>14} {row[0]:8.4f} {row[1]:15.4f}", flush=True)


EXPERIMENTS = {"robust": robust, "diloco": diloco, "outer": outer}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("experiments", nargs="*", default=list(EXPERIMENTS))
    parser.add_argument("--seeds", type=int, default=1)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for name in asked.experiments:
        began = time.monotonic()
        print(f"# {EXPERIMENTS[name].__doc__}")
        EXPERIMENTS[name](asked.data, asked.seeds)
        print(f"({time.monotonic() - began:.0f} s)\n", flush=True)


if __name__ == "__main__":
    main()
