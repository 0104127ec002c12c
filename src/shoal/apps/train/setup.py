"""The setup of a job's workers: data, splits, model, strategy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from shoal import factories as imports
from shoal.apps.train.models import from_layers, models
from shoal.data.catalogue import find_source
from shoal.data.datasets import Dataset
from shoal.data.sampler import Assignment, Batches, Indices, plan_splits
from shoal.data.transforms import Compose
from shoal.errors import DataCorrupt, DataMissing, InvalidValue
from shoal.protocol.messages.membership import Leased
from shoal.pytorch.model import LossModel
from shoal.runs.job import JobSpec
from shoal.storage.files import open_file
from shoal.strategies import Strategy, strategies


@dataclass(frozen=True)
class WorkerSetup:
    """The data, model and strategy with which one worker begins.

    Attributes:
        batches: the worker's own batches.
        everything: the batches of all workers, some of which are leased to this worker.
        rounds: the largest number of batches that a worker has in an epoch.
    """

    spec: JobSpec
    dataset: Dataset
    model: LossModel
    strategy: Strategy
    batches: JobBatches
    rounds: int

    @property
    def everything(self) -> JobBatches:
        return JobBatches(self.spec, self.dataset, np.arange(len(self.dataset.train_y)), 0)


def set_up(spec: JobSpec, dataset: Dataset, rank: int, start_clock: int = 0) -> WorkerSetup:
    """Return the setup of a worker of a job.

    start_clock: the clock of the checkpoint that the run continues from
    """
    splits = splits_of(spec, dataset)
    check_steps(spec, splits)
    kind = strategies[spec.strategy]
    return WorkerSetup(
        spec,
        dataset,
        LossModel(build_model(spec, dataset), transform=dataset.transform),
        kind(spec.strategy_options(updates_of(spec, splits, kind), rank, start_clock)),
        JobBatches(spec, dataset, splits[rank], rank),
        max(-(-len(each) // spec.worker_batch) for each in splits),
    )


class JobBatches:
    """The samples of one worker, or of all workers, in (x, y) batches.

    samples: the number of samples in an epoch
    """

    def __init__(self, spec: JobSpec, dataset: Dataset, split: Any, rank: int) -> None:
        self.samples = len(split)
        self._dataset = dataset
        of = rank // copies_of(spec)
        self._batches = Batches(split, spec.worker_batch, seed=spec.seed, rank=of)

    def __len__(self) -> int:
        return len(self._batches)

    def epoch(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        yield from map(self._samples, self._batches.batches(epoch))

    def leased(self, lease: Leased) -> Iterator[tuple[Tensor, Tensor]]:
        some = self._batches.some(lease.epoch, lease.first, lease.count)
        yield from map(self._samples, some)

    def _samples(self, chosen: Indices) -> tuple[Tensor, Tensor]:
        index = torch.from_numpy(chosen)
        return self._dataset.train_x[index], self._dataset.train_y[index]


def load_dataset(spec: JobSpec, data_dirs: list[Path]) -> Dataset:
    """Load the job's data, by name or from an importable function."""
    if spec.data_is_named:
        return find_source(spec.data).load(data_dirs)
    made = imports.load(spec.data)()
    if isinstance(made, Dataset):
        return made
    try:
        train_x, train_y, test_x, test_y = made
        classes = int(torch.cat([train_y, test_y]).max()) + 1
    except (TypeError, ValueError, DataCorrupt, DataMissing) as error:
        raise InvalidValue(
            f"{spec.data} has to return a Dataset or (train_x, train_y, test_x, test_y): {error}"
        ) from None
    return Dataset(spec.data, train_x, train_y, test_x, test_y, classes, Compose())


def untrained_model(spec: JobSpec, dataset: Dataset) -> nn.Module:
    """Build the job's model; restore this process's random state and default dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, spec.dtype))
    try:
        with torch.random.fork_rng(devices=[]):
            return build_model(spec, dataset)
    finally:
        torch.set_default_dtype(before)


def build_model(spec: JobSpec, dataset: Dataset) -> nn.Module:
    """Build the job's model, from its seed or its file of initial weights."""
    torch.manual_seed(spec.seed)
    sample, _ = dataset.transform(dataset.train_x[:1], dataset.train_y[:1])
    if spec.layers:
        module = from_layers(spec.layers, sample)
    elif ":" in spec.model:
        module = imports.load(spec.model)()
        if not isinstance(module, nn.Module):
            raise InvalidValue(
                f"{spec.model} made a {type(module).__name__}, not a torch.nn.Module"
            )
        module = module.to(torch.get_default_dtype())
    else:
        suits = find_source(spec.data).default_model if spec.data_is_named else "mlp"
        name = spec.model or suits
        module = models[name](tuple(sample.shape[1:]), dataset.classes)
    if spec.init:
        load_weights(module, Path(spec.init))
    return module


def load_weights(module: nn.Module, path: Path) -> None:
    """Load a module's parameters and buffers from a file.

    Raises:
        DataMissing: the file does not exist
        DataCorrupt: the file is damaged, or of another module
    """
    if not path.exists():
        raise DataMissing(f"no weights at {path}: it does not exist")
    try:
        open_file(path).close()  # refuse a pipe, for which `load_file` would wait
        module.load_state_dict(load_file(path))
    except Exception as error:
        raise DataCorrupt(f"{path} does not fit the model: {error}") from None


def updates_of(spec: JobSpec, splits: list[Any], kind: type[Strategy]) -> int:
    """Return the number of updates that the parameters will see: one a round, or one a push."""
    batches = [-(-len(split) // spec.worker_batch) for split in splits]
    steps = [spec.max_steps or spec.epochs * each for each in batches]
    if kind.traits.in_step or kind.traits.optimizer_on_workers:
        return max(steps)
    period = max(1, kind(spec.strategy_options(1)).period(0))
    return sum(-(-each // period) for each in steps)


def check_steps(spec: JobSpec, splits: list[Any]) -> None:
    """Refuse a limit of steps that workers without servers would reach in different rounds.

    Raises:
        InvalidValue: the workers would
    """
    counts = [-(-len(split) // spec.worker_batch) for split in splits]
    strategy = strategies[spec.strategy](spec.strategy_options(1))
    if spec.uses_servers or len({*counts}) == 1 or spec.max_steps <= min(counts):
        return
    if any(strategy.period(round_) != 1 for round_ in range(spec.max_steps)):
        raise InvalidValue(
            f"max_steps {spec.max_steps} without servers: workers with {min(counts)} to "
            f"{max(counts)} batches would end in unlike rounds; give epochs instead, or at most "
            f"{min(counts)} steps"
        )


def splits_of(spec: JobSpec, dataset: Dataset) -> list[Any]:
    """Return every worker's samples, a pure function of the job and the data."""
    copies = copies_of(spec)
    splits = plan_splits(
        dataset.train_y.numpy(),
        spec.workers // copies,
        assignment=Assignment.parse(spec.assignment),
        block_size=spec.block_size,
        redundancy=1 if copies > 1 else spec.redundancy,
        seed=spec.seed,
    )
    return [splits[rank // copies] for rank in range(spec.workers)]


def copies_of(spec: JobSpec) -> int:
    """Return the number of workers of consecutive ranks that have the same batches."""
    return spec.redundancy if strategies[spec.strategy].traits.replicates_batches else 1
