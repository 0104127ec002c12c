"""Files of every kind, damaged: each reads as it was written or is refused by name.

`python tests/tools/damaged_files.py --files 10000` does the same with more files.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = 480  # fifteen of each kind


pytestmark = pytest.mark.xdist_group("damaged_files")  # they share a report


@pytest.fixture(scope="module")
def report():
    ended = subprocess.run(
        [sys.executable, "tests/tools/damaged_files.py", "--files", str(FILES), "--json"],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert ended.stdout, ended.stderr
    return json.loads(ended.stdout)


def test_no_damaged_file_reads_wrong_or_ends_in_another_error(report):
    assert report["files"] == FILES
    assert report["found"] == []


def test_every_kind_is_damaged_and_most_damage_is_refused(report):
    refused = {kind: counted.get("refused", 0) for kind, counted in report["by_kind"].items()}
    assert min(counted["files"] for counted in report["by_kind"].values()) >= 15
    for kind in ("final shards", "checkpoint", "worker's state", "journal"):
        assert refused[kind] > 6, kind
