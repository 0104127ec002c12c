"""CtrSpec: what `shoal train ctr` is asked. Importable without torch."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from shoal.errors import InvalidValue
from shoal.jobs.spec import check_replicas
from shoal.tables.spec import Consistency, asp, bsp, ssp

Format = Literal["auto", "libsvm", "criteo", "dummy"]


class CtrSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Field names are flags with `-` for `_`."""

    # fmt: off
    train: Annotated[str, Meta(description="the training file; a sample that is made from the seed where there is none")] = ""
    test: Annotated[str, Meta(description="the test file")] = ""
    model: Annotated[Literal["lr", "fm", "deepfm"], Meta(description="logistic regression, factorisation machine, or DeepFM")] = "lr"
    format: Annotated[Format, Meta(description="of the files: libsvm (label i:x ...), dummy (label i ...), criteo (40 tab-separated fields)")] = "auto"
    hash_bits: Annotated[int, Meta(ge=0, le=63, description="hash keys to so many bits; 0 keeps their 64")] = 0
    l1: Annotated[float, Meta(ge=0.0, description="FTRL's L1 penalty: makes weights exactly 0")] = 0.0
    l2: Annotated[float, Meta(ge=0.0, description="FTRL's L2 penalty")] = 0.0
    lr: Annotated[float, Meta(gt=0.0, description="FTRL's rate of the linear weights")] = 0.1
    beta: Annotated[float, Meta(ge=0.0, description="FTRL's beta")] = 1.0
    factors: Annotated[int, Meta(ge=1, description="fm, deepfm: elements of a key's factor")] = 8
    fields: Annotated[int, Meta(ge=0, description="deepfm: fields that its layers see; 0: as many as the first rows have")] = 0
    factor_lr: Annotated[float, Meta(gt=0.0, description="fm, deepfm: AdaGrad's rate of the factors")] = 0.02
    dense_lr: Annotated[float, Meta(gt=0.0, description="deepfm: Adam's rate of the dense layers")] = 0.001
    init: Annotated[str, Meta(description="the folder of a run whose weights are gone on with, on any number of servers")] = ""
    strategy: Annotated[Literal["asgd", "sync", "ssp"], Meta(description="who waits for whom: nobody, everybody each step, or for the slowest worker")] = "asgd"
    staleness: Annotated[int, Meta(ge=0, description="ssp: steps that a worker may be ahead")] = 0
    max_rows: Annotated[int, Meta(ge=0, le=1 << 40, description="rows of a table in the servers' memory; what is used least makes room. 0: no bound")] = 0
    evict: Annotated[Literal["lru", "lfu"], Meta(description="which rows make room: used least recently, or least frequently")] = "lru"
    epochs: Annotated[int, Meta(ge=1, description="passes over the data")] = 1
    batch_size: Annotated[int, Meta(ge=1, description="rows a worker and step")] = 256
    workers: Annotated[int, Meta(ge=1, le=1024, description="worker processes")] = 2
    servers: Annotated[int, Meta(ge=1, le=1024, description="server processes")] = 1
    replicas: Annotated[int, Meta(ge=1, le=1024, description="servers that have a copy of each row: one more than may die")] = 1
    checkpoint_every: Annotated[int, Meta(ge=0, description="steps from one checkpoint to the next; 0 for none")] = 0
    checkpoint_every_s: Annotated[float, Meta(ge=0, description="... or seconds")] = 0.0
    keep_checkpoints: Annotated[int, Meta(ge=0, description="... of which so many are kept, the last ones; 0 for all")] = 0
    resume: Annotated[str, Meta(description="go on with the run in this folder, from its last checkpoint")] = ""
    resume_at: Annotated[int, Meta(ge=-1, description="... or from that of this many steps")] = -1
    seed: Annotated[int, Meta(ge=0, description="of factors, layers and the order of rows")] = 0
    skip_bad_lines: Annotated[int, Meta(ge=0, description="lines that may be malformed, a worker; they are counted and left out")] = 0
    sync_timeout_ms: Annotated[int, Meta(ge=1, description="after this a wait asks for a resend, after twice this it fails")] = 10000
    transport: Annotated[Literal["unix", "tcp"], Meta(description="between the processes of this machine")] = "unix"
    title: Annotated[str, Meta(max_length=100, description="names the run's folder")] = ""
    out: Annotated[str, Meta(description="where run folders go")] = "shoal-runs"
    # fmt: on

    def __post_init__(self) -> None:
        check_replicas(self.replicas, self.servers)
        if self.staleness and self.strategy != "ssp":
            raise InvalidValue(f"staleness belongs to the ssp strategy, not to {self.strategy!r}")

    @property
    def clocked(self) -> bool:
        """Whether workers tell servers when a step is over."""
        return self.strategy != "asgd" or self.saves

    @property
    def saves(self) -> bool:
        """Whether there are to be checkpoints."""
        return self.checkpoint_every > 0 or self.checkpoint_every_s > 0

    @property
    def consistency(self) -> Consistency:
        """Of the tables."""
        kinds = {"asgd": asp(), "sync": bsp(), "ssp": ssp(self.staleness)}
        return kinds[self.strategy]
