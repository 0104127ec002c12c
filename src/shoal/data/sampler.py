"""The order in which a worker sees its samples, batch by batch and epoch by epoch.

`plan_splits` (from `data.splits`) gives each worker its split of the samples; `Batches` walks a
split, and `Sampler` does both for a user's own `torch.utils.data.DataLoader`. All are pure
functions of their seeds; `Batches` and `Sampler` can stop and go on in the middle of an epoch.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterator, Mapping, Sequence, Sized
from typing import Any

import numpy as np
import numpy.typing as npt
import torch.utils.data

from shoal.data.splits import BATCH_STREAM, SAMPLER_STREAM, Assignment, Indices, plan_splits, seeded
from shoal.errors import InvalidValue

State = dict[str, int | bool]

log = logging.getLogger("shoal.worker")

__all__ = [
    "Assignment",
    "Batches",
    "Indices",
    "Sampler",
    "State",
    "current_membership",
    "plan_splits",
    "set_membership",
]


class Batches:
    """One worker's split as batches of indices, shuffled anew every epoch, resumable in the middle.

    The order of an epoch is a pure function of (seed, rank, epoch). Iterating goes through the
    current epoch and then moves on to the next. A batch counts as seen when it is handed out, so a
    state that is saved in the loop's body, after the step, resumes with the batch after it.

    Args:
        split: the sample indices, shape (n,), as from `plan_splits`; may be empty.
        batch_size: the indices per batch; the last of an epoch may be shorter unless `drop_last`.
        seed: the seed, >= 0.
        rank: the rank of this worker, >= 0; workers with the same seed shuffle independently.

    >>> batches = Batches(np.arange(5), 2, shuffle=False)
    >>> [batch.tolist() for batch in batches]
    [[0, 1], [2, 3], [4]]
    >>> batches.epoch
    1
    """

    epoch: int  # the epoch that the next iteration goes on with
    position: int  # batches of this epoch that were handed out: 0 <= position <= len(self)

    def __init__(
        self,
        split: npt.NDArray[np.integer[Any]],
        batch_size: int,
        *,
        seed: int = 0,
        rank: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
    ) -> None:
        if batch_size < 1:
            raise InvalidValue(f"batch size {batch_size} must be >= 1")
        if seed < 0 or rank < 0:
            raise InvalidValue(f"seed {seed} and rank {rank} must be >= 0")
        self.split = np.ascontiguousarray(split, dtype=np.int64)
        self.batch_size = batch_size
        self.epoch = 0
        self.position = 0
        self._resuming = False
        self._seed, self._rank = seed, rank
        self._shuffle, self._drop_last = shuffle, drop_last

    def __len__(self) -> int:
        """Return the number of batches per epoch."""
        extra = 0 if self._drop_last else self.batch_size - 1
        return (len(self.split) + extra) // self.batch_size

    def __iter__(self) -> Iterator[Indices]:
        return self.batches(self.epoch)

    def batches(self, epoch: int) -> Iterator[Indices]:
        """Return the batches of `epoch`: all, or the remaining ones if a state of it was loaded."""
        if epoch < 0:
            raise InvalidValue(f"epoch {epoch} must be >= 0")
        start = self.position if self._resuming and epoch == self.epoch else 0
        self._resuming = False
        self.epoch, self.position = epoch, start
        return self._walk(epoch, start)

    def some(self, epoch: int, first: int, count: int) -> Iterator[Indices]:
        """Yield up to `count` batches of an epoch from batch `first` on; the position stays.

        >>> batches = Batches(np.arange(5), 2, shuffle=False)
        >>> [batch.tolist() for batch in batches.some(0, 1, 2)]
        [[2, 3], [4]]
        """
        order = self._order(epoch)
        for index in range(first, min(first + count, len(self))):
            yield order[index * self.batch_size : (index + 1) * self.batch_size]

    def _order(self, epoch: int) -> Indices:
        if not self._shuffle:
            return self.split
        return seeded(BATCH_STREAM, self._seed, self._rank, epoch).permutation(self.split)

    def _walk(self, epoch: int, start: int) -> Iterator[Indices]:
        order = self._order(epoch)
        for index in range(start, len(self)):
            self.epoch, self.position = epoch, index + 1
            yield order[index * self.batch_size : (index + 1) * self.batch_size]
        self.epoch, self.position = epoch + 1, 0

    def state_dict(self) -> State:
        """Return the position, and what must be equal for the remaining batches to be the same."""
        return {"epoch": self.epoch, "position": self.position, **self._identity()}

    def load_state_dict(self, state: Mapping[str, int | bool]) -> None:
        """Go on from a saved `state`; refuse one of other data or another order."""
        self.epoch, self.position = _resume(state, self._identity(), len(self), "batches")
        self._resuming = True

    def _identity(self) -> State:
        return {
            "seed": self._seed,
            "rank": self._rank,
            "shuffle": self._shuffle,
            "drop_last": self._drop_last,
            "batch_size": self.batch_size,
            "split_crc32": zlib.crc32(self.split.data),
        }


_membership = (0, 1)  # rank and world size of this process
_before: tuple[tuple[int, int], ...] = ()  # (number of workers, steps that each of them took)
_epochs_left_out = False  # whether the script's loop begins with the first epoch that is not done


def set_membership(
    rank: int, world_size: int, steps_before: int = 0, earlier: Sequence[tuple[int, int]] = ()
) -> None:
    """Set the rank and world size of this process, the defaults of every `Sampler`.

    The runtime calls it.

    Args:
        rank: the rank of this worker.
        world_size: the number of workers.
        steps_before: the steps that were taken before: up to the checkpoint from which the run was
            resumed, and by a worker that this one replaces.
        earlier: the first of these steps, as (number of workers, steps), where the number of
            workers was another one.
    """
    global _membership, _before, _epochs_left_out
    _check_membership(rank, world_size)
    _membership, _epochs_left_out = (rank, world_size), False
    _before = (*earlier, (world_size, steps_before - sum(steps for _, steps in earlier)))


def first_epoch(steps: Sized | int) -> int:
    """Return the first epoch that is not done, for `Context.first_epoch`.

    A `Sampler` that counts its epochs itself begins with this epoch from now on.

    Args:
        steps: the steps of this worker in an epoch, or a DataLoader with as many.

    Raises:
        InvalidValue: a negative number of steps.
    """
    global _epochs_left_out
    count = steps if isinstance(steps, int) else len(steps)
    if count < 0:
        raise InvalidValue(f"an epoch cannot have {count} steps: give the length of the loader")
    _epochs_left_out = True
    sampler = getattr(steps, "sampler", None)
    if isinstance(sampler, Sampler) and sampler.batch_size is not None:
        return sampler.began_at[0]
    _, world_size = _membership
    done = sum(workers * steps for workers, steps in _before)
    return done // (world_size * count) if count else 0


def current_membership() -> tuple[int, int]:
    """Return (rank, world size) of this process, (0, 1) until the runtime sets them."""
    return _membership


def _check_membership(rank: int, world_size: int) -> None:
    if not 0 <= rank < world_size:
        raise InvalidValue(f"rank {rank} of world size {world_size}: needs 0 <= rank < world size")


class Sampler(torch.utils.data.Sampler[int]):
    """This worker's part of a dataset, for `DataLoader(dataset, sampler=Sampler(dataset))`.

    With π the epoch's permutation of the samples and P workers, rank r has the samples::

        π(r), π(r + P), π(r + 2 P), ...

    The parts of all ranks are disjoint and complete, and their sizes differ by at most one.
    `torch.utils.data.DistributedSampler` repeats samples instead to make the parts equal. The order
    is a pure function of (seed, epoch). Iterating again after the end of an epoch begins the next
    epoch; `set_epoch` is for loops that count epochs themselves.

    With `batch_size` a resumed run goes on with the batch after the checkpoint: epochs that were
    done before give no samples, and the one in which the checkpoint was taken the rest of them. A
    loop over `range(context.first_epoch(loader), epochs)` leaves those epochs out.

    Args:
        dataset: the data set, or anything with a length.
        rank: the rank of this worker, >= 0. By default the rank of `shoal.init()`, read when
            iteration starts. Give rank and world_size together or not at all.
        world_size: the number of workers.
        seed: the seed, >= 0, the same on all ranks.
        shuffle: whether each epoch has a new permutation; otherwise the samples are in order.
        batch_size: the samples of one step, as the DataLoader's, >= 1.
        drop_last: whether the DataLoader drops the last, shorter batch.

    Raises:
        InvalidValue: only one of rank and world_size, or a value out of its range.

    Example:
        >>> list(Sampler(range(5), rank=1, world_size=2, shuffle=False))
        [1, 3]
    """

    def __init__(
        self,
        dataset: Sized,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
        batch_size: int | None = None,
        drop_last: bool = False,
    ) -> None:
        if (rank is None) != (world_size is None):
            raise InvalidValue("give a Sampler both rank and world_size, or neither")
        if seed < 0:
            raise InvalidValue(f"seed {seed} must be >= 0")
        if batch_size is not None and batch_size < 1:
            raise InvalidValue(f"batch size {batch_size} must be >= 1")
        self._given = None
        if rank is not None and world_size is not None:
            _check_membership(rank, world_size)
            self._given = rank, world_size
        self.dataset = dataset
        self.epoch = 0
        self.position = 0  # samples of this epoch that were handed out
        self._resuming = False
        # A DataLoader meets the end before the loop has had the last, shorter batch. So the end
        # moves nothing: a state that is saved in that batch is still one of this epoch.
        self._ended = False
        self._seed, self._shuffle = seed, shuffle
        self.batch_size, self._drop_last = batch_size, drop_last
        self._start: tuple[int, int] | None = None  # `began_at`, from the first iteration on
        self._counts = True  # whether it counts its epochs itself

    def __len__(self) -> int:
        """Return the number of samples of this rank per epoch; a resumed epoch gives fewer."""
        rank, world_size = self._given or current_membership()
        return len(range(rank, len(self.dataset), world_size))

    def __iter__(self) -> Iterator[int]:
        rank, world_size = self._given or current_membership()
        if self._start is None:
            self._start = self.began_at
            self._warn()
            if self._counts and _epochs_left_out:
                self.epoch = self._start[0]
        epoch, start = self.epoch + self._ended, self.position if self._resuming else 0
        self.epoch, self.position = epoch, start
        self._resuming = self._ended = False
        first, used = self._start
        if epoch <= first:  # the runs before have used that epoch, or samples of it
            start = max(start, len(range(rank, used, world_size)) if epoch == first else len(self))
        self.position = start
        order = np.arange(len(self.dataset))
        if self._shuffle:
            order = seeded(SAMPLER_STREAM, self._seed, epoch).permutation(order)
        for index, sample in enumerate(order[rank::world_size][start:].tolist(), start + 1):
            self.position = index
            yield sample
        if self.epoch == epoch:  # not, if set_epoch was called meanwhile
            self._ended = True

    @property
    def began_at(self) -> tuple[int, int]:
        """The epoch, and the samples of it that all workers had used, when this process began."""
        if self._given or self.batch_size is None:
            return 0, 0
        _, world_size = current_membership()
        if all(workers == world_size for workers, _ in _before):
            steps, batches = sum(steps for _, steps in _before), self._batches(len(self))
            epoch, done = divmod(steps, batches) if batches else (0, 0)
            return epoch, done * self.batch_size * world_size
        epoch = used = 0
        for workers, steps in _before:
            left = self._batches(-(-(len(self.dataset) - used) // workers))
            if steps < left:
                used += steps * self.batch_size * workers
                continue
            batches = self._batches(-(-len(self.dataset) // workers))
            more, done = divmod(steps - left, batches) if batches else (0, 0)
            epoch, used = epoch + 1 + more, done * self.batch_size * workers
        return epoch, used

    def _batches(self, samples: int) -> int:
        """Return the number of batches of `samples` samples; 0 if the batch size is unknown."""
        if self.batch_size is None:
            return 0
        return samples // self.batch_size if self._drop_last else -(-samples // self.batch_size)

    def _warn(self) -> None:
        """Warn that no samples are left out, if some should be."""
        steps = sum(steps for _, steps in _before)
        if steps and self.batch_size is None and not self._given:
            log.warning(
                "this run goes on after %d steps, and the Sampler begins with the first sample "
                "again: give it the batch_size of the DataLoader",
                steps,
            )

    def set_epoch(self, epoch: int) -> None:
        """Begin `epoch` at the next iteration; setting the epoch of a loaded state keeps it."""
        if epoch < 0:
            raise InvalidValue(f"epoch {epoch} must be >= 0")
        if epoch != self.epoch:
            self.epoch, self.position, self._resuming = epoch, 0, False
        self._ended = self._counts = False

    def state_dict(self, *, consumed: int | None = None) -> State:
        """Return the position, and what must be equal for the remaining samples to be the same.

        A DataLoader with `num_workers` above 0 draws samples ahead of the loop: `consumed` then
        says how many samples of this epoch the loop has really used.
        """
        position = self.position if consumed is None else consumed
        return {"epoch": self.epoch, "position": position, **self._identity()}

    def load_state_dict(self, state: Mapping[str, int | bool]) -> None:
        """Go on from a saved `state`; refuse one of other data or another order."""
        self.epoch, self.position = _resume(state, self._identity(), len(self), "samples")
        self._resuming, self._ended, self._start = True, False, (0, 0)

    def _identity(self) -> State:
        rank, world_size = self._given or current_membership()
        return {
            "seed": self._seed,
            "rank": rank,
            "world_size": world_size,
            "shuffle": self._shuffle,
            "samples": len(self.dataset),
        }


def _resume(
    state: Mapping[str, int | bool], identity: State, length: int, unit: str
) -> tuple[int, int]:
    """Return (epoch, position) of a saved state; refuse one of other data or another order."""
    wanting = sorted({"epoch", "position", *identity} - set(state))
    if wanting:
        raise InvalidValue(f"a saved data state lacks {', '.join(wanting)}")
    for name, mine in identity.items():
        if state[name] != mine:
            raise InvalidValue(
                f"a saved data state has {name} {state[name]}, this run has {mine}:"
                f" the remaining {unit} would not be the same"
            )
    epoch, position = int(state["epoch"]), int(state["position"])
    if epoch < 0 or not 0 <= position <= length:
        raise InvalidValue(
            f"a saved data state is at {unit} {position} of {length} in epoch {epoch}"
        )
    return epoch, position
