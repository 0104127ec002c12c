"""shoal.Optimizer in a process of its own: it equals torch's optimizer where it is alone."""

import json
import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.real


def run(tmp_path, script):
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(script))
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, timeout=60, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


PRELUDE = """
import torch, shoal
torch.manual_seed(0)
mine, theirs = torch.nn.Linear(5, 3), torch.nn.Linear(5, 3)
theirs.load_state_dict(mine.state_dict())
context = shoal.init()
assert (context.rank, context.world_size) == (0, 1)
assert shoal.init() is context
"""


@pytest.mark.parametrize("kind", ["SGD(p, lr=0.1, momentum=0.9)", "AdamW(p, lr=0.01)"])
def test_an_optimizer_equals_torchs_under_an_lr_scheduler(tmp_path, kind):
    out = run(
        tmp_path,
        PRELUDE
        + f"""
make = lambda p: torch.optim.{kind}
for strategy in ("sync", "ssp", "asgd", "allreduce"):
    theirs.load_state_dict(mine.state_dict())
    ours = shoal.Optimizer(make(mine.parameters()), strategy=strategy)
    other = make(theirs.parameters())
    schedules = [torch.optim.lr_scheduler.StepLR(o, 3, 0.5) for o in (ours, other)]
    for _ in range(10):
        x = torch.randn(8, 5)
        for model, optimizer in ((mine, ours), (theirs, other)):
            def closure():
                optimizer.zero_grad()
                loss = model(x).square().mean()
                loss.backward()
                return loss
            assert optimizer.step(closure) is not None
        for schedule in schedules:
            schedule.step()
    gap = (mine.weight - theirs.weight).abs().max()
    assert gap < 1e-6, (strategy, mine.weight, theirs.weight)
    state = ours.state_dict()
    assert state["param_groups"][0]["lr"] == other.param_groups[0]["lr"]
    ours.load_state_dict(state)
    print(strategy)
""",
    )
    assert out.split() == ["sync", "ssp", "asgd", "allreduce"]


def test_an_unsupported_optimizer_is_refused_by_name(tmp_path):
    out = run(
        tmp_path,
        PRELUDE
        + """
try:
    shoal.Optimizer(torch.optim.LBFGS(mine.parameters()))
except shoal.errors.UsageError as error:
    print(error)
""",
    )
    assert "LBFGS" in out


def test_an_unused_parameter_is_not_updated(tmp_path):
    """`model.zero_grad()` sets `.grad` to None; the flat buffer still has the last one's."""
    run(
        tmp_path,
        PRELUDE
        + """
ours = shoal.Optimizer(torch.optim.SGD(mine.parameters(), lr=0.1))
other = torch.optim.SGD(theirs.parameters(), lr=0.1)
for bias in (True, False, True, False):
    x = torch.randn(8, 5)
    for model, optimizer in ((mine, ours), (theirs, other)):
        model.zero_grad()
        y = model(x) if bias else x @ model.weight.T
        y.square().mean().backward()
        optimizer.step()
assert (mine.bias - theirs.bias).abs().max() < 1e-6, (mine.bias, theirs.bias)
""",
    )


def test_changes_that_servers_cannot_know_of_are_refused(tmp_path):
    printed = run(
        tmp_path,
        PRELUDE
        + """
from shoal.errors import ShoalError
groups = [{"params": [mine.weight]}, {"params": [mine.bias]}]
ours = shoal.Optimizer(torch.optim.SGD(groups, lr=0.1, momentum=0.9))

def tried(change, undo):
    change()
    try:
        mine(torch.randn(8, 5)).square().mean().backward()
        ours.step()
    except ShoalError as error:
        print(error.message)
    undo()

first, second = ours.param_groups
tried(lambda: first.update(momentum=0.5), lambda: first.update(momentum=0.9))
try:
    ours.add_param_group({"params": list(theirs.parameters())})
except ShoalError as error:
    print(error.message)
tried(lambda: [group.update(lr=0.01) for group in ours.param_groups], lambda: None)
tried(lambda: mine.load_state_dict(theirs.state_dict()), lambda: None)
late = shoal.Optimizer(torch.optim.SGD(theirs.parameters(), lr=0.1), "downpour")
theirs.weight.data.zero_()
try:
    late.step()
except ShoalError as error:
    print(error.message)
""",
    )
    lines = printed.splitlines()
    assert "momentum was 0.9 when the optimizer was wrapped and is 0.5 now" in lines[0]
    assert "parameters cannot be added" in lines[1]
    assert "parameters were written to since the last step (parameter 0 (3, 5))" in lines[2]
    assert "strategy 'downpour', which has gradients under way" in lines[2]
    assert len(lines) == 3


GROUPS = """
def groups(model):
    return [
        {"params": [model.weight], "weight_decay": 0.1, "lr": 0.03},
        {"params": [model.bias], "betas": (0.8, 0.99)},
    ]
rates = [lambda step: 0.9**step, lambda step: 1 / (1 + step)]
for strategy in ("sync", "ssp", "asgd", "allreduce"):
    theirs.load_state_dict(mine.state_dict())
    other = torch.optim.AdamW(groups(theirs), lr=0.05)
    ours = shoal.Optimizer(torch.optim.AdamW(groups(mine), lr=0.05), strategy)
    schedules = [torch.optim.lr_scheduler.LambdaLR(o, rates) for o in (ours, other)]
    for _ in range(10):
        x = torch.randn(8, 5)
        for model, optimizer in ((mine, ours), (theirs, other)):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        for schedule in schedules:
            schedule.step()
    for one, two in zip(mine.parameters(), theirs.parameters()):
        assert torch.allclose(one, two, rtol=1e-6, atol=1e-7), strategy
    print(strategy, list(ours.flat))
"""


def test_parameter_groups_have_options_and_schedules_of_their_own(tmp_path):
    lines = run(tmp_path, PRELUDE + GROUPS).splitlines()
    assert lines == [f"{s} ['float32', 'float32.1']" for s in ("sync", "ssp", "asgd", "allreduce")]


def test_an_optimizer_that_evaluates_the_loss_needs_a_closure(tmp_path):
    out = run(
        tmp_path,
        PRELUDE
        + """
from shoal.errors import UsageError
ours = shoal.Optimizer(torch.optim.LBFGS(mine.parameters()), "allreduce")
try:
    ours.step()
except UsageError as error:
    print(error.message)
""",
    )
    assert "LBFGS evaluates the loss: give step a closure" in out


LOCAL = """
import torch, shoal
from torch import nn
context = shoal.init()
torch.manual_seed(0)
model = nn.Linear(4, 1)
start = model.weight.detach().clone()
torch.manual_seed(1 + context.rank)
data = [torch.randn(8, 4) for _ in range(12)]
inner = torch.optim.{kind}(model.parameters(), lr=0.05)
optimizer = shoal.Optimizer(inner, strategy={strategy!r}, settings={settings})
for x in data:
    optimizer.zero_grad()
    (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
    optimizer.step(weight=8)
optimizer.flush()
state = optimizer.state_dict()
steps = {{int(each["step"]) for each in state["state"].values() if "step" in each}}
print("W", context.rank, model.weight.detach().flatten().tolist(), steps)
optimizer.load_state_dict(state)
context.client.barrier("over")
"""


@pytest.mark.parametrize(
    ("strategy", "settings", "kind"),
    [
        ("model_averaging", {"tau": 1}, "SGD"),
        ("diloco", {"tau": 5}, "AdamW"),
        ("bmuf", {"tau": 4}, "SGD"),
        ("easgd", {"tau": 3}, "SGD"),
        ("double_buffering", {}, "SGD"),
        ("downpour", {"n_push": 2, "n_fetch": 2}, "SGD"),
    ],
)
def test_strategies_with_local_steps_wrap_a_torch_optimizer(tmp_path, strategy, settings, kind):
    path = tmp_path / "script.py"
    path.write_text(LOCAL.format(strategy=strategy, settings=settings, kind=kind))
    command = [sys.executable, "-m", "shoal", "run", "--workers", "2", "--output", "all", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=tmp_path)
    assert done.returncode == 0, done.stderr + done.stdout
    lines = [line.split("W ")[1] for line in done.stdout.splitlines() if "W " in line]
    assert len(lines) == 2
    one, other = (json.loads(line[line.index("[") : line.index("]") + 1]) for line in lines)
    if strategy not in ("easgd", "downpour"):
        assert one == other  # after the flush
    near = 0.9 if strategy == "easgd" else 0.5
    assert all(abs(weight - 1) < near for weight in one)  # on the way to a sum
    if kind == "AdamW":
        assert lines[0].endswith("{12}")  # the worker's own state
