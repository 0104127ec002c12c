"""JobSpec: what to train, typed. TOML files, flags and `shoal.train` share this one schema."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from shoal.engines.options import OptimizerOptions, Settings, Staleness, StrategyName, option
from shoal.errors import InvalidValue
from shoal.registry import unknown
from shoal.runs.job_file import another_application, converted, inherited, load_run_job
from shoal.runs.options import RunOptions, check_staleness
from shoal.runs.trust import check_run, code_of, names_code, told
from shoal.storage.files import naming
from shoal.storage.run_folder import RunFolder
from shoal.strategies import USUAL, StrategyOptions, strategies
from shoal.strategies.layer_codecs import registered
from shoal.tables.spec import Access, Options

Layer = str | list[Any] | dict[str, Any]
log = logging.getLogger("shoal")
USUAL_LR = {"sgd": 0.1, "adagrad": 0.02, "rmsprop": 0.001, "adadelta": 1.0}
USUAL_LR |= dict.fromkeys(("adam", "nadam", "radam", "adamax"), 0.002)


class JobSpec(RunOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A training job. Field names are flags with `-` for `_`, and keys of a TOML file."""

    # fmt: off
    data: Annotated[str, option("Data", "data set: digits, mnist, cifar10, images:PATH, csv:PATH, or FILE.py:FUNCTION (MODULE:FUNCTION) that returns train_x, train_y, test_x, test_y; here, or as the argument DATA")] = "digits"
    data_dir: Annotated[str, option("Data", "folder that is searched first for data sets")] = ""
    assignment: Annotated[str, option("Data", "how samples are split among workers: iid, noniid, or static:2,1,1")] = "iid"
    block_size: Annotated[int, option("Data", "samples that stay together in a split", ge=1)] = 16
    redundancy: Annotated[int, option("Data", "workers that get each block", ge=1)] = 1
    model: Annotated[str, option("Model", "mlp, cnn, or FILE.py:FUNCTION (MODULE:FUNCTION) that returns a torch module; the data set's usual one if not given")] = ""
    layers: Annotated[list[Layer], option("Model", "the model as torch.nn layers, shapes inferred")] = []  # noqa: RUF012
    init: Annotated[str, option("Model", "file of initial weights, .safetensors")] = ""
    dtype: Annotated[Literal["float32", "float64"], option("Model", "type of the parameters")] = "float32"
    strategy: StrategyName = USUAL
    set: Settings = {}  # noqa: RUF012
    staleness: Staleness = 0
    apply_at: Annotated[Literal["arrival", "round_end"], option("Training", "when servers apply a push; ssp")] = "arrival"
    epochs: Annotated[int, option("Training", "passes over the data", ge=1)] = 3
    max_steps: Annotated[int, option("Training", "steps after which training stops; 0: no limit", ge=0)] = 0
    batch_size: Annotated[int, option("Training", "samples of a worker in a step", ge=1)] = 64
    global_batch_size: Annotated[int, option("Training", "samples of all workers together in a step, instead of --batch-size; 0: not used", ge=0)] = 0
    optimizer: Annotated[str, option("Training", "sgd, adagrad, rmsprop, adadelta, adam, ..., on the servers: `shoal list tables` has all, and their options; the strategy's usual one if not given, which is sgd for eamsgd and adam for the others")] = ""
    lr: Annotated[float, option("Training", "learning rate; 0: the optimizer's usual one", ge=0.0)] = 0.0
    schedule: Annotated[Literal["constant", "linear", "cosine"], option("Training", "decay of the learning rate over the run")] = "cosine"
    optimizer_options: OptimizerOptions = {}  # noqa: RUF012
    codec: Annotated[str | dict[str, str], option("Training", "codec of pushes, which makes them smaller: int:8, natural:8, qsgd:4, onebit, ...; `shoal list codecs` has all; a job file may have codecs by layer, in its table codec")] = ""
    server_codec: Annotated[str, option("Training", "codec of the parameters that workers pull while they train: fp16, bf16, int:8 or qsgd:8, or delta:CODEC of what a round has changed")] = ""
    eval_every: Annotated[int, option("Training", "steps between evaluations; 0: five times an epoch", ge=0)] = 0
    seed: Annotated[int, option("Training", "seed of weights, splits and shuffles", ge=0)] = 0
    # fmt: on

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layers and self.model:
            raise InvalidValue("a job has a model or layers, not both")
        check_staleness(self.staleness, self.strategy)
        if self.apply_at != "arrival" and self.strategy != "ssp":
            raise InvalidValue(f"apply_at belongs to strategy 'ssp', not to {self.strategy!r}")
        if self.global_batch_size % self.workers:
            raise InvalidValue(
                f"global_batch_size {self.global_batch_size} cannot be divided by "
                f"{self.workers} workers"
            )

    @property
    def worker_batch(self) -> int:
        """The number of samples of a worker in a step."""
        return self.global_batch_size // self.workers or self.batch_size

    @property
    def chosen_optimizer(self) -> str:
        """The optimizer; the strategy's usual one if none is given."""
        return self.optimizer or strategies[self.strategy].Settings.optimizer

    @property
    def resolved(self) -> JobSpec:
        """This job with `chosen_optimizer` as its optimizer."""
        return msgspec.structs.replace(self, optimizer=self.chosen_optimizer)

    @property
    def uses_servers(self) -> bool:
        """Whether the strategy, with these settings, has the parameters in tables on servers."""
        return strategies[self.strategy].traits_with(self.set).uses_servers

    @property
    def keeps_states(self) -> bool:
        """Whether the optimizer is on workers, whose states belong to a complete checkpoint."""
        return strategies[self.strategy].traits.optimizer_on_workers

    @property
    def data_is_named(self) -> bool:
        """Whether `data` is a data set's name, not an importable function."""
        return not names_code(self.data)

    def access_options(self, updates: int) -> Options:
        """Return the optimizer's options, with a learning rate scheduled over `updates` updates."""
        lr = self.lr or USUAL_LR.get(self.chosen_optimizer, 0.01)
        schedule: Options = {}
        if self.schedule != "constant" and "schedule" not in self.optimizer_options:
            name = {"linear": "polynomial", "cosine": "cosine"}[self.schedule]
            schedule = {"schedule": name, "schedule_total": max(1, updates)}
        return {"lr": lr, **schedule, **self.optimizer_options}

    def strategy_options(
        self, updates: int, rank: int = 0, start_clock: int = 0
    ) -> StrategyOptions:
        """Return a worker's strategy options; the optimizer makes `updates` updates in all.

        start_clock: the clock of the resumed checkpoint; 0 for a new run
        """
        return StrategyOptions(
            Access(self.chosen_optimizer, self.access_options(updates)),
            self.staleness,
            self.apply_at,
            batch=float(self.worker_batch),
            workers=self.workers,
            rank=rank,
            start_clock=start_clock,
            redundancy=self.redundancy,
            codec=registered(self.codec),
            server_codec=self.server_codec,
            seed=self.seed,
            settings=self.set,
        )

    def replace(self, changes: dict[str, Any]) -> JobSpec:
        """Return this job with some fields changed; an error names a field with a wrong value."""
        return from_mapping({**msgspec.to_builtins(self), **changes})


def from_mapping(values: dict[str, Any]) -> JobSpec:
    """Return a job from plain values.

    Raises:
        UnknownName: a key that no field has
        InvalidValue: a value of a wrong type or out of its range; the text names the field
    """
    for key in values:
        if key not in JobSpec.__struct_fields__:
            raise unknown("job field", key, JobSpec.__struct_fields__)
    if values.get("global_batch_size") and values.get("batch_size", 64) != 64:
        raise InvalidValue("give batch_size (a worker) or global_batch_size (all), not both")
    return converted(values, JobSpec)


def continued(
    run: Path,
    asked: dict[str, Any],
    says: Callable[[str], object] = log.warning,
) -> dict[str, Any]:
    """Return the values of a job that continues a run: those asked for, else those of that run.

    says:   the function that is told which code is imported because that run has imported it

    Raises:
        NotTrusted: another user has left the run, or could have changed it
        DataMissing, DataCorrupt, UnknownFormat: as `load_run_job`
        InvalidValue: as `load_run_job`, or another command has to continue the run
    """
    before = load_run_job(run)
    if before.get("application"):
        raise another_application(run, before)
    with naming(RunFolder(run).job):
        from_mapping(before)
    values = inherited(before, asked)
    code = code_of({name: value for name, value in values.items() if name not in asked})
    check_run(run, code)
    if code:
        says(f"importing {told(code)}, as {RunFolder(run).job} says")
    return values
