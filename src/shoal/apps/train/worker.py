"""The worker process of `shoal train`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors.torch import save_file

from shoal.apps.train.progress import RESIDUALS, Progress
from shoal.apps.train.setup import WorkerSetup, load_dataset, set_up
from shoal.client.client import Client
from shoal.errors import InvalidValue
from shoal.protocol.checkpoint_clocks import CheckpointClocks
from shoal.pytorch.worker_state import MISFITS, WorkerStates, ranks_of, write_state
from shoal.runs.job import from_mapping
from shoal.runs.resume import epochs_of
from shoal.runs.worker import WorkerTask
from shoal.storage.files import write_whole
from shoal.storage.run_folder import RunFolder
from shoal.storage.shard_files import Origin
from shoal.strategies import leased_program, train_program
from shoal.strategies.loop import Hooks

log_to = logging.getLogger("shoal.worker")


def run_worker(
    watched: Callable[[Client, Progress, int], Hooks] = lambda client, hooks, steps: hooks,
    **given: Any,
) -> None:
    """Join the run, train, and write the results to the run's folder.

    watched:  the function that makes the hooks of the training loop from the client, this worker's
              progress and the number of its steps
    given:    the fields of `WorkerTask`
    """
    task = msgspec.convert(given, WorkerTask)
    log = task.begin()
    spec = from_mapping(task.options)
    torch.set_default_dtype(getattr(torch, spec.dtype))
    paths, rank, start_clock = task.paths, task.rank, task.start_clock
    data = load_dataset(spec, [Path(each) for each in task.inputs["data_dirs"]])
    setup = set_up(spec, data, rank, start_clock)
    strategy, model = setup.strategy, setup.model
    how = msgspec.structs.replace(task.client_options(spec), seed=spec.seed)
    with Client(task.scheduler, how) as client:
        clocks = CheckpointClocks(spec.checkpoint_every)
        alone, kept = not strategy.traits.uses_servers, spec.keep_checkpoints
        states = WorkerStates(paths.checkpoints, rank, clocks, start_clock, alone, kept, client.run)
        epochs_before = epochs_of(spec.resume) if start_clock else 0
        done = _take_up(setup, rank, start_clock, epochs_before, client) if start_clock else None
        progress = Progress(setup, client, log, states, start_clock)
        progress.begin(rank)
        steps = spec.epochs * len(setup.batches)
        hooks = watched(client, progress, min(steps, spec.max_steps or steps))
        first = rank if not start_clock or alone else -1  # the servers have the parameters
        begun = hooks, spec.max_steps, client.clock
        if spec.on_worker_loss == "reassign":
            program = leased_program(
                strategy, model, setup.everything, spec.epochs, first, *begun, start_clock
            )
        else:
            own = (strategy, model, setup.batches, spec.epochs, first)
            program = train_program(*own, *begun, start_clock, setup.rounds, done)
        steps = client.drive(program)
        result = progress.finish(steps)
        result["clock"] = progress.clock
        result["epochs"] = max(spec.epochs, epochs_before)
        if spec.saves:
            ranks = ranks_of(client.view) if alone else ()
            origin = Origin(client.run, progress.clock, client.view.id)
            told = model.module, progress.state(), steps, origin, ranks
            write_state(paths.state(rank), *told, ended=True)
        if client.rank == client.first_rank:
            state = {k: v.detach().clone() for k, v in model.module.state_dict().items()}
            write_whole(paths.model, lambda fresh: save_file(state, fresh))
        paths.write_result(rank, result)
    log.close()


def _take_up(
    setup: WorkerSetup, rank: int, start_clock: int, epochs_before: int, client: Client
) -> int:
    """Load the state of a checkpoint; return the number of batches that this worker had done.

    client:  the worker's part of the run; if it joins after clock 0 the strategy takes its state
             from the cluster
    """
    spec, strategy = setup.spec, setup.strategy
    resumed = RunFolder(Path(spec.resume)).checkpoints
    states = WorkerStates(resumed, rank, CheckpointClocks(), alone=not strategy.traits.uses_servers)
    state = states.take_up(start_clock, setup.model.module)
    if state is None:
        log_to.info(
            "checkpoint %d has no random state of this worker: it begins with a new one",
            start_clock,
        )
    elif not client.clock:
        try:
            own = dict(state)
            client.load_residuals(own.pop(RESIDUALS, {}), start_clock)
            strategy.load_state_dict(own)
        except MISFITS as error:
            raise InvalidValue(
                f"the checkpoint of {spec.resume} has no state of strategy {strategy.name!r} with "
                f"these settings ({type(error).__name__}: {error}): resume it with those of that "
                "run"
            ) from None
    if states.step >= 0:
        return states.step
    return min(strategy.batches_at(start_clock), epochs_before * len(setup.batches))
