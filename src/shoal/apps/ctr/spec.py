"""CtrSpec: the options of `shoal train ctr`. Importable without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from shoal.engines.options import option
from shoal.errors import DataMissing, InvalidValue, UnknownFormat
from shoal.runs.job_file import converted, dump_job, load_run_job
from shoal.runs.options import RunOptions, check_backup, check_staleness, need_servers
from shoal.storage.files import naming
from shoal.storage.run_folder import RunFolder
from shoal.tables.consistency import Consistency, asp, bsp, ssp

KEY_RULE = 2  # raise it when a value gets another key: runs of another rule are refused
APPLICATION, RULE = "ctr", "key_rule"  # the application, and the name of the rule, in a job
TABLES = ("csv", "parquet")
Format = Literal["auto", "libsvm", "criteo", "dummy", "csv", "parquet"]


class CtrSpec(RunOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Field names are flags with `-` for `_`."""

    # fmt: off
    train: Annotated[str, option("Data", "training file, folder of files, or pattern such as 'logs/*.csv.gz'; a sample made from the seed if not given")] = ""
    test: Annotated[str, option("Data", "test file, folder or pattern")] = ""
    valid: Annotated[str, option("Data", "validation file, folder or pattern, scored after each epoch: training stops when the model has become no better (log loss); asgd")] = ""
    format: Annotated[Format, option("Data", "format of the files: libsvm (label i:x ...), dummy (label i ...), criteo (40 tab-separated fields), csv (with a header) or parquet")] = "auto"
    label: Annotated[str, option("Data", "column with the label, \"label\" if not given; csv, parquet")] = ""
    positive: Annotated[str, option("Data", "label of a click, where labels are not 1, 0 or -1 (of libsvm and dummy: nor 1 and 2)")] = ""
    negative: Annotated[str, option("Data", "label of all other rows; all labels but that of --positive if not given")] = ""
    categorical: Annotated[str, option("Data", "columns of categories, separated by commas; with neither these nor numeric ones, all columns by their types; csv, parquet")] = ""
    numeric: Annotated[str, option("Data", "columns of numbers, separated by commas; csv, parquet")] = ""
    hash_bits: Annotated[int, option("Data", "bits that keys are hashed to; 0: keys keep their 64 bits", ge=0, le=63)] = 0
    skip_bad_lines: Annotated[int, option("Data", "malformed lines that a worker counts and leaves out before it stops", ge=0)] = 0
    shuffle: Annotated[int, option("Data", "rows of a worker from which its next ones are drawn at random; 0: the order of the file", ge=0, le=1 << 30)] = 100_000
    model: Annotated[Literal["lr", "fm", "deepfm"], option("Model", "logistic regression, factorisation machine, or DeepFM")] = "lr"
    factors: Annotated[int, option("Model", "elements of a key's factor; fm, deepfm", ge=1)] = 8
    fields: Annotated[int, option("Model", "fields that the dense layers see; 0: as many as the first rows have; deepfm", ge=0)] = 0
    init: Annotated[str, option("Model", "folder of a run whose weights are the initial ones, on any number of servers")] = ""
    max_rows: Annotated[int, option("Model", "rows of a table in the servers' memory, after which rows are evicted; 0: no bound", ge=0, le=1 << 40)] = 0
    evict: Annotated[Literal["lru", "lfu"], option("Model", "rows to evict: the least recently or the least frequently used")] = "lru"
    key_lists: Annotated[Literal["sent", "cached"], option("Model", "cached: servers keep the lists of keys of batches, which later epochs name by a digest")] = "sent"
    codec: Annotated[str, option("Model", "codec of the gradients of factors, row by row: fp16, bf16, int:8, qsgd:8, ...; fm, deepfm")] = ""
    server_codec: Annotated[str, option("Model", "codec of the factors that workers pull; fm, deepfm")] = ""
    strategy: Annotated[Literal["asgd", "sync", "ssp"], option("Training", "workers wait for nobody (asgd), for all in each step (sync), or for the slowest (ssp)")] = "asgd"
    staleness: Annotated[int, option("Training", "steps that a worker may be ahead of the slowest one; ssp", ge=0)] = 0
    epochs: Annotated[int, option("Training", "passes over the data", ge=1)] = 1
    patience: Annotated[int, option("Training", "epochs without a better log loss of --valid, after which training stops", ge=1)] = 1
    batch_size: Annotated[int, option("Training", "rows of a worker in a step", ge=1)] = 64
    l1: Annotated[float, option("Training", "L1 penalty of FTRL, which makes weights exactly 0", ge=0.0)] = 1.0
    l2: Annotated[float, option("Training", "L2 penalty of FTRL", ge=0.0)] = 0.0
    lr: Annotated[float, option("Training", "learning rate of the linear weights (FTRL's alpha)", gt=0.0)] = 0.2
    beta: Annotated[float, option("Training", "FTRL's beta", ge=0.0)] = 1.0
    factor_lr: Annotated[float, option("Training", "learning rate of the factors (AdaGrad); fm, deepfm", gt=0.0)] = 0.02
    dense_lr: Annotated[float, option("Training", "learning rate of the dense layers (Adam); deepfm", gt=0.0)] = 0.001
    seed: Annotated[int, option("Training", "seed of factors, layers and the order of rows", ge=0)] = 0
    # fmt: on

    def __post_init__(self) -> None:
        super().__post_init__()
        need_servers(self.servers)
        check_backup(self)
        check_staleness(self.staleness, self.strategy)
        if (self.codec or self.server_codec) and self.model == "lr":
            raise InvalidValue(
                "--codec and --server-codec are for factors, and model 'lr' has none"
            )
        if self.negative and self.negative == self.positive:
            raise InvalidValue(f"--positive and --negative name the same label, {self.negative!r}")
        if self.negative and not self.positive:
            raise InvalidValue("--negative needs --positive, the label of a click")
        if self.patience > 1 and not self.valid:
            raise InvalidValue(
                "--patience counts epochs without a better score of --valid: give it"
            )
        if self.valid and self.strategy != "asgd":
            # workers whose batches end first would wait for the score, and the others for their clock
            raise InvalidValue(f"--valid needs strategy 'asgd', not {self.strategy!r}")
        if self.valid and self.on_worker_loss != "stop":
            raise InvalidValue(
                "--valid is scored while all workers wait for it: leave out --on-worker-loss "
                f"{self.on_worker_loss}"
            )
        if self.valid and self.epochs == 1:
            raise InvalidValue(
                "--valid is scored after each epoch, to stop in time: give --epochs N, and training "
                "has N epochs at most"
            )

    @staticmethod
    def columns(names: str) -> list[str]:
        """Return the names of columns that an option holds."""
        return [each.strip() for each in names.split(",") if each.strip()]

    @property
    def consistency(self) -> Consistency:
        """The consistency of the tables."""
        kinds = {"asgd": asp(), "sync": bsp(), "ssp": ssp(self.staleness)}
        return kinds[self.strategy]


def spec_of(run: Path) -> CtrSpec:
    """Load the specification of a run.

    Raises:
        DataMissing: `run` is not the folder of a run of `shoal train ctr`
        UnknownFormat: its keys follow another rule, or another version of Shoal has written it
        DataCorrupt, InvalidValue: its job is not as that run wrote it
    """
    values, path = load_run_job(run), RunFolder(run).job
    if values.pop("application", None) != APPLICATION:
        raise DataMissing(f"{path} is of another run than one of `shoal train ctr`")
    rule = values.pop(RULE, 1)
    with naming(path):
        spec = converted(values, CtrSpec)
    if spec.format in TABLES and rule != KEY_RULE:
        raise UnknownFormat(
            f"{path}: the run's keys follow rule {rule}, and this version of Shoal has rule "
            f"{KEY_RULE}, which gives some values other keys: train the model again, or use the "
            "version that wrote it"
        )
    return spec


def is_of_ctr(run: Path) -> bool:
    """Return whether a run's job is one of `shoal train ctr`.

    Raises:
        DataMissing, DataCorrupt, UnknownFormat: as in `load_run_job`
    """
    return load_run_job(run).get("application") == APPLICATION


def job_text(spec: CtrSpec) -> str:
    """Return the text of a run's job, which `spec_of` reads."""
    return f"{RULE} = {KEY_RULE}\n{dump_job(spec, APPLICATION)}"
