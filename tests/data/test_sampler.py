"""`data.sampler`: batches and samplers cover their data once an epoch and resume in the middle."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from shoal.data.sampler import Batches, Sampler, current_membership, first_epoch, set_membership
from shoal.errors import InvalidValue

SPLIT = np.arange(100, 123)


@pytest.fixture
def membership() -> Iterator[None]:
    before = current_membership()
    yield
    set_membership(*before)


def lists(batches: Any) -> list[list[int]]:
    return [batch.tolist() for batch in batches]


# -- Batches -------------------------------------------------------------------------------------


@given(st.integers(0, 40), st.integers(1, 12), st.booleans(), st.booleans(), st.integers(0, 9))
def test_an_epoch_is_the_split_once(
    samples: int, size: int, drop_last: bool, shuffle: bool, epoch: int
) -> None:
    batches = Batches(np.arange(samples), size, drop_last=drop_last, shuffle=shuffle)
    seen = lists(batches.batches(epoch))
    assert len(seen) == len(batches)
    assert all(len(batch) == size for batch in (seen if drop_last else seen[:-1]))
    flat = [sample for batch in seen for sample in batch]
    assert len(set(flat)) == len(flat) == (samples // size * size if drop_last else samples)
    assert set(flat) <= set(range(samples))


def test_the_order_is_a_pure_function_of_seed_rank_and_epoch() -> None:
    def order(seed: int, rank: int, epoch: int) -> list[list[int]]:
        return lists(Batches(SPLIT, 4, seed=seed, rank=rank).batches(epoch))

    assert order(3, 1, 2) == order(3, 1, 2)
    others = [order(4, 1, 2), order(3, 0, 2), order(3, 1, 3), order(1, 3, 2)]
    assert all(order(3, 1, 2) != other for other in others)


def test_iterating_goes_from_epoch_to_epoch() -> None:
    batches = Batches(SPLIT, 5, seed=1)
    assert [lists(batches), lists(batches)] == [
        lists(batches.batches(0)),
        lists(batches.batches(1)),
    ]
    assert batches.epoch == 2


@given(st.integers(0, 30), st.integers(1, 7), st.integers(0, 3), st.data())
def test_a_resumed_run_sees_exactly_the_remaining_batches(
    samples: int, size: int, epoch: int, data: st.DataObject
) -> None:
    whole = Batches(np.arange(samples), size, seed=5, rank=2)
    stop = data.draw(st.integers(0, len(whole)))
    iterator = whole.batches(epoch)
    before = [next(iterator).tolist() for _ in range(stop)]
    saved = json.loads(json.dumps(whole.state_dict()))

    resumed = Batches(np.arange(samples), size, seed=5, rank=2)
    resumed.load_state_dict(saved)
    assert resumed.state_dict() == saved
    after = lists(resumed) if data.draw(st.booleans()) else lists(resumed.batches(epoch))
    assert before + after == lists(Batches(np.arange(samples), size, seed=5, rank=2).batches(epoch))
    assert lists(resumed) == lists(whole.batches(epoch + 1))


def test_a_state_resumes_only_its_own_epoch_and_only_once() -> None:
    batches = Batches(SPLIT, 5)
    state = batches.state_dict() | {"epoch": 1, "position": 3}
    batches.load_state_dict(state)
    assert len(lists(batches.batches(4))) == 5
    batches.load_state_dict(state)
    assert len(lists(batches.batches(1))) == 2
    assert len(lists(batches.batches(1))) == 5


def test_leaving_an_epoch_early_and_asking_for_it_again_starts_it_again() -> None:
    batches = Batches(SPLIT, 5)
    first = next(iter(batches)).tolist()
    assert next(iter(batches)).tolist() == first
    assert batches.state_dict()["position"] == 1


def test_an_empty_split_has_epochs_without_batches() -> None:
    batches = Batches(np.empty(0, np.int64), 4)
    assert (len(batches), lists(batches), batches.epoch) == (0, [], 1)


@pytest.mark.parametrize(
    ("other", "name"),
    [
        (Batches(SPLIT, 5, seed=1), "seed"),
        (Batches(SPLIT, 5, rank=1), "rank"),
        (Batches(SPLIT, 6), "batch_size"),
        (Batches(SPLIT + 1, 5), "split_crc32"),
        (Batches(SPLIT, 5, shuffle=False), "shuffle"),
        (Batches(SPLIT, 5, drop_last=True), "drop_last"),
    ],
)
def test_a_state_of_another_order_is_refused(other: Batches, name: str) -> None:
    with pytest.raises(
        InvalidValue, match=rf"saved data state has {name} .* would not be the same"
    ):
        Batches(SPLIT, 5).load_state_dict(other.state_dict())


def test_a_state_that_is_not_whole_or_out_of_range_is_refused() -> None:
    batches = Batches(SPLIT, 5)
    with pytest.raises(InvalidValue, match="lacks epoch, position"):
        batches.load_state_dict(
            {k: v for k, v in batches.state_dict().items() if k[-1] not in "hn"}
        )
    for wrong in ({"position": 6}, {"position": -1}, {"epoch": -1}):
        with pytest.raises(InvalidValue, match="a saved data state is at batches"):
            batches.load_state_dict(batches.state_dict() | wrong)


def test_bad_arguments_of_batches_are_refused() -> None:
    with pytest.raises(InvalidValue, match="batch size 0"):
        Batches(SPLIT, 0)
    with pytest.raises(InvalidValue, match="seed -1"):
        Batches(SPLIT, 1, seed=-1)
    with pytest.raises(InvalidValue, match="epoch -1"):
        Batches(SPLIT, 1).batches(-1)


# -- Sampler -------------------------------------------------------------------------------------


@given(st.integers(0, 50), st.integers(1, 8), st.integers(0, 3), st.booleans())
def test_the_ranks_parts_are_disjoint_complete_and_unpadded(
    samples: int, world_size: int, epoch: int, shuffle: bool
) -> None:
    parts = []
    for rank in range(world_size):
        sampler = Sampler(range(samples), rank=rank, world_size=world_size, shuffle=shuffle)
        sampler.set_epoch(epoch)
        parts.append(list(sampler))
        assert len(parts[-1]) == len(sampler)
    assert sorted(sample for part in parts for sample in part) == list(range(samples))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_a_sampler_plugs_into_a_data_loader() -> None:
    data = TensorDataset(torch.arange(10))
    seen = []
    for rank in (0, 1):
        sampler = Sampler(data, rank=rank, world_size=2)
        for (batch,) in DataLoader(data, batch_size=2, sampler=sampler):
            seen += batch.tolist()
    assert sorted(seen) == list(range(10))


def test_epochs_move_on_by_themselves_and_set_epoch_agrees() -> None:
    counting, told = Sampler(range(20), seed=3), Sampler(range(20), seed=3)
    for epoch in range(3):
        told.set_epoch(epoch)
        assert list(counting) == list(told)
    told.set_epoch(0)
    assert list(told) != list(counting)
    assert list(Sampler(range(20), seed=3)) != list(Sampler(range(20), seed=4))


def test_leaving_an_epoch_early_and_iterating_again_starts_it_again() -> None:
    sampler = Sampler(range(20))
    first = next(iter(sampler))
    again = list(sampler)
    assert (again[0], len(again)) == (first, 20)


@pytest.mark.parametrize("batches_before", [0, 1, 4, 5])
def test_a_data_loader_resumes_in_the_middle_of_an_epoch(batches_before: int) -> None:
    data = TensorDataset(torch.arange(19))

    def loader(sampler: Sampler) -> DataLoader[Any]:
        return DataLoader(data, batch_size=2, sampler=sampler)

    def make() -> Sampler:
        return Sampler(data, rank=1, world_size=2, seed=8)

    whole = make()
    whole.set_epoch(2)
    expected = [batch.tolist() for (batch,) in loader(whole)]

    stopped = make()
    stopped.set_epoch(2)
    iterator = iter(loader(stopped))
    before = [next(iterator)[0].tolist() for _ in range(batches_before)]
    saved = stopped.state_dict()

    resumed = make()
    resumed.load_state_dict(saved)
    resumed.set_epoch(2)  # as a loop that counts epochs does
    assert before + [batch.tolist() for (batch,) in loader(resumed)] == expected
    assert list(resumed) == list(whole)


def test_samples_that_were_drawn_ahead_can_be_given_back() -> None:
    sampler = Sampler(range(10), seed=1)
    iterator = iter(sampler)
    drawn = [next(iterator) for _ in range(6)]  # what a DataLoader with workers may have done
    resumed = Sampler(range(10), seed=1)
    resumed.load_state_dict(sampler.state_dict(consumed=2))
    assert list(resumed)[:4] == drawn[2:]


def test_a_sampler_state_of_other_data_is_refused() -> None:
    for other in (Sampler(range(9)), Sampler(range(8), seed=1), Sampler(range(8), shuffle=False)):
        with pytest.raises(InvalidValue, match="remaining samples would not be the same"):
            Sampler(range(8)).load_state_dict(other.state_dict())


@pytest.mark.usefixtures("membership")
def test_the_default_part_is_the_process_own_when_iterating_starts() -> None:
    sampler = Sampler(range(5), shuffle=False)
    assert current_membership() == (0, 1)
    assert list(sampler) == [0, 1, 2, 3, 4]
    set_membership(1, 2)
    assert (list(sampler), len(sampler)) == ([1, 3], 2)
    assert list(Sampler(range(5), rank=0, world_size=5, shuffle=False)) == [0]


@pytest.mark.usefixtures("membership")
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("steps", [0, 1, 2, 3, 4, 7, 100])
def test_a_resumed_run_goes_on_with_the_next_batch(steps: int, drop_last: bool) -> None:
    data = TensorDataset(torch.arange(21))

    def epochs(before: int) -> list[list[list[int]]]:
        set_membership(0, 2, before)
        sampler = Sampler(data, seed=3, batch_size=4, drop_last=drop_last)
        loader = DataLoader(data, batch_size=4, sampler=sampler, drop_last=drop_last)
        return [[batch.tolist() for (batch,) in loader] for _ in range(4)]

    whole, rest = epochs(0), epochs(steps)
    assert [len(each) for each in whole] == [2 if drop_last else 3] * 4
    flat = [batch for epoch in whole for batch in epoch]
    assert [batch for epoch in rest for batch in epoch] == flat[steps:]
    for before, after in zip(whole, rest, strict=True):  # the epochs keep their places
        assert after == before[len(before) - len(after) :]


@pytest.mark.usefixtures("membership")
@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize("steps", [0, 1, 2, 3, 5, 6, 11, 12, 100])
def test_a_loop_leaves_out_the_epochs_that_are_done(steps: int, told: bool) -> None:
    """Whether it calls `set_epoch` or not: the rest is that of a loop over all epochs."""
    data = TensorDataset(torch.arange(21))

    def epochs(before: int, left_out: bool) -> dict[int, list[list[int]]]:
        set_membership(1, 2, before)
        sampler = Sampler(data, seed=3, batch_size=4)
        loader = DataLoader(data, batch_size=4, sampler=sampler)
        found = {}
        for epoch in range(first_epoch(loader) if left_out else 0, 4):
            if told:
                sampler.set_epoch(epoch)
            found[epoch] = [batch.tolist() for (batch,) in loader]
        return found

    rest = epochs(steps, left_out=True)
    assert list(rest) == list(range(min(steps // 3, 4), 4))
    assert rest == {epoch: each for epoch, each in epochs(steps, False).items() if epoch in rest}
    flat = [batch for each in epochs(0, False).values() for batch in each]
    assert [batch for each in rest.values() for batch in each] == flat[steps:]


@pytest.mark.usefixtures("membership")
def test_the_first_epoch_is_that_of_so_many_steps_where_there_is_no_sampler() -> None:
    set_membership(0, 2, 7)
    assert [first_epoch(steps) for steps in (0, 1, 3, 7, 8)] == [0, 7, 2, 1, 0]
    assert first_epoch(DataLoader(TensorDataset(torch.arange(6)), batch_size=2)) == 2
    with pytest.raises(InvalidValue, match="cannot have -1 steps"):
        first_epoch(-1)
    set_membership(0, 4, 7, earlier=[(2, 7)])  # half as many steps of twice as many workers
    assert first_epoch(3) == 1


@pytest.mark.usefixtures("membership")
def test_batches_that_are_several_of_a_loader_count_as_the_sampler_says() -> None:
    """A loop that steps after every second batch: the sampler has the samples of a step."""
    set_membership(0, 1, 5)
    data = TensorDataset(torch.arange(16))
    sampler = Sampler(data, batch_size=4)
    loader = DataLoader(data, batch_size=2, sampler=sampler)
    assert first_epoch(loader) == 1
    assert len(list(loader)) == 6


@pytest.mark.usefixtures("membership")
@pytest.mark.parametrize("workers", [1, 2, 3, 4])
@pytest.mark.parametrize(
    "runs",
    [[(2, 4)], [(4, 2)], [(2, 6)], [(1, 30)], [(3, 0)], [(2, 3), (3, 5)], [(4, 3), (4, 6), (1, 3)]],
    ids=str,
)
def test_other_numbers_of_workers_do_the_samples_that_are_left(
    runs: list[tuple[int, int]], workers: int
) -> None:
    """This run and those before, each of which has resumed another, use each sample once."""
    data = TensorDataset(torch.arange(24))
    used: list[tuple[int, int]] = []

    def train(ranks: int, earlier: list[tuple[int, int]], steps: int, epochs: int) -> None:
        """Each of so many workers takes so many steps, up to an epoch."""
        for rank in range(ranks):
            set_membership(rank, ranks, sum(each for _, each in earlier), earlier)
            loader = DataLoader(data, batch_size=2, sampler=Sampler(data, seed=3, batch_size=2))
            left = steps
            for epoch in range(first_epoch(loader), epochs):
                batches = [batch.tolist() for (batch,) in loader][:left]
                used.extend((epoch, sample) for batch in batches for sample in batch)
                left -= len(batches)

    for number, (ranks, steps) in enumerate(runs):
        train(ranks, runs[:number], steps, epochs=9)
    train(workers, runs, steps=1000, epochs=4)
    assert sorted(used) == [(epoch, sample) for epoch in range(4) for sample in range(24)]


@pytest.mark.usefixtures("membership")
def test_a_resumed_sampler_without_a_batch_size_says_that_it_begins_again(caplog: Any) -> None:
    set_membership(0, 1, 5)
    assert len(list(Sampler(range(20)))) == 20
    assert "give it the batch_size" in caplog.text
    assert len(list(Sampler(range(20), rank=0, world_size=1))) == 20  # not of this run


def test_bad_arguments_of_a_sampler_are_refused() -> None:
    with pytest.raises(InvalidValue, match="both rank and world_size"):
        Sampler(range(3), rank=0)
    with pytest.raises(InvalidValue, match="rank 2 of world size 2"):
        Sampler(range(3), rank=2, world_size=2)
    with pytest.raises(InvalidValue, match="rank 0 of world size 0"):
        set_membership(0, 0)
    with pytest.raises(InvalidValue, match="seed -1"):
        Sampler(range(3), seed=-1)
    with pytest.raises(InvalidValue, match="batch size 0"):
        Sampler(range(3), batch_size=0)
    with pytest.raises(InvalidValue, match="epoch -1"):
        Sampler(range(3)).set_epoch(-1)
