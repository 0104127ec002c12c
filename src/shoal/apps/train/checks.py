"""Checks of a job before any process starts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from shoal import factories
from shoal.data.catalogue import find_source
from shoal.errors import DataMissing, InvalidValue, UsageError
from shoal.runs.job import JobSpec, from_mapping
from shoal.runs.job_file import load_run_job
from shoal.runs.options import RunOptions, check_backup, need_servers
from shoal.storage.checkpoints import Checkpoints
from shoal.storage.run_folder import RunFolder
from shoal.strategies import Strategy, StrategyOptions, strategies
from shoal.strategies.layer_codecs import check_codecs, registered
from shoal.tables.consistency import bsp
from shoal.tables.spec import TableSpec


def check_job(job: JobSpec) -> None:
    """Refuse options that contradict each other or the strategy; import no torch."""
    traits = strategies[job.strategy].traits
    if job.redundancy > 1 and not traits.allows_redundancy:
        usable = ", ".join(name for name in strategies if strategies[name].traits.allows_redundancy)
        raise InvalidValue(
            f"strategy {job.strategy!r} counts each sample once and cannot use redundancy "
            f"{job.redundancy} (these can: {usable})"
        )
    strategy = check_strategy(job.strategy, job.strategy_options(updates=1), job)
    check_codecs(registered(job.codec), job.server_codec, summed=not strategy.traits.uses_servers)
    if strategy.traits.uses_servers and job.server_codec != "none":
        rule = getattr(strategy, "consistency", bsp())  # a user's strategy may have several
        TableSpec("params", 1, consistency=rule, server_codec=job.server_codec)
    if job.on_worker_loss == "reassign" and (
        traits.optimizer_on_workers
        or traits.replicates_batches
        or strategy.traits.skips_closed_rounds
    ):
        raise InvalidValue(
            f"on_worker_loss 'reassign' counts one batch a clock, and strategy {job.strategy!r} "
            f"with {job.set or 'its settings'} may take several or leave some out"
        )
    check_backup(job)
    if job.on_worker_loss == "reassign":
        _check_leases(job)
    if job.data_is_named:
        find_source(job.data)
    if job.init and not Path(job.init).is_file():
        raise DataMissing(f"no initial weights at {job.init}")


def check_continued(job: JobSpec, start_clock: int) -> None:
    """Refuse to continue a run whose checkpoint does not have what the job's workers need.

    The strategy of that run is not imported: the job may have another in its place.

    Raises:
        InvalidValue: the parameters are elsewhere, or workers would lack their state, or have the
            state of another optimizer or dtype
    """
    before = from_mapping(load_run_job(Path(job.resume)))
    has_rows = Checkpoints(RunFolder(Path(job.resume)).checkpoints).has_rows(start_clock)
    where = {True: "on servers", False: "on workers"}
    had = f"{job.resume} was trained with strategy {before.strategy!r}"
    if has_rows != job.uses_servers or (not has_rows and before.strategy != job.strategy):
        raise InvalidValue(
            f"{had}, which has its parameters {where[has_rows]}, and {job.strategy!r} has its own "
            f"{where[job.uses_servers]}: begin a new run, with --init "
            f"{job.resume}/model.safetensors"
        )
    if not job.uses_servers and before.workers < job.workers:
        raise InvalidValue(
            f"{job.resume} has the states of {before.workers} workers, and strategy "
            f"{job.strategy!r} needs one for each: resume it with no more workers than that"
        )
    for what, was, asked in (
        ("optimizer", before.optimizer or job.chosen_optimizer, job.chosen_optimizer),
        ("dtype", before.dtype, job.dtype),
    ):
        if was != asked and job.keeps_states:
            raise InvalidValue(
                f"{had} and {what} {was}, and has the state of that on workers: it cannot be "
                f"resumed with {what} {asked}"
            )


def check_strategy(name: str, options: StrategyOptions, run: RunOptions) -> Strategy:
    """Return a strategy with its options; refuse one that cannot train in such a run.

    Raises:
        UnknownName: no such strategy, or no such setting
        InvalidValue: a setting out of its range, or an option that the strategy does not support
    """
    uses_servers = strategies[name].traits_with(options.settings).uses_servers
    for asked, what in (
        (
            run.checkpoint_every_s > 0,
            "has no servers whose clocks tell when a time has passed: use --checkpoint-every",
        ),
        (
            run.slow_workers != "wait",
            "has no servers to measure how long workers are waited for",
        ),
    ):
        if asked and not uses_servers:
            raise InvalidValue(f"strategy {name!r} {what}")
    strategy = strategies[name](options)
    strategy.check_losses(run.on_worker_loss, run.on_timeout)
    if uses_servers:
        need_servers(run.servers)
    return strategy


def _check_leases(job: JobSpec) -> None:
    """Refuse leases where not every worker can train on all of the data."""
    for wrong, what in (
        (job.assignment != "iid", f"assignment {job.assignment} says whose data are whose"),
        (job.redundancy > 1, f"redundancy {job.redundancy} gives each sample to several workers"),
    ):
        if wrong:
            raise InvalidValue(f"on_worker_loss 'reassign' leases data to workers, and {what}")


def check_inputs(job: JobSpec, data_dirs: Sequence[Path]) -> tuple[str, ...]:
    """Load the data and build the model and the optimizer once, as the workers will.

    A user's functions are imported, but only workers call them: they may take long, or have side
    effects. Return notes on the data for the user, such as the number of rows that were left out.

    Raises:
        UnknownName, InvalidValue: the optimizer, its options, the model or the split is wrong
        DataMissing, DataCorrupt: the data set or the file of initial weights is missing or damaged
        NotImportable: a function does not exist
    """
    with factories.uninterrupted():
        from shoal.apps.train.setup import check_steps, load_dataset, splits_of, untrained_model
        from shoal.tables.dense.methods import method_of
    from shoal.tables.spec import Access, TableSpec

    access = Access(job.chosen_optimizer, job.access_options(updates=1))
    try:
        method_of(TableSpec("parameters", 1, access=access, dtype=job.dtype))
    except UsageError as error:
        raise type(error)(f"optimizer: {error.message}") from None
    for name in (job.model, "" if job.data_is_named else job.data):
        if ":" in name:
            factories.load(name)
    if not job.data_is_named:
        return ()
    dataset = load_dataset(job, list(data_dirs))
    check_steps(job, splits_of(job, dataset))
    if ":" not in job.model:
        untrained_model(job, dataset)
    return dataset.notes
