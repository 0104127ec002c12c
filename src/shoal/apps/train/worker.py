"""The worker process of `shoal train`."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from shoal import factories as imports
from shoal.apps.train.models import from_layers, models
from shoal.apps.train.resume import epochs_of
from shoal.client.client import Client
from shoal.client.options import ClientOptions
from shoal.collective.process_group import ProcessGroup
from shoal.data.catalogue import find_source
from shoal.data.datasets import Dataset
from shoal.data.sampler import Assignment, Batches, Indices, plan_splits
from shoal.data.transforms import Compose
from shoal.engines.roles import configure_log
from shoal.errors import DataCorrupt, DataMissing, InvalidValue
from shoal.jobs.spec import JobSpec, from_mapping
from shoal.node.memory import keep_memory
from shoal.protocol.checkpoint_clocks import CheckpointClocks
from shoal.protocol.messages import Leased
from shoal.pytorch.model import LossModel
from shoal.pytorch.worker_state import WorkerStates, write_state
from shoal.storage.event_log import EventLog
from shoal.storage.files import write_whole
from shoal.storage.run_folder import RunFolder
from shoal.strategies import (
    StepResult,
    Strategy,
    leased_program,
    strategies,
    train_program,
)
from shoal.strategies.loop import Hooks

EVALUATIONS_AN_EPOCH = 5

log_to = logging.getLogger("shoal.worker")


def run_worker(
    job: dict[str, Any],
    scheduler: str,
    rank: int,
    folder: str,
    started_at: float,
    data_dirs: list[str],
    rendezvous: str,
    threads: int,
    token: str = "",
    passed: int = 0,
    watched: Callable[[Client, Progress, int], Hooks] = lambda client, hooks, steps: hooks,
) -> None:
    """Join, train, leave results in the run's folder.

    passed:   clock of the checkpoint that the run continues from
    watched:  makes the hooks of the training loop from the client, this worker's progress and the
              number of its steps
    """
    configure_log()
    keep_memory()
    spec = from_mapping(job)
    torch.set_num_threads(threads)
    torch.set_default_dtype(getattr(torch, spec.dtype))
    paths = RunFolder(Path(folder))
    dataset = load_dataset(spec, [Path(each) for each in data_dirs])
    learner = LossModel(build_model(spec, dataset), transform=dataset.transform)
    splits = splits_of(spec, dataset)
    split = splits[rank]
    kind = strategies[spec.strategy]
    strategy = kind(spec.strategy_options(updates_of(spec, splits, kind), rank, passed))
    options = ClientOptions(
        token=token,
        rank=rank,
        sync_timeout_s=spec.sync_timeout_s,
        abort_on_error=spec.on_worker_loss == "stop",
    )
    log = EventLog(paths.events, f"worker-{rank}", started_at)
    with Client(scheduler, options) as client:
        if not strategy.uses_servers and spec.collective == "gloo":
            client.collective = ProcessGroup(rank, spec.workers, rendezvous)
        batches = _Batches(spec, dataset, split, rank)
        clocks = CheckpointClocks(spec.checkpoint_every)
        states = WorkerStates(paths.checkpoints, rank, clocks, passed)
        epochs_before = epochs_of(spec.resume) if passed else 0
        if passed:
            resumed = RunFolder(Path(spec.resume)).checkpoints
            before = WorkerStates(resumed, rank, CheckpointClocks()).take_up(passed, learner.module)
            if before is not None:
                strategy.load_state_dict(dict(before))
            else:
                log_to.info(
                    "checkpoint %d has no random state of this worker: it begins with a new one",
                    passed,
                )
        progress = Progress(
            spec, client, learner, dataset, log, len(batches), strategy, states, passed
        )
        log.write("begin", rank=rank, samples=len(split), batches=len(batches))
        steps = spec.epochs * len(batches)
        hooks = watched(client, progress, min(steps, spec.max_steps or steps))
        first = rank if not passed else -1  # the servers have the parameters
        begun = hooks, spec.max_steps, client.clock
        if spec.on_worker_loss == "reassign":
            everything = _Batches(spec, dataset, np.arange(len(dataset.train_y)), 0)
            program = leased_program(
                strategy, learner, everything, spec.epochs, first, *begun, passed
            )
        else:
            # of the run before, a worker with fewer batches has done no more than all of them
            done = passed if strategy.in_step else min(passed, epochs_before * len(batches))
            rounds = max(-(-len(each) // spec.worker_batch) for each in splits)
            program = train_program(
                strategy, learner, batches, spec.epochs, first, *begun, done, rounds
            )
        steps = client.drive(program)
        result = progress.finish(steps)
        result["clock"] = progress.clock
        result["epochs"] = max(spec.epochs, epochs_before)
        if spec.saves:
            write_state(paths.state(rank), learner.module, strategy.state_dict())
        if client.rank == client.first_rank:
            state = {k: v.detach().clone() for k, v in learner.module.state_dict().items()}
            write_whole(paths.model, lambda fresh: save_file(state, fresh))
        paths.write_result(rank, result)
    log.write("end", rank=rank)
    log.close()


class Progress:
    """The loop's hooks: events, evaluations, and this worker's figures.

    clock:  to which training has come, with the clocks of the run that this one continues
    """

    def __init__(
        self,
        spec: JobSpec,
        client: Client,
        learner: LossModel,
        dataset: Dataset,
        log: EventLog,
        batches: int,
        strategy: Strategy,
        states: WorkerStates,
        passed: int = 0,
    ) -> None:
        self._client = client
        self._states = states
        self._strategy = strategy
        self._passed = self.clock = passed
        self._learner = learner
        self._log = log
        # Workers in step evaluate at the same steps, so the period has to be the same for all.
        longest = -(-len(dataset.train_y) * spec.redundancy // (spec.workers * spec.worker_batch))
        self._every = spec.eval_every or max(
            1, (longest if strategy.in_step else batches) // EVALUATIONS_AN_EPOCH
        )
        self._test = dataset.transform(dataset.test_x, dataset.test_y)
        self._samples = 0.0
        self._steps = 0
        self._staleness = 0
        self._evaluated_at = -1
        self._began = time.monotonic()
        self._evaluating_s = 0.0
        self._best: tuple[float, float] = (-1.0, 0.0)
        self._last: tuple[float, float] = (0.0, 0.0)
        self._losses: list[float] = []

    def stepped(self, epoch: int, step: int, result: StepResult) -> None:
        self._steps += 1
        self._samples += result.weight
        self._staleness += result.staleness
        if not isnan(result.loss):
            self._losses.append(result.loss)
            self._log.write(
                "step",
                step=step,
                epoch=epoch,
                loss=result.loss,
                samples=int(result.weight),
                staleness=result.staleness,
            )
        self.exchanged()
        if step % self._every == 0:
            self.evaluate(epoch, step)

    def epoch_done(self, epoch: int, step: int) -> None:
        self.exchanged()  # it may end with a round
        self.evaluate(epoch, step)

    def exchanged(self) -> None:
        """The clock may have moved: perhaps to a checkpoint's, with which goes a worker's state."""
        self.clock = self._passed + self._client.clock
        client, state = self._client, self._strategy.state_dict
        self._states.reached(client.view, client.clock, self._learner.module, state)

    def evaluate(self, epoch: int, step: int) -> None:
        if step == self._evaluated_at:
            return
        self._evaluated_at = step
        begin = time.monotonic()
        accuracy, loss = self._learner.evaluate(*self._test)
        self._evaluating_s += time.monotonic() - begin
        self._last = (accuracy, loss)
        if accuracy > self._best[0]:
            self._best = (accuracy, loss)
        self._log.write("eval", step=step, epoch=epoch, accuracy=accuracy, loss=loss)

    def finish(self, steps: int) -> dict[str, Any]:
        """This worker's figures: of the final parameters, which are the same for all."""
        seconds = time.monotonic() - self._began - self._evaluating_s
        accuracy, loss = self._learner.evaluate(*self._test)
        self._log.write("eval", step=steps, epoch=-1, accuracy=accuracy, loss=loss)
        return {
            "accuracy": accuracy,
            "loss": loss,
            "best_accuracy": max(accuracy, self._best[0]),
            "train_loss": float(np.mean(self._losses[-20:])) if self._losses else None,
            "samples": int(self._samples),
            "steps": self._steps,
            "seconds": seconds,
            "staleness": self._staleness / max(1, self._steps),
            "bytes_pushed": self._client.bytes_pushed,
            "bytes_pulled": self._client.bytes_pulled,
        }


class _Batches:
    """Samples as (x, y) batches: those of one worker, or everybody's."""

    def __init__(self, spec: JobSpec, dataset: Dataset, split: Any, rank: int) -> None:
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
    """The job's data: by name, or from an importable function."""
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
    """`build_model`, which leaves this process's random state and default dtype as they are."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, spec.dtype))
    try:
        with torch.random.fork_rng(devices=[]):
            return build_model(spec, dataset)
    finally:
        torch.set_default_dtype(before)


def build_model(spec: JobSpec, dataset: Dataset) -> nn.Module:
    """The job's model, from its seed or its file of initial weights."""
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
        DataMissing: there is none
        DataCorrupt: it is damaged, or of another module
    """
    if not path.exists():
        raise DataMissing(f"no weights at {path}: it does not exist")
    try:
        module.load_state_dict(load_file(path))
    except Exception as error:
        raise DataCorrupt(f"{path} does not fit the model: {error}") from None


def updates_of(spec: JobSpec, splits: list[Any], kind: type[Strategy]) -> int:
    """How many updates the parameters will see: one a round, or one a push."""
    in_step = kind.in_step or kind.on_workers
    steps = [-(-len(split) // spec.worker_batch) for split in splits]
    if spec.max_steps:
        return spec.max_steps if in_step else spec.max_steps * len(splits)
    return spec.epochs * (max(steps) if in_step else sum(steps))


def splits_of(spec: JobSpec, dataset: Dataset) -> list[Any]:
    """Every worker's samples: a pure function of the job."""
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
    """How many workers of consecutive ranks have the same batches."""
    return spec.redundancy if strategies[spec.strategy].repeats else 1
