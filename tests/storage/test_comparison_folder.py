"""The folder of a comparison says what its cells are, and which runs have ended."""

import pytest

from shoal.errors import DataCorrupt, DataMissing, UnknownFormat
from shoal.storage.comparison_folder import ComparisonFolder
from shoal.storage.files import FORMAT, FORMAT_KEY
from shoal.storage.run_folder import RunFolder

CELLS = [("ssp staleness=1", "ssp-staleness=1", {"strategy": "ssp", "staleness": 1})]


def test_a_run_that_has_ended_is_found(tmp_path):
    folder = ComparisonFolder.create(tmp_path, "compare")
    begun = RunFolder.create(folder.runs("sync", 3), "run")
    assert folder.ended("sync", 3) is None
    ended = RunFolder.create(folder.runs("sync", 3), "run")
    ended.write_summary({"accuracy": 1.0})
    found = folder.ended("sync", 3)
    assert found is not None
    assert found.path == ended.path != begun.path
    assert folder.ended("sync", 1) is None


def test_cells_are_read_as_they_were_written(tmp_path):
    folder = ComparisonFolder(tmp_path)
    folder.write_cells(CELLS)
    assert folder.read_cells() == CELLS


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{", DataCorrupt),
        ('{"cells": []}', UnknownFormat),
        (f'{{"{FORMAT_KEY}": {FORMAT + 1}, "cells": []}}', UnknownFormat),
        (f'{{"{FORMAT_KEY}": {FORMAT}, "cells": [["a"]]}}', DataCorrupt),
        (f'{{"{FORMAT_KEY}": {FORMAT}}}', DataCorrupt),
    ],
)
def test_damage_is_named(tmp_path, text, error):
    (tmp_path / "cells.json").write_text(text)
    with pytest.raises(error, match=r"cells\.json"):
        ComparisonFolder(tmp_path).read_cells()


def test_no_cells_are_no_comparison(tmp_path):
    with pytest.raises(DataMissing):
        ComparisonFolder(tmp_path).read_cells()
