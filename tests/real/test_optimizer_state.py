"""Saving and loading as torch does: the next run goes on as the one that was saved would have."""

import json
import subprocess
import sys

import pytest
import torch
from click.testing import CliRunner

from shoal.cli import main

pytestmark = pytest.mark.real

COMMON = """
import copy, json, sys, torch, shoal

KINDS = {
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.05),
    "adamw": lambda p: torch.optim.AdamW(groups(p), lr=0.05),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "adadelta": lambda p: torch.optim.Adadelta(p),
}
STRATEGIES = ("sync", "allreduce")

def groups(parameters):
    parameters = list(parameters)
    decayed = [p for p in parameters if p.dim() > 1]
    others = [p for p in parameters if p.dim() == 1]
    return [{"params": decayed, "weight_decay": 0.1}, {"params": others, "lr": 0.02}]

x = torch.randn(50, 16, 6, generator=torch.Generator().manual_seed(3))

def model():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1))

def train(model, optimizer, rank, first, last):
    losses = []
    for batch in x[first:last]:
        optimizer.zero_grad()
        mine = batch[8 * rank : 8 * rank + 8]
        (model(mine) - mine.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()
        with torch.no_grad():  # of the whole batch: the same on all workers
            losses.append((model(batch) - batch.sum(1, keepdim=True)).square().mean().item())
    return losses
"""

PRINT = """
    if context.rank == 0:
        print(json.dumps(losses))

if __name__ == "__main__":
    main()
"""

SAVE = (
    COMMON
    + """
def main():
    context, losses = shoal.init(), {}
    for kind, make in KINDS.items():
        for strategy in STRATEGIES:
            net = model()
            optimizer = shoal.Optimizer(make(net.parameters()), strategy=strategy)
            train(net, optimizer, context.rank, 0, 30)
            if context.rank == 1:  # any worker may, alone
                saved = {"model": net.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save(saved, f"{kind}-{strategy}.pt")
            losses[f"{kind}-{strategy}"] = train(net, optimizer, context.rank, 30, 50)
"""
    + PRINT
)

LOAD = (
    COMMON
    + """
def main():
    context, losses = shoal.init(), {}
    for kind, make in KINDS.items():
        for strategy in STRATEGIES:
            saved = torch.load(f"{kind}-{strategy}.pt")
            net = model()
            inner = make(net.parameters())
            if kind == "adam":  # an optimizer that has a state when it is wrapped
                net.load_state_dict(saved["model"])
                inner.load_state_dict(saved["optimizer"])
                optimizer = shoal.Optimizer(inner, strategy=strategy)
            else:
                optimizer = shoal.Optimizer(inner, strategy=strategy)
                train(net, optimizer, context.rank, 0, 3)
                net.load_state_dict(saved["model"])
                optimizer.load_state_dict(saved["optimizer"])
            losses[f"{kind}-{strategy}"] = train(net, optimizer, context.rank, 30, 50)
"""
    + PRINT
)

ALONE = (
    COMMON
    + """
losses = {}
for kind, make in KINDS.items():
    for strategy in STRATEGIES:
        saved, net = torch.load(f"{kind}-{strategy}.pt"), model()
        optimizer = make(net.parameters())
        net.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        losses[f"{kind}-{strategy}"] = run = []
        for batch in x[30:]:
            optimizer.zero_grad()
            (net(batch) - batch.sum(1, keepdim=True)).square().mean().backward()
            optimizer.step()
            with torch.no_grad():
                run.append((net(batch) - batch.sum(1, keepdim=True)).square().mean().item())
print(json.dumps(losses))
"""
)

STALE = (
    COMMON
    + """
with shoal.init() as context:
    net = model()
    inner = torch.optim.Adam(net.parameters(), lr=0.05)
    optimizer = shoal.Optimizer(inner, strategy="ssp", staleness=2)
    train(net, optimizer, context.rank, 0, 20 + context.rank)
    context.client.barrier("all pushed")
    torch.save(optimizer.state_dict(), f"state-{context.rank}.pt")
    context.client.barrier("both saved")
    train(net, optimizer, context.rank, 0, 5)
    optimizer.load_state_dict(torch.load("state-0.pt"))
    torch.save(optimizer.state_dict(), f"again-{context.rank}.pt")
"""
)

REFUSED = (
    COMMON
    + """
from shoal.errors import InvalidValue

with shoal.init() as context:
    net = model()
    optimizer = shoal.Optimizer(torch.optim.Adam(net.parameters(), lr=0.05))
    train(net, optimizer, context.rank, 0, 3)
    before = copy.deepcopy(optimizer.state_dict())
    weights = copy.deepcopy(net.state_dict())

    def tried(change):
        given = copy.deepcopy(before)
        change(given)
        try:
            optimizer.load_state_dict(given)
        except InvalidValue as error:
            print(error.message)

    tried(lambda given: given["param_groups"][0].update(betas=(0.5, 0.9)))
    tried(lambda given: given["state"][1].update(exp_avg=torch.zeros(3)))
    tried(lambda given: given.pop("state"))
    after = optimizer.state_dict()
    for index, state in before["state"].items():
        assert all(torch.equal(value, after["state"][index][name]) for name, value in state.items())
    assert before["param_groups"] == after["param_groups"]
    assert all(torch.equal(value, net.state_dict()[name]) for name, value in weights.items())
    apart = copy.deepcopy(before)  # a parameter that was used less often
    apart["state"][1].update(step=torch.tensor(2.0))
    optimizer.load_state_dict(apart)
    assert optimizer.state_dict()["state"][1]["step"] == 2
    train(net, optimizer, context.rank, 0, 1)
    print([int(each["step"]) for each in optimizer.state_dict()["state"].values()])
"""
)


@pytest.fixture
def run(tmp_path, capfd, monkeypatch):
    """Runs a script in a cluster; returns what rank 0 has printed."""
    monkeypatch.chdir(tmp_path)

    def ran(script, *words):
        path = tmp_path / "script.py"
        path.write_text(script)
        result = CliRunner().invoke(main, ["run", "--out", str(tmp_path), *words, str(path)])
        assert result.exit_code == 0, result.output
        return capfd.readouterr().out

    return ran


def test_the_next_run_goes_on_as_the_one_that_was_saved(run, tmp_path):
    chains = ("--workers", "2", "--servers", "2", "--replicas", "2")
    wanted = json.loads(run(SAVE, *chains))
    loaded = json.loads(run(LOAD, *chains))
    assert loaded == wanted  # bit by bit: rounds are merged in the order of ranks
    (tmp_path / "alone.py").write_text(ALONE)
    command = [sys.executable, "alone.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    for name, losses in json.loads(done.stdout).items():
        assert losses == pytest.approx(wanted[name], rel=1e-5), name


WHOLE = (
    COMMON
    + """
KINDS = {
    "muon": lambda net: torch.optim.Muon([p for p in net.parameters() if p.dim() == 2], lr=0.1),
    "adafactor": lambda net: torch.optim.Adafactor(net.parameters(), lr=0.1),
    "lbfgs": lambda net: torch.optim.LBFGS(net.parameters(), line_search_fn="strong_wolfe"),
}

x = x.double()

def run(net, optimizer, first, last, rank, workers):
    for batch in x[first:last]:
        mine = batch[16 * rank // workers : 16 * (rank + 1) // workers]
        def closure():
            optimizer.zero_grad()
            loss = (net(mine) - mine.sum(1, keepdim=True)).square().mean()
            loss.backward()
            return loss
        optimizer.step(closure)

with shoal.init() as context:
    for kind, make in KINDS.items():
        alone, net = model().double(), model().double()
        run(alone, make(alone), 0, 4, 0, 1)  # few: LBFGS amplifies rounding
        optimizer = shoal.Optimizer(make(net), strategy="allreduce")
        run(net, optimizer, 0, 2, context.rank, 2)
        if context.rank == 0:  # the others get what it has
            saved = copy.deepcopy(optimizer.state_dict()), copy.deepcopy(net.state_dict())
        run(net, optimizer, 2, 3, context.rank, 2)
        given = saved if context.rank == 0 else (optimizer.state_dict(), net.state_dict())
        net.load_state_dict(given[1])
        optimizer.load_state_dict(given[0])
        run(net, optimizer, 2, 4, context.rank, 2)
        for one, two in zip(alone.parameters(), net.parameters()):
            assert torch.allclose(one, two, rtol=1e-5, atol=1e-6), (kind, one, two)
        if context.rank == 0:
            print(kind)
"""
)


def test_optimizers_of_whole_matrices_and_closures_run_on_the_workers(run):
    assert run(WHOLE, "--workers", "2").split() == ["muon", "adafactor", "lbfgs"]


def test_after_a_barrier_all_workers_have_the_servers_state(run, tmp_path):
    run(STALE, "--workers", "2", "--servers", "2")
    names = ("state-0", "state-1", "again-0", "again-1")
    first, *others = [torch.load(tmp_path / f"{name}.pt") for name in names]
    assert {int(state["step"]) for state in first["state"].values()} == {41}
    for other in others:
        for index, state in first["state"].items():
            for name, value in state.items():
                assert torch.equal(value, other["state"][index][name]), name


def test_a_state_that_does_not_fit_changes_nothing(run):
    lines = run(REFUSED, "--workers", "1").splitlines()
    assert "betas is (0.5, 0.9) in this state, but was (0.9, 0.999)" in lines[0]
    assert "exp_avg of parameter 1" in lines[1]
    assert "no state_dict of Adam" in lines[2]
    assert json.loads(lines[3]) == [4, 3, 4, 4]
