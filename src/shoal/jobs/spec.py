"""JobSpec: what to train, typed. TOML files, flags and `shoal.train` share this one schema."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from shoal.errors import InvalidValue
from shoal.registry import unknown
from shoal.tables.spec import Options

T = TypeVar("T")
Layer = str | list[Any] | dict[str, Any]


USUAL_LR = {"sgd": 0.1, "adagrad": 0.02, "rmsprop": 0.001, "adadelta": 1.0, "adam": 0.002}


def check_replicas(replicas: int, servers: int) -> None:
    """Each copy of a row is on a server of its own."""
    if replicas > servers:
        raise InvalidValue(f"{replicas} replicas are on as many servers: add --servers {replicas}")


class JobSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A training job. Field names are flags with `-` for `_`, and keys of a TOML file."""

    # fmt: off
    data: Annotated[str, Meta(description="data set: digits, mnist, cifar10, csv:PATH, or MODULE:FUNCTION")] = "digits"
    data_dir: Annotated[str, Meta(description="where data sets are looked for first")] = ""
    model: Annotated[str, Meta(description="mlp, cnn, or an importable factory MODULE:FUNCTION")] = ""
    layers: Annotated[list[Layer], Meta(description="the model as torch.nn layers, shapes inferred (TOML only)")] = []
    init: Annotated[str, Meta(description="initial weights: a .safetensors file")] = ""
    strategy: Annotated[str, Meta(description="sync, ssp, asgd or allreduce: see `shoal list strategies`")] = "sync"
    staleness: Annotated[int, Meta(ge=0, description="ssp: clocks that a worker may be ahead")] = 0
    apply_at: Annotated[Literal["arrival", "round_end"], Meta(description="ssp: when pushes reach the rows")] = "arrival"
    workers: Annotated[int, Meta(ge=1, le=1024, description="worker processes")] = 2
    servers: Annotated[int, Meta(ge=1, le=1024, description="server processes")] = 1
    replicas: Annotated[int, Meta(ge=1, le=1024, description="servers that have a copy of each parameter: one more than may die")] = 1
    on_worker_loss: Annotated[Literal["stop", "drop", "replace", "reassign"], Meta(description="where a worker is killed: end the run, go on without it, start another in its place, or have the others do its data")] = "stop"
    slow_workers: Annotated[Literal["wait", "drop", "backup"], Meta(description="a worker that the others wait for more than half of the time: wait, go on without it, or have others do what it had and let it come again (with --on-worker-loss reassign)")] = "wait"
    checkpoint_every: Annotated[int, Meta(ge=0, description="steps from one checkpoint to the next; 0 for none")] = 0
    checkpoint_every_s: Annotated[float, Meta(ge=0, description="... or seconds")] = 0.0
    keep_checkpoints: Annotated[int, Meta(ge=0, description="... of which so many are kept, the last ones; 0 for all")] = 0
    resume: Annotated[str, Meta(description="go on with the run in this folder, from its last checkpoint")] = ""
    resume_at: Annotated[int, Meta(ge=-1, description="... or from that of this many steps")] = -1
    epochs: Annotated[int, Meta(ge=1, description="passes over the data")] = 3
    max_steps: Annotated[int, Meta(ge=0, description="stop after this many steps; 0 for no limit")] = 0
    batch_size: Annotated[int, Meta(ge=1, description="samples a worker and step")] = 64
    global_batch_size: Annotated[int, Meta(ge=0, description="samples of all workers a step, divided among them; instead of --batch-size")] = 0
    optimizer: Annotated[str, Meta(description="sgd, adagrad, rmsprop, adadelta or adam: see `shoal list tables`")] = "adam"
    lr: Annotated[float, Meta(ge=0.0, description="learning rate; 0 for the optimizer's usual one")] = 0.0
    schedule: Annotated[Literal["constant", "linear", "cosine"], Meta(description="how the learning rate falls over the run")] = "cosine"
    optimizer_options: Annotated[Options, Meta(description="more of the optimizer's options, such as momentum=0.9 or weight_decay=1e-4")] = {}
    dtype: Annotated[Literal["float32", "float64"], Meta(description="of the parameters")] = "float32"
    seed: Annotated[int, Meta(ge=0, description="of weights, splits and shuffles")] = 0
    assignment: Annotated[str, Meta(description="how data are split: iid, noniid, or static:2,1,1")] = "iid"
    block_size: Annotated[int, Meta(ge=1, description="samples that stay together in a split")] = 16
    redundancy: Annotated[int, Meta(ge=1, description="workers that get each block")] = 1
    eval_every: Annotated[int, Meta(ge=0, description="steps between evaluations; 0 for five an epoch")] = 0
    sync_timeout_ms: Annotated[int, Meta(ge=1, description="after this a wait asks for a resend, after twice this it fails")] = 10000
    transport: Annotated[Literal["unix", "tcp"], Meta(description="between the processes of this machine")] = "unix"
    collective: Annotated[Literal["ring", "gloo"], Meta(description="allreduce: on the workers' own connections, or by torch.distributed")] = "ring"
    title: Annotated[str, Meta(max_length=100, description="names the run's folder")] = ""
    out: Annotated[str, Meta(description="where run folders go")] = "shoal-runs"
    # fmt: on

    @property
    def saves(self) -> bool:
        """Whether there are to be checkpoints."""
        return self.checkpoint_every > 0 or self.checkpoint_every_s > 0

    def __post_init__(self) -> None:
        check_replicas(self.replicas, self.servers)
        if self.layers and self.model:
            raise InvalidValue("a job has a model or layers, not both")
        if self.staleness and self.strategy != "ssp":
            raise InvalidValue(f"staleness belongs to the ssp strategy, not to {self.strategy!r}")
        if self.apply_at != "arrival" and self.strategy != "ssp":
            raise InvalidValue(f"apply_at belongs to the ssp strategy, not to {self.strategy!r}")
        if self.global_batch_size and self.global_batch_size % self.workers:
            raise InvalidValue(
                f"global_batch_size {self.global_batch_size} cannot be divided by "
                f"{self.workers} workers"
            )

    @property
    def worker_batch(self) -> int:
        """Samples a worker and step."""
        return self.global_batch_size // self.workers or self.batch_size

    @property
    def data_is_named(self) -> bool:
        """Whether `data` is a data set's name, not an importable function."""
        module, function, _ = self.data.partition(":")
        return module == "csv" or not function

    def access_options(self, updates: int) -> Options:
        """The optimizer's options, its learning rate scheduled over that many updates."""
        lr = self.lr or USUAL_LR.get(self.optimizer, 0.01)
        schedule: Options = {}
        if self.schedule != "constant" and "schedule" not in self.optimizer_options:
            name = {"linear": "polynomial", "cosine": "cosine"}[self.schedule]
            schedule = {"schedule": name, "schedule_total": max(1, updates)}
        return {"lr": lr, **schedule, **self.optimizer_options}

    def replace(self, changes: dict[str, Any]) -> JobSpec:
        """This job with some fields changed; wrong ones get an error that names the field."""
        return from_mapping({**msgspec.to_builtins(self), **changes})


def from_mapping(values: dict[str, Any]) -> JobSpec:
    """A job from plain values.

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


def converted(values: dict[str, Any], schema: type[T]) -> T:
    """Plain values as a schema's.

    Raises:
        InvalidValue: one is of a wrong type or out of its range; the text names the field
    """
    try:
        return msgspec.convert(values, schema)
    except msgspec.ValidationError as error:
        raise InvalidValue(_readable(str(error))) from None


def load_job(path: Path) -> dict[str, Any]:
    """The values in a job file."""
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except FileNotFoundError:
        raise InvalidValue(f"no job file at {path}") from None
    except tomllib.TOMLDecodeError as error:
        raise InvalidValue(f"{path} is not TOML: {error}") from None


def dump_job(job: msgspec.Struct, application: str = "") -> str:
    """The resolved job as TOML; an application's says whose it is."""
    import tomli_w

    whose = {"application": application} if application else {}
    return tomli_w.dumps({**whose, **msgspec.to_builtins(job)})


def _readable(text: str) -> str:
    """msgspec's "Expected `int` >= 1 - at `$.workers`", with the field in front."""
    what, found, where = text.partition(" - at `$.")
    return f"{where.rstrip('`')}: {what[0].lower()}{what[1:]}" if found else text
