"""Two workers begin and stay alike, or the run ends with an error that says how they differ."""

import json
import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.real

PRELUDE = """
import json, sys, torch, shoal
from torch import nn
context = shoal.init()
rank, strategy = context.rank, sys.argv[1]
SGD = torch.optim.SGD
LOCAL = {"tau": 2} if strategy in ("diloco", "model_averaging", "bmuf") else {}

def found(*values):
    with open(f"found-{rank}.json", "w") as file:
        json.dump(values, file)

def total(tensor):
    return round(tensor.detach().double().abs().sum().item(), 5)

def data(step, of=None):
    generator = torch.Generator().manual_seed(10 * step + (rank if of is None else of))
    return torch.randn(8, 4, generator=generator)
"""


def run(tmp_path, script, strategy, *options, code=0, workers=2):
    """What each worker has found, in the order of ranks; and what the command has printed."""
    path = tmp_path / "script.py"
    path.write_text(PRELUDE + script)
    command = [sys.executable, "-m", "shoal", "run", "--workers", str(workers), "--servers", "1"]
    done = subprocess.run(
        [*command, "--output", "all", *options, str(path), strategy],
        capture_output=True, text=True, timeout=100, cwd=tmp_path,
    )  # fmt: skip
    assert (done.returncode == 0) == (code == 0), done.stderr + done.stdout
    files = sorted(tmp_path.glob("found-*.json"))
    return [json.loads(each.read_text()) for each in files], done.stdout + done.stderr


MODULE = """
torch.manual_seed(100 + rank)  # no common seed, as scripts for DistributedDataParallel have none
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("features", torch.randn(4, 8))
        self.register_buffer("mask", torch.rand(8) > 0.5)
        self.project = nn.Linear(8, 8).requires_grad_(False)
        self.norm = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 1)
    def forward(self, x):
        return self.head(self.norm(self.project(torch.cos(x @ self.features)) * self.mask))
model = Net()
"""


HOW = [
    *((strategy, "rank0") for strategy in ("sync", "allreduce", "diloco")),
    *(("allreduce", how) for how in ("mean", "local")),
]


@pytest.mark.parametrize(("strategy", "buffers"), HOW)
def test_buffers_and_frozen_layers_begin_as_rank_0s(tmp_path, strategy, buffers):
    (one, other), _ = run(
        tmp_path,
        MODULE
        + f"""
own = [total(each) for each in model.state_dict().values()]
trained = [p for p in model.parameters() if p.requires_grad]  # the frozen ones are not in it
optimizer = shoal.Optimizer(
    SGD(trained, lr=0.1), strategy, settings=LOCAL, module=model, buffers={buffers!r}
)
begin = [total(each) for each in model.state_dict().values()]
for step in range(4):
    x = data(step) + rank
    optimizer.zero_grad()
    (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
    optimizer.step()
mean = model.norm.running_mean.tolist()
optimizer.flush()
end = {{name: total(each) for name, each in model.state_dict().items()}}
found(own, begin, mean, end, model.norm.running_mean.tolist())
""",
        strategy,
    )
    assert one[0] != other[0]
    assert one[0] == one[1] == other[1]
    assert one[2] != other[2]
    assert (one[3]["norm.running_mean"] == other[3]["norm.running_mean"]) == (buffers != "local")
    of_both = zip(one[2], other[2], strict=True)
    mean = {"rank0": one[2], "mean": [(a + b) / 2 for a, b in of_both], "local": one[2]}
    assert one[4] == pytest.approx(mean[buffers], abs=1e-6)
    alike = {name for name in one[3] if one[3][name] == other[3][name]}
    if strategy != "asgd":
        assert {name for name in one[3] if "norm.running" not in name} <= alike


def test_a_module_is_broadcast_bit_for_bit(tmp_path):
    (one, other), _ = run(
        tmp_path,
        MODULE
        + """
with torch.no_grad():
    model.features[0, :4] = torch.tensor([float("nan"), float("-inf"), -0.0, 1e-45])
shoal.broadcast(model)
bits = [each.contiguous().view(-1).view(torch.uint8) for each in model.state_dict().values()]
found([each.tolist() for each in bits])
""",
        "sync",
    )
    assert one == other


@pytest.mark.parametrize("workers", [2, 3])
def test_workers_draw_numbers_of_their_own_from_every_library(tmp_path, workers):
    drawn, _ = run(
        tmp_path,
        """
import numpy as np, random
from numba import njit
@njit
def compiled():
    return np.random.random()
found(torch.rand(1).item(), float(np.random.rand()), random.random(), compiled(),
      torch.randint(1 << 60, (1,)).item(), torch.nn.functional.dropout(torch.ones(64)).tolist())
""",
        "sync",
        workers=workers,
    )
    for number in range(len(drawn[0])):
        assert len({str(each[number]) for each in drawn}) == workers, number


WRONG = {
    "width": "net = nn.Linear(4, 7 if rank else 5)",
    "dtype": "net = nn.Linear(4, 5, dtype=torch.float64 if rank else None)",
    "frozen": "net.bias.requires_grad_(not rank)",
    "class": "kind = torch.optim.Adam if rank else SGD",
    "lr": "options = {'lr': 0.5 if rank else 0.1}",
}
TOLD = {
    "width": r"\(7, 4\)|\(5, 4\)",
    "dtype": "float32.*float64|float64.*float32",
    "frozen": r"\(5,\)|frozen",
    "class": "SGD.*Adam|adam.*sgd|sgd.*adam|Adam.*SGD",
    "lr": "lr.*0.5|lr.*0.1",
}


@pytest.mark.parametrize(
    ("which", "strategy"),
    [*((which, "sync") for which in WRONG), ("width", "allreduce"), ("lr", "allreduce")],
)  # all others under allreduce: tests/pytorch/loop/test_agreement.py
def test_workers_that_differ_end_the_run_with_their_first_difference(tmp_path, which, strategy):
    script = f"""
net, kind, options = nn.Linear(4, 5), SGD, {{"lr": 0.1}}
{WRONG[which] if "net" in WRONG[which] else ""}
parameters = list(net.parameters())
{WRONG[which]}
parameters = parameters if "parameters" in {WRONG[which]!r} else list(net.parameters())
shoal.Optimizer(kind(parameters, **options), strategy)
found("accepted")
"""
    accepted, printed = run(tmp_path, script, strategy, code=1)
    assert len(accepted) < 2
    assert re.search(r"exists with another specification|do not train the same", printed)
    assert re.search(TOLD[which], printed), printed


LOOP = """
torch.manual_seed(0)
body, heads = nn.Linear(4, 3), nn.ModuleList([nn.Linear(3, 1) for _ in range(3)])
model = nn.ModuleList([body, heads])
make = lambda: SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
def loss_of(step, which, of=None):
    return (heads[which](torch.tanh(body(data(step, of)))) - 1).square().mean()
"""


@pytest.mark.parametrize("strategy", ["sync", "allreduce"])
def test_a_parameter_that_some_workers_use_gets_the_mean_over_those(tmp_path, strategy):
    """Against torch alone, which has the gradients of both workers one after the other."""
    (one, other), _ = run(
        tmp_path,
        LOOP
        + """
uses = [(0, 0), (0, 1), (1, 1), (1, 0), (0, 0)]  # by step: the head of each worker; 2 is unused
start = [p.detach().clone() for p in model.parameters()]
optimizer = shoal.Optimizer(make(), strategy)
for step, which in enumerate(uses):
    optimizer.zero_grad()
    loss_of(step, which[rank]).backward()
    optimizer.step()
ours = [p.detach().clone() for p in model.parameters()]
for parameter, value in zip(model.parameters(), start):
    parameter.data = value.clone()
alone = make()
for step, which in enumerate(uses):
    grads = []
    for of in (0, 1):
        alone.zero_grad()
        loss_of(step, which[of], of).backward()
        grads.append([p.grad for p in model.parameters()])
    for parameter, *both in zip(model.parameters(), *grads):
        some = [each for each in both if each is not None]
        parameter.grad = sum(some) / len(some) if some else None
    alone.step()
found(max((p - mine).abs().max().item() for p, mine in zip(model.parameters(), ours)),
      total(heads[2].weight), [total(each) for each in ours])
""",
        strategy,
    )
    assert one == other
    assert one[0] <= 1e-6


UNEVEN = """
torch.manual_seed(0)
samples = torch.utils.data.TensorDataset(torch.randn(17, 4), torch.randn(17, 1))
model = nn.Linear(4, 1)
optimizer = shoal.Optimizer(SGD(model.parameters(), lr=0.1), strategy, settings=LOCAL)
loader = torch.utils.data.DataLoader(samples, batch_size=4, sampler=shoal.Sampler(samples))
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
steps = 0
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step(weight=len(x))
        steps += 1
FLUSH
found(steps, total(model.weight))
"""


@pytest.mark.parametrize("strategy", ["sync", "asgd", "allreduce", "diloco", "p2p"])
def test_uneven_data_end_well(tmp_path, strategy):
    (one, other), printed = run(tmp_path, UNEVEN.replace("FLUSH", "optimizer.flush()"), strategy)
    assert (one[0], other[0]) == (6, 4)
    if strategy in ("allreduce", "p2p"):  # with servers the first one to end has its last step's
        assert one[1] == other[1]
    assert "Broken" not in printed


def test_uneven_data_end_well_without_a_flush(tmp_path):
    (one, other), printed = run(tmp_path, UNEVEN.replace("FLUSH", ""), "allreduce")
    assert (one[0], other[0]) == (6, 4)
    assert "Broken" not in printed


@pytest.mark.parametrize("strategy", ["diloco", "downpour", "p2p"])
def test_steps_that_were_not_exchanged_are_told_and_exchanged_at_the_end(tmp_path, strategy):
    script = """
torch.manual_seed(0)
model = nn.Linear(4, 1)
settings = {"diloco": {"tau": 50}, "streaming_diloco": {"tau": 40}}.get(strategy, {})
optimizer = shoal.Optimizer(SGD(model.parameters(), lr=0.1), strategy, settings=settings)
for step in range(3):
    optimizer.zero_grad()
    model(data(step)).square().mean().backward()
    optimizer.step()
parts = [model.weight.detach().clone()]
import warnings
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    optimizer.state_dict()
FLUSH
context.close()
found([str(each.message) for each in told], total(model.weight), total(parts[0]))
"""
    (one, other), printed = run(tmp_path, script.replace("FLUSH", ""), strategy)
    log = "".join(
        path.read_text() for path in (tmp_path / "shoal-runs").glob("*/logs/worker-*.log")
    )
    assert "call optimizer.flush() on all workers before you evaluate or save it" in printed + log
    assert "were not exchanged yet: call optimizer.flush()" in one[0][0]
    if "diloco" in strategy:
        assert one[2] != other[2]
    if strategy != "downpour":
        assert one[1] == other[1]
    for each in tmp_path.glob("found-*.json"):
        each.unlink()
    again, printed = run(tmp_path, script.replace("FLUSH", "optimizer.flush()"), strategy)
    assert "before you evaluate or save it" not in printed
    if strategy != "downpour":
        assert again[0][1] == again[1][1] == one[1]


WRITES = """
torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = shoal.Optimizer(SGD(model.parameters(), lr=0.1), strategy)
for step in range(3):
    optimizer.zero_grad()
    model(data(step)).square().mean().backward()
    optimizer.step()
    if step == 0 and WHO:
        model.weight.data.fill_(1.0 + rank)
    if step == 1:
        first = model.weight.detach().clone()
found(total(first), total(model.weight))
"""


@pytest.mark.parametrize("strategy", ["sync", "allreduce"])
def test_a_write_by_only_one_worker_ends_the_run(tmp_path, strategy):
    script = WRITES.replace("WHO", "rank == 1")
    done, printed = run(tmp_path, script, strategy, "--sync-timeout-s", "1", code=1)
    assert not done
    assert "written to" in printed


def test_all_workers_go_on_from_what_rank_0_has_written(tmp_path):
    (one, other), _ = run(tmp_path, WRITES.replace("WHO", "True"), "sync")
    assert one == other
    assert abs(one[0] - 4) < 1.5  # four weights of 1, and a step


def test_a_write_is_refused_where_others_train_meanwhile(tmp_path):
    _, printed = run(tmp_path, WRITES.replace("WHO", "True"), "asgd", code=1)
    assert "UsageError" in printed
    assert "parameters were written to since the last step (parameter 0 (1, 4))" in printed


def test_rates_that_part_end_the_run(tmp_path):
    script = WRITES.replace("WHO", "False").replace(
        "    optimizer.step()\n", "    optimizer.param_groups[0]['lr'] = 0.1 + rank * step\n"
        "    optimizer.step()\n"
    )  # fmt: skip
    _, printed = run(tmp_path, script, "allreduce", code=1)
    assert "learning rates of float32 differ" in printed


@pytest.mark.parametrize("strategy", ["sync", "allreduce"])
@pytest.mark.parametrize("policy", ["reject", "zero"])
def test_a_nan_of_one_worker_is_refused_or_replaced(tmp_path, strategy, policy):
    script = f"""
torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = shoal.Optimizer(SGD(model.parameters(), lr=0.1), strategy, nonfinite={policy!r})
for step in range(3):
    optimizer.zero_grad()
    model(data(step)).square().mean().backward()
    if step == 1 and rank:
        model.weight.grad[0, 2] = float("nan")
    optimizer.step()
found(total(model.weight), bool(model.weight.isfinite().all()))
"""
    done, printed = run(tmp_path, script, strategy, code=policy == "reject")
    if policy == "reject":
        assert "NotFinite" in printed
    else:
        assert done[0] == done[1]
        assert done[0][1] is True


def test_clip_norm_clips_the_mean_as_with_ddp(tmp_path):
    (one, other), _ = run(
        tmp_path,
        """
torch.manual_seed(0)
model, twin = nn.Linear(4, 1), nn.Linear(4, 1)
twin.load_state_dict(model.state_dict())
optimizer = shoal.Optimizer(SGD(model.parameters(), lr=1.0), strategy, clip_norm=0.2)
alone = SGD(twin.parameters(), lr=1.0)
for step in range(4):
    optimizer.zero_grad()
    model(data(step)).square().mean().backward()
    optimizer.step()
    alone.zero_grad()
    (sum(twin(data(step, of)).square().mean() for of in (0, 1)) / 2).backward()
    nn.utils.clip_grad_norm_(twin.parameters(), 0.2)
    alone.step()
found(total(model.weight - twin.weight))
try:
    shoal.Optimizer(SGD(model.parameters(), lr=1.0), "sync", clip_norm=0.2)
except shoal.errors.InvalidValue as error:
    print(error.message)
""",
        "allreduce",
    )
    assert one == other
    assert one[0] <= 1e-6
