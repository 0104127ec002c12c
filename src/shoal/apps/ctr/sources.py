"""Sources of rows: a file, several or all of a folder, in one of the formats."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from shoal.apps.ctr.columns import SUFFIXES, TableReader
from shoal.apps.ctr.readers import Batch, Reader, guess
from shoal.apps.ctr.spec import CtrSpec, Format
from shoal.errors import DataCorrupt, DataMissing

TABLES = ("csv", "parquet")
GLOB = "*?["


class Source:
    """One worker's rows of all files of a path, one file after the other.

    Args:
        spec: how they are written.
        path: a file, a folder (all of its files, by name, but hidden ones), or a pattern with *.
        share: of every `share[1]` batches of a file, the one numbered `share[0]`.

    Raises:
        DataMissing: there is no such file.
        DataCorrupt: as `Reader` and `TableReader`.
    """

    def __init__(self, spec: CtrSpec, path: str, share: tuple[int, int] = (0, 1)) -> None:
        self.files = files_of(path)
        self.kind: Format = format_of(self.files[0], spec)
        self._spec = spec
        self._share = share
        self._readers: list[Reader | TableReader] = []

    @property
    def skipped(self) -> int:
        """Malformed lines that were left out."""
        return sum(each.skipped for each in self._readers)

    def __iter__(self) -> Iterator[Batch]:
        for file in self.files:
            reader = self._open(file)
            self._readers.append(reader)
            yield from reader

    def first(self) -> Batch:
        """The first rows."""
        return next(iter(self._open(self.files[0])))

    def described(self) -> CtrSpec:
        """The specification with the format, and the columns of a table, that were found."""
        reader = self._open(self.files[0])
        found = msgspec.structs.replace(self._spec, format=self.kind)
        if isinstance(reader, TableReader):
            columns = {
                "categorical": ",".join(reader.categorical),
                "numeric": ",".join(reader.numeric),
            }
            found = msgspec.structs.replace(found, label=reader.label, **columns)
        return found

    @property
    def labelled(self) -> bool:
        """Whether the rows have labels."""
        reader = self._open(self.files[0])
        return not isinstance(reader, TableReader) or reader.labelled

    def _open(self, file: Path) -> Reader | TableReader:
        spec, skip = self._spec, self._spec.skip_bad_lines - self.skipped
        if self.kind in TABLES:
            left = msgspec.structs.replace(spec, skip_bad_lines=max(skip, 0))
            return TableReader(file, self.kind, left, self._share)
        return Reader(file, spec.batch_size, self.kind, spec.hash_bits, self._share, max(skip, 0))


def files_of(path: str) -> list[Path]:
    """The files of a path: itself, those of a folder, or those that a pattern matches.

    Raises:
        DataMissing: a folder without files, or a pattern that matches none.
    """
    found = [Path(path)]
    if found[0].is_dir():
        found = sorted(each for each in found[0].iterdir() if each.is_file())
        found = [each for each in found if not each.name.startswith((".", "_"))]
    elif not found[0].exists():
        parts = found[0].parts
        at = next((n for n, part in enumerate(parts) if any(c in part for c in GLOB)), None)
        if at is not None:
            matched = Path(*parts[:at]).glob("/".join(parts[at:]))
            found = sorted(each for each in matched if each.is_file())
    if not found:
        raise DataMissing(f"{path}: no files there")
    return found


def format_of(path: Path, spec: CtrSpec) -> Format:
    """The format of a file: the run's, or by its name, or by its first line."""
    if spec.format != "auto":
        return spec.format
    for suffix in reversed(path.suffixes):
        if suffix in SUFFIXES:
            return SUFFIXES[suffix]
    return guess(path, spec.skip_bad_lines)


def check_readable(spec: CtrSpec, path: str, labelled: bool = True) -> None:
    """Read the first rows of a path.

    Args:
        labelled: whether the rows must have labels.

    Raises:
        DataMissing, DataCorrupt: as `Source`, or rows without labels.
    """
    source = Source(spec, path)
    if labelled and not source.labelled:
        name = spec.label or "label"
        raise DataCorrupt(
            f"{source.files[0]}: no column {name!r} (--label names the label's column)"
        )
    source.first()
