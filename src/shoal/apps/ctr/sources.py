"""Sources of rows: a file, several files or a folder, in one of the formats; or rows in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from shoal.apps.ctr.columns.doubts import codes_among_numbers
from shoal.apps.ctr.columns.files import SUFFIXES
from shoal.apps.ctr.columns.frames import batch_of_table, is_table
from shoal.apps.ctr.columns.reader import TableReader
from shoal.apps.ctr.columns.values import ColumnKeys
from shoal.apps.ctr.formats import guess, has_labels, text_format
from shoal.apps.ctr.labels import classes_of, with_classes
from shoal.apps.ctr.readers import Batch, LineOptions, Parser, Reader, hashed
from shoal.apps.ctr.shuffling import joined
from shoal.apps.ctr.spec import TABLES, CtrSpec, Format
from shoal.data.readers import FLOAT32_MAX
from shoal.data.streams import files_of, lines, opened
from shoal.errors import DataCorrupt, InvalidValue

TEXTS = ("libsvm", "dummy")
LIKE = (TEXTS, TABLES, ("criteo",))  # groups of formats in which the same rows have the same keys
SKIP = " (--skip-bad-lines N leaves out up to N such lines)"
UNLABELLED = " (--unlabelled says that lines have no label)"


class Source:
    """One worker's rows of all files of a path, one file after the other.

    Args:
        spec: the options of the run, among them the format.
        path: a file, a folder (its files by name, except those that begin with . or _), or a
            pattern with *.
        share: the share of the worker: of every `share[1]` batches of a file, the one numbered
            `share[0]`.
        labelled: whether lines begin with a label. A table has the column of the label or not.
        advice: the advice at the end of the error of a malformed line.

    Raises:
        DataMissing: there is no such file.
        DataCorrupt: as in `Reader` and `TableReader`.
    """

    def __init__(
        self,
        spec: CtrSpec,
        path: str,
        share: tuple[int, int] = (0, 1),
        labelled: bool = True,
        advice: str = SKIP,
    ) -> None:
        self.files = files_of(path)
        self.kind: Format = format_of(self.files[0], spec)
        if spec.format == "auto" and self.kind in TEXTS:
            spec = with_classes(spec, self.files[0])
        self._spec = spec
        self._share = share
        self._lines_labelled = labelled
        self._advice = "" if spec.skip_bad_lines else advice
        self._readers: list[Reader | TableReader] = []
        self.keys: dict[str, ColumnKeys] = {}  # by column of categories of a table

    @property
    def skipped(self) -> int:
        """The number of malformed lines that were left out."""
        return sum(each.skipped for each in self._readers)

    def __iter__(self) -> Iterator[Batch]:
        for file in self.files:
            reader = self._open(file, self.keys)
            self._readers.append(reader)
            yield from reader

    def first(self) -> Batch:
        """Return the first batch of rows."""
        return next(iter(self._open(self.files[0])))

    def described(self) -> CtrSpec:
        """Return the specification with the format, labels and columns of the training file.

        The labels are those of lines, and the columns are those of a table.
        """
        if self.kind in TEXTS:
            self._spec = with_classes(self._spec, self.files[0])
        reader = self._open(self.files[0])
        found = msgspec.structs.replace(self._spec, format=self.kind)
        if isinstance(reader, TableReader):
            columns = {
                "categorical": ",".join(reader.columns.categorical),
                "numeric": ",".join(reader.columns.numeric),
            }
            found = msgspec.structs.replace(found, label=reader.columns.label, **columns)
        return found

    def doubts(self) -> list[str]:
        """Return warnings about the columns that were chosen by their types in the first file."""
        reader = self._open(self.files[0])
        if not isinstance(reader, TableReader) or not reader.columns.chosen:
            return []
        first = next(reader.tables(), None)
        return [] if first is None else codes_among_numbers(reader.columns, first)

    @property
    def labelled(self) -> bool:
        """Whether the rows have labels."""
        reader = self._open(self.files[0])
        return reader.columns.labelled if isinstance(reader, TableReader) else self._lines_labelled

    def _open(self, file: Path, keys: dict[str, ColumnKeys] | None = None) -> Reader | TableReader:
        spec, skip = self._spec, self._spec.skip_bad_lines - self.skipped
        if self.kind in TABLES:
            left = msgspec.structs.replace(spec, skip_bad_lines=max(skip, 0))
            return TableReader(file, self.kind, left, self._share, self._advice, keys)
        classes = classes_of(msgspec.structs.replace(spec, format=self.kind))
        options = LineOptions(spec.hash_bits, self._lines_labelled, classes)
        skip = max(skip, 0)
        return Reader(file, spec.batch_size, self.kind, options, self._share, skip, self._advice)


def format_of(path: Path, spec: CtrSpec) -> Format:
    """Return the format of a file: the run's, or that of the file's name, or of its first line."""
    if spec.format != "auto":
        return spec.format
    return named_format(path) or guess(path, spec.skip_bad_lines)


def named_format(path: Path) -> Format | None:
    """Return the format of a table by the name of its file; None for other names."""
    return next((SUFFIXES[each] for each in reversed(path.suffixes) if each in SUFFIXES), None)


def to_predict(spec: CtrSpec, path: str, form: Format, unlabelled: bool) -> Source:
    """Return the source of the rows of a path for the model of a run, with labels or without.

    Args:
        spec: the options of the run.
        form: the format of the rows; "auto" is the format that the file shows, else the run's.
        unlabelled: whether lines do not begin with a label; if False, it is found out for all
            formats but dummy.

    Raises:
        InvalidValue: keys of that format differ from those that the run was trained on.
        DataMissing, DataCorrupt: as in `Source`.
    """
    like = next(each for each in LIKE if spec.format in each)
    file = files_of(path)[0]
    if form == "auto":
        said = named_format(file) if like is TABLES else text_format(file)
        form = said or spec.format
    if form not in like:
        raise InvalidValue(
            f"{file}: the run was trained on {spec.format}, and keys of {form} are others: it "
            f"predicts rows of {' and '.join(like)}"
        )
    labelled = form in TABLES or not unlabelled
    if labelled and form not in TABLES:
        with opened(file) as text:
            labelled = has_labels((line for _, line in lines(file, text)), form)
    advice = UNLABELLED if labelled and form == "dummy" else ""
    spec = msgspec.structs.replace(spec, format=form)
    return Source(spec, path, labelled=labelled, advice=advice)


def check_alike(spec: CtrSpec, path: str) -> None:
    """Refuse a file whose name is that of a table of another format than the training file's.

    spec: the options of the run, with the format of the training file

    Raises:
        DataMissing: as in `Source`
        DataCorrupt: the format differs
    """
    file = files_of(path)[0]
    named = named_format(files_of(spec.train)[0]) if spec.train else None
    if (said := named_format(file)) not in (None, spec.format, named):
        raise DataCorrupt(f"{file}: it is {said}, and the run's format is {spec.format}")


def check_trainable(spec: CtrSpec, path: str) -> None:
    """Read the first rows of a path, which must have labels.

    Raises:
        DataMissing, DataCorrupt: as in `Source`, or the rows have no labels.
    """
    source = Source(spec, path)
    if not source.labelled:
        name = spec.label or "label"
        raise DataCorrupt(
            f"{source.files[0]}: no column {name!r} (--label names the label's column)"
        )
    source.first()


def batch_of(spec: CtrSpec, rows: object, labelled: bool | None = None) -> Batch:
    """Return rows in memory as a batch for the model of a run.

    Args:
        spec: the options of the run.
        rows: the rows, as `Scorer.predict` takes them.
        labelled: whether lines begin with a label; None: find out.

    Raises:
        DataCorrupt, InvalidValue: as in `Scorer.predict`.
    """
    listed = rows if isinstance(rows, Sequence) and not isinstance(rows, str) else ()
    if listed and all(isinstance(row, str) for row in listed):
        return _of_lines(spec, listed, labelled)
    if hasattr(rows, "tocsr"):
        return _of_matrix(spec, rows)
    if is_table(rows):
        return _of_table(spec, rows)
    raise InvalidValue(
        f"rows are a list of lines, a sparse matrix of scipy or a table, not {type(rows).__name__}"
    )


def _of_lines(spec: CtrSpec, rows: Sequence[str], labelled: bool | None) -> Batch:
    if spec.format in TABLES:
        raise InvalidValue(f"the run was trained on {spec.format}: give it a table, not lines")
    block = "".join(row.removesuffix("\n") + "\n" for row in rows).encode()
    if labelled is None:
        labelled = has_labels(block.splitlines(), spec.format)
    options = LineOptions(spec.hash_bits, labelled, classes_of(spec))
    parser = Parser("rows", len(rows), spec.format, options)
    batch = joined(list(parser.batches([block])))
    if len(batch) != len(rows):
        raise InvalidValue(f"{len(rows)} lines have {len(batch)} rows: each has to be a row")
    return batch


def _of_matrix(spec: CtrSpec, rows: Any) -> Batch:
    if spec.format not in TEXTS:
        raise InvalidValue(f"the run was trained on {spec.format}, whose keys are no columns")
    rows = rows.tocsr()
    finite = rows.dtype.kind in "biuf" and bool((np.abs(rows.data) <= FLOAT32_MAX).all())
    if not finite or not rows.shape[0]:
        raise InvalidValue("a sparse matrix has to have rows, and finite values of float32's range")
    keys = rows.indices.astype(np.int64).view(np.uint64)
    offsets = rows.indptr.astype(np.int64)[:-1]
    fields = np.arange(len(keys)) - np.repeat(offsets, np.diff(rows.indptr))
    keys = hashed(keys, spec.hash_bits) if spec.hash_bits else keys
    labels = np.zeros(len(offsets), np.float32)
    return Batch(labels, offsets, keys, rows.data.astype(np.float32), fields)


def _of_table(spec: CtrSpec, rows: Any) -> Batch:
    if spec.format not in TABLES:
        raise InvalidValue(f"the run was trained on {spec.format}: give it lines, not a table")
    return batch_of_table(spec, rows)
