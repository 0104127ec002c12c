"""The state of a worker beside a checkpoint: once for each clock, and back as it was."""

import random

import numpy as np
import pytest
import torch
from torch import nn

from shoal.errors import DataCorrupt
from shoal.protocol.checkpoint_clocks import CheckpointClocks
from shoal.protocol.views import Member, View
from shoal.pytorch.worker_state import WorkerStates
from shoal.storage.checkpoints import Checkpoints
from shoal.storage.run_folder import folder_of

VIEW = View(1, 1, (), ())


def states(folder, every=10, offset=0):
    return WorkerStates(folder, 0, CheckpointClocks(every), offset)


def alone(folder, rank):
    return WorkerStates(folder, rank, CheckpointClocks(10), alone=True, keep=1)


def view_of(*ranks):
    workers = tuple(Member(f"worker-{rank}", "worker", rank, 1) for rank in ranks)
    return View(1, 1, (), workers)


def written(folder):
    return sorted(int(each.parent.name) for each in folder.glob("*/worker-0.safetensors"))


def state(value):
    slots = {"float32": {"m": torch.full((3,), value), "v": torch.zeros(3)}}
    return {"updates": 7, "slots": slots, "values": {"float32": torch.ones(2)}}


def test_a_strategys_state_comes_back_as_it_was(tmp_path):
    states(tmp_path).reached(VIEW, 10, nn.Flatten(), lambda: state(2.0))
    back = states(tmp_path).take_up(10, nn.Flatten())
    assert int(back["updates"]) == 7
    assert torch.equal(back["slots"]["float32"]["m"], torch.full((3,), 2.0))
    assert back.keys() == {"updates", "slots", "values"}
    assert states(tmp_path).take_up(20, nn.Flatten()) is None


def test_states_without_tensors_come_back_as_well(tmp_path):
    empty = {"updates": 3, "slots": {"float32": {}}, "none": {}}
    states(tmp_path).reached(VIEW, 10, nn.Flatten(), lambda: empty)
    back = states(tmp_path).take_up(10, nn.Flatten())
    assert {**back, "updates": int(back["updates"])} == empty


def test_a_clock_is_written_once_when_it_is_reached(tmp_path):
    """Local steps after an exchange have the same clock, and other states."""
    one = states(tmp_path)
    for clock, value in ((9, 0.0), (10, 1.0), (10, 2.0), (11, 3.0)):
        one.reached(VIEW, clock, nn.Flatten(), lambda value=value: state(value))
    assert written(tmp_path) == [10]
    back = states(tmp_path).take_up(10, nn.Flatten())
    assert back["slots"]["float32"]["m"][0] == 1.0


def test_a_worker_that_leaves_out_clocks_writes_the_one_that_it_has_passed(tmp_path):
    one = states(tmp_path, offset=100)
    for clock in (8, 23, 24):
        one.reached(VIEW, clock, nn.Flatten())
    assert written(tmp_path) == [120]


def test_a_worker_that_joins_writes_no_earlier_clock(tmp_path):
    one = states(tmp_path)
    one.reached(VIEW, 27, nn.Flatten())
    one.reached(VIEW, 28, nn.Flatten())
    assert written(tmp_path) == []


def test_workers_that_make_a_checkpoint_by_themselves_keep_their_parameters(tmp_path):
    module, other = nn.Linear(2, 1), nn.Linear(2, 1)
    for rank in range(2):
        one = alone(tmp_path, rank)
        for clock in (10, 20):
            assert not Checkpoints(tmp_path).complete() or rank
            one.reached(view_of(0, 1), clock, module)
    assert Checkpoints(tmp_path).complete() == [10, 20]
    alone(tmp_path, 0).reached(view_of(0, 1), 30, module)
    assert sorted(int(each.name) for each in tmp_path.iterdir()) == [20, 30]
    assert Checkpoints(tmp_path).choose() == 20
    states(tmp_path).take_up(20, other)
    assert torch.equal(other.weight, module.weight)
    with pytest.raises(DataCorrupt, match="is no state of this worker"):
        states(tmp_path).take_up(20, nn.Linear(3, 1))


def test_checkpoints_go_on_without_a_worker_that_is_lost(tmp_path):
    """Rank 0 was the one that removes the older ones; a run that continues has it again."""
    module, other = nn.Linear(2, 1), nn.Linear(2, 1)
    alone(tmp_path, 1).reached(view_of(0, 1, 2), 10, module)
    alone(tmp_path, 2).reached(view_of(1, 2), 10, module)
    assert "worker-0.safetensors is not there" in Checkpoints(tmp_path).lacks(10)
    for rank in (2, 1):
        alone(tmp_path, rank).reached(view_of(1, 2), 20, module, lambda: {"updates": 3})
    assert [int(each.name) for each in tmp_path.iterdir()] == [20]
    assert Checkpoints(tmp_path, workers=3).choose() == 20
    assert alone(tmp_path, 0).take_up(20, other) is None
    assert torch.equal(other.weight, module.weight)


def test_a_state_that_is_a_tensor_and_a_state_at_once_is_refused(tmp_path):
    contradiction = {"a": torch.ones(1), "a/b": torch.ones(1)}
    states(tmp_path).reached(VIEW, 10, nn.Flatten(), lambda: contradiction)
    with pytest.raises(DataCorrupt, match="is no state of this worker"):
        states(tmp_path).take_up(10, nn.Flatten())


def test_a_state_may_share_the_parameters_memory(tmp_path):
    module = nn.Linear(2, 1)
    state = lambda: {"mine": module.weight.detach().view(-1)}  # noqa: E731
    alone(tmp_path, 0).reached(view_of(0), 10, module, state)
    back = alone(tmp_path, 0).take_up(10, nn.Linear(2, 1))
    assert torch.equal(back["mine"], module.weight.detach().view(-1))


def test_a_state_of_another_module_is_refused(tmp_path):
    states(tmp_path).reached(VIEW, 10, nn.BatchNorm1d(3))
    with pytest.raises(DataCorrupt, match="is no state of this worker"):
        states(tmp_path).take_up(10, nn.BatchNorm1d(4))
    assert (tmp_path / folder_of(10)).is_dir()


def test_all_generators_go_on_as_they_would_have(tmp_path):
    def drawn():
        return torch.rand(1).item(), np.random.rand(), random.random()

    states(tmp_path).reached(VIEW, 10, nn.Flatten())
    expected = drawn()
    drawn()
    states(tmp_path).take_up(10, nn.Flatten())
    assert drawn() == expected
