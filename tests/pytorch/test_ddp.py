"""Codecs in torch's DistributedDataParallel, with two processes over gloo."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import shoal
from shoal.errors import InvalidValue, UnknownName

RANKS = Path(__file__).with_name("ddp_ranks.py")
LIMIT_S = 120


def trained(folder, name, **how):
    """Train on both ranks; what each has in the end."""
    rendezvous, out = f"file://{folder}/{name}-meet", str(folder / name.split("+")[0])
    processes = [
        subprocess.Popen(
            [sys.executable, str(RANKS), str(rank), rendezvous, out, json.dumps(how)],
            stderr=subprocess.PIPE,
            env={**os.environ, "SHOAL_ZYGOTE": "off"},  # gloo's threads and a fork do not go well
        )
        for rank in range(how.get("world", 2))
    ]
    said = [process.communicate(timeout=LIMIT_S)[1].decode() for process in processes]
    assert not any(process.returncode for process in processes), said
    return [torch.load(f"{out}-{rank}.pt", weights_only=True) for rank in range(len(said))]


def loss_of(ranks):
    return sum(sum(rank["losses"][-20:]) for rank in ranks) / 40


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """What both ranks have without a codec."""
    return trained(tmp_path_factory.mktemp("plain"), "plain", codec="", steps=150)


@pytest.mark.real
@pytest.mark.parametrize("codec", ["powersgd:4", "int:8", "onebit", "bf16", "randomk:0.25"])
def test_ranks_agree_and_learn(tmp_path, plain, codec):
    """Over many more than two steps: DDP rebuilds its buckets after the first."""
    ranks = trained(tmp_path, "with", codec=codec, steps=150)
    assert torch.equal(ranks[0]["flat"], ranks[1]["flat"])
    assert loss_of(ranks) < loss_of(plain) + {"randomk:0.25": 0.5, "onebit": 0.25}.get(codec, 0.1)
    assert plain[0]["losses"][0] > loss_of(ranks) + 1


@pytest.mark.real
@pytest.mark.parametrize("codec", ["powersgd:2", "onebit", "qsgd:4"])
def test_a_saved_state_continues_bit_for_bit(tmp_path, codec):
    whole = trained(tmp_path, "one", codec=codec, steps=12, save=6)
    again = trained(tmp_path, "one+again", codec=codec, steps=12, **{"from": 6})
    assert torch.equal(whole[0]["flat"], again[0]["flat"])
    assert whole[0]["losses"][6:] == again[0]["losses"]


@pytest.mark.real
def test_a_gradient_that_is_not_finite_is_one_on_all_ranks(tmp_path):
    """As without a codec, so that a GradScaler skips the step everywhere; the next ones count."""
    ranks = trained(tmp_path, "nan", codec="onebit", steps=30, nan_at=10)
    for rank in ranks:
        assert [n for n, fine in enumerate(rank["finite"]) if not fine] == [10]
        assert 0 <= rank["kept"] < 1e-6
    assert torch.equal(ranks[0]["flat"], ranks[1]["flat"])


@pytest.mark.real
def test_ranks_of_a_group_of_their_own_have_means_of_their_own(tmp_path):
    ranks = trained(tmp_path, "groups", codec="int:8", steps=5, world=4)
    flat = [rank["flat"] for rank in ranks]
    assert torch.equal(flat[0], flat[1])
    assert torch.equal(flat[2], flat[3])
    assert not torch.equal(flat[0], flat[2])


@pytest.mark.real
def test_a_codec_may_begin_late(tmp_path, plain):
    """The loss of a step is that of the parameters before it."""
    late = trained(tmp_path, "late", codec="onebit:after=5", steps=9)[0]["losses"]
    assert late[:6] == pytest.approx(plain[0]["losses"][:6], rel=1e-5)
    assert late[7:] != pytest.approx(plain[0]["losses"][7:9], rel=1e-5)


def test_there_has_to_be_a_process_group():
    with pytest.raises(InvalidValue, match="ddp_hook comes after"):
        shoal.ddp_hook("int:8")


class OneProcess:
    """A process group of this process alone."""

    def __enter__(self):
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)

    def __exit__(self, *error):
        torch.distributed.destroy_process_group()


def test_bad_codecs_and_states_are_refused(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    with OneProcess():
        with pytest.raises(UnknownName):
            shoal.ddp_hook("powersdg:2")
        with pytest.raises(InvalidValue, match="rank"):
            shoal.ddp_hook("powersgd:0")
        state, _ = shoal.ddp_hook("onebit")
        other, _ = shoal.ddp_hook("int:8")
        with pytest.raises(InvalidValue, match="of codec onebit"):
            other.load_state_dict(state.state_dict())
        state.steps = 1
        with pytest.raises(InvalidValue, match="before the first step"):
            state.load_state_dict(state.state_dict())


def test_a_parameter_that_was_not_used_keeps_what_it_owes(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    with OneProcess():
        torch.manual_seed(0)
        layers = torch.nn.ModuleList([torch.nn.Linear(40, 64), torch.nn.Linear(40, 64)])
        model = DistributedDataParallel(Chosen(layers), find_unused_parameters=True)
        state, hook = shoal.ddp_hook("onebit")
        model.register_comm_hook(state, hook)
        kept = []
        for which in (0, 1, 0):
            model(torch.randn(8, 40), which).square().mean().backward()
            kept.append(
                {n: each.get("residual") for n, each in state.state_dict().items() if n.isdecimal()}
            )
        assert torch.equal(*(kept[n][str(state._numbers[layers[1].weight])] for n in (1, 2)))
        assert not torch.equal(*(kept[n][str(state._numbers[layers[0].weight])] for n in (1, 2)))


class Chosen(torch.nn.Module):
    """One of some layers, by its number."""

    def __init__(self, layers):
        super().__init__()
        self.layers = layers

    def forward(self, x, which):
        return self.layers[which](x)


def test_an_error_of_a_collective_is_raised_by_backward(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    with OneProcess():
        model = DistributedDataParallel(torch.nn.Linear(40, 64))
        state, hook = shoal.ddp_hook("int:8")
        model.register_comm_hook(state, hook)
        monkeypatch.setattr(type(state), "_collective", lambda self, request: 1 / 0)
        with pytest.raises(RuntimeError, match="ZeroDivisionError: division by zero"):
            model(torch.randn(8, 40)).sum().backward()
