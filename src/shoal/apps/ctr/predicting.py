"""`shoal predict`: predictions of a run's model."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import msgspec

from shoal.apps.ctr.scores import TEST, figures
from shoal.apps.ctr.sources import check_readable
from shoal.apps.ctr.spec import CtrSpec
from shoal.engines.base import SPARSE, Task
from shoal.engines.cluster import run_tasks
from shoal.engines.local import LocalEngine
from shoal.engines.options import RunOptions
from shoal.errors import DataMissing, InvalidValue
from shoal.jobs.spec import converted, load_run_job
from shoal.storage.files import naming
from shoal.storage.run_folder import RunFolder, shard_files

APPLICATION = "ctr"


def spec_of(run: Path) -> CtrSpec:
    """The specification of a run.

    Raises:
        DataMissing: it is not the folder of a run of `shoal train ctr`
        DataCorrupt, UnknownFormat, InvalidValue: its job is not as that run wrote it
    """
    values, path = load_run_job(run), RunFolder(run).job
    if values.pop("application", None) != APPLICATION:
        raise DataMissing(f"{path} is of another run than one of `shoal train ctr`")
    with naming(path):
        return converted(values, CtrSpec)


def _read_only(spec: CtrSpec, run: Path) -> CtrSpec:
    """The same for reading all of the run's weights, on any number of servers."""
    replace, init = msgspec.structs.replace, str(run.resolve())
    return replace(spec, init=init, strategy="asgd", staleness=0, max_rows=0, skip_bad_lines=0)


def predict(run: Path, file: Path, out: Path, servers: int = 1) -> dict[str, Any]:
    """Write the chance of label 1 of each row of `file` to `out`, a line each; returns figures.

    A key that the run has not seen has its initial weight.

    Raises:
        DataMissing, DataCorrupt: no run of `shoal train ctr`, or a file that is not what it says
        InvalidValue: `out` cannot be written, or is `file`
    """
    spec = _read_only(spec_of(run), run)
    shard_files(run)
    check_readable(spec, str(file), labelled=False)
    if out.resolve() == file.resolve():
        raise InvalidValue(f"{out} is the file that is read; name another with --out")
    try:
        out.open("w").close()
    except OSError as error:
        raise InvalidValue(f"{out} cannot be written: {error.strerror}") from None
    with (
        tempfile.TemporaryDirectory(prefix="shoal-predict-") as path,
        LocalEngine(RunFolder.create(Path(path), "predict")) as engine,
    ):
        scores = Path(path) / TEST
        arguments = {
            "spec": msgspec.to_builtins(spec),
            "scheduler": engine.address("scheduler"),
            "file": str(file.resolve()),
            "out": str(out.resolve()),
            "scores": str(scores.resolve()),
        }
        worker = Task("worker-0", "shoal.apps.ctr.worker:run_ctr_predictor", arguments)
        asked = RunOptions(workers=1, servers=servers)
        cluster = run_tasks(engine, asked, 0.0, init=spec.init, save=False, preload=SPARSE)
        for task in (*cluster, worker):
            engine.start(task)
        import sklearn.metrics  # noqa: F401  it takes a second, as the processes' start does

        engine.join()
        return figures([scores])
