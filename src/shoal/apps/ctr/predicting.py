"""Predictions of a run's model: `shoal.ctr.Scorer` and `shoal predict`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np
import torch

from shoal.apps.ctr.logistic import BIAS, logits_of
from shoal.apps.ctr.models import LAYERS, dense_layers, interactions
from shoal.apps.ctr.readers import Batch
from shoal.apps.ctr.scores import METRICS, Scores, figures_of
from shoal.apps.ctr.sources import batch_of, to_predict
from shoal.apps.ctr.spec import Format, spec_of
from shoal.apps.weights import RunningWeights, weights_of
from shoal.client.row_cache import MAX_ROWS
from shoal.errors import InvalidValue, UsageError
from shoal.extras import require
from shoal.pytorch.flat_parameters import FlatParams
from shoal.storage.run_folder import RunFolder

PREDICTED_ROWS = 1024  # rows that are predicted at once


class Scorer:
    """Predicts clicks with the model of a run of `shoal train ctr`, under way or ended.

    For a run under way it follows the model: rows are pulled from the run's servers, as a worker
    group of its own for which no worker waits, and each is used for `max_age_s`. That run ends
    when its workers have finished and the scorer is closed. For a run that has ended it has the
    tables in the memory of this process. One thread at a time may use a scorer; use it in a `with`
    block, or close it.

    Args:
        run: the run's folder.
        max_age_s: the seconds for which a row of a run under way is used.
        max_rows: the number of rows that are kept of each table of a run under way.

    Attributes:
        spec: the options of the run.

    Raises:
        DataMissing: there is no such run, or it has ended without a model, or was killed.
        InvalidValue: `max_age_s` or `max_rows` out of range.
        DataCorrupt, UnknownFormat: a file of the run is not as it was written.
        JoinTimeout: the run has not begun in time.

    Example:
        >>> with shoal.ctr.Scorer("shoal-runs/ctr-lr-...") as scorer:  # doctest: +SKIP
        ...     scorer.predict(["3:1 7:0.5", "7:1"])
        array([0.0953, 0.2412])
    """

    def __init__(
        self, run: str | Path, *, max_age_s: float = 1.0, max_rows: int = MAX_ROWS
    ) -> None:
        folder = RunFolder(Path(run))
        self.spec = spec_of(folder.path)
        self._weights = weights_of(folder.path, max_age_s, max_rows)
        self._deep = dense_layers(self.spec) if self.spec.model == "deepfm" else None
        self._flat = FlatParams(self._deep.parameters()) if self._deep is not None else None
        self._closed = False

    @property
    def training(self) -> bool:
        """Whether the run's workers still train."""
        weights = self._weights
        return isinstance(weights, RunningWeights) and "" in weights.client.groups

    def predict(self, rows: object, *, labelled: bool | None = None) -> np.ndarray:
        """Return the chance of a click for each row, (n,) float64.

        Args:
            rows: a list of lines in the run's format, each with a label before its features or
                not; a sparse matrix of scipy, whose columns are keys (libsvm, dummy); or, of a
                run on CSV or Parquet, a table with its columns: a DataFrame of pandas or polars, a
                pyarrow Table or a dictionary of lists.
            labelled: whether lines begin with a label; None: find out. Lines of dummy then count as
                labelled.

        Raises:
            DataCorrupt: a malformed line, a column that is not there, or no row.
            InvalidValue: rows of another kind, or of another format than the run's.
            DataMissing: the run that was under way was ended.
            PeerError: servers of the run under way do not answer.
            UsageError: the scorer is closed.
        """
        return chances(self.score(batch_of(self.spec, rows, labelled)))

    def score(self, batch: Batch) -> np.ndarray:
        """Return the logits of a batch, (n,) float32."""
        if self._closed:
            raise UsageError("this scorer is closed; make another one")
        weights = self._weights
        linear = weights.rows("linear", batch.keys)[:, 0]
        bias = float(weights.rows("bias", BIAS)[0, 0])
        logits = np.empty(len(batch), np.float32)
        each = np.arange(len(batch.keys), dtype=np.uint64)
        logits_of(linear, bias, each, batch.values, batch.offsets, logits)
        if self.spec.model == "lr":
            return logits
        if self._flat is not None:
            self._flat.values["float32"].copy_(self._layers(self._flat.values["float32"].shape))
        factors = torch.from_numpy(weights.rows("factors", batch.keys))
        values = torch.from_numpy(batch.values).unsqueeze(1)
        with torch.no_grad():
            more = interactions(batch, factors * values, self._deep, self.spec.fields)
        logits += more.numpy()
        return logits

    def _layers(self, shape: torch.Size) -> torch.Tensor:
        layers = self._weights.dense(LAYERS)
        if layers.shape != shape:
            raise InvalidValue("the run has dense layers for other --fields or --factors")
        return layers

    def close(self) -> None:
        """Leave the run; further calls do nothing."""
        self._closed = True
        self._weights.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


def chances(logits: np.ndarray) -> np.ndarray:
    """Return σ(logits) as float64."""
    found: np.ndarray = torch.from_numpy(logits).double().sigmoid().numpy()
    return found


def predict(
    run: Path,
    file: Path,
    out: Path,
    form: Format = "auto",
    unlabelled: bool = False,
    done: Callable[[int], object] = lambda rows: None,
) -> dict[str, Any]:
    """Write the chance of a click for each row of `file` to `out`, a line each; return the figures.

    A key that the run has not seen has its initial weight.

    form:        the format of the file, as `to_predict` takes it
    unlabelled:  whether lines do not begin with a label
    done:        the function that is called with the number of rows of each finished batch

    Raises:
        DataMissing, DataCorrupt: `run` is no run of `shoal train ctr`, or a file is missing or
            malformed
        InvalidValue: `out` cannot be written, or is `file`; or a format that is not like the run's
    """
    spec = msgspec.structs.replace(spec_of(run), batch_size=PREDICTED_ROWS, skip_bad_lines=0)
    source = to_predict(spec, str(file), form, unlabelled)
    source.first()
    if source.labelled:
        require("sklearn", METRICS)  # before anything is written
    if out.resolve() == file.resolve():
        raise InvalidValue(f"{out} is the file that is read; name another with --out")
    seen = Scores()
    with Scorer(run) as scorer:
        try:
            lines = out.open("w")
        except OSError as error:
            raise InvalidValue(f"{out} cannot be written: {error.strerror}") from None
        with lines:
            for batch in source:
                logits = scorer.score(batch)
                if source.labelled:
                    seen.add(logits, batch.labels)
                lines.writelines(f"{chance:.6g}\n" for chance in chances(logits).tolist())
                done(len(batch))
    return figures_of(*seen.all())
