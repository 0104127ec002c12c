"""torch's own table of optimizer settings: all that run give what torch gives alone."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.real.texts import text

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("optim_db")]  # they share runs

SCRIPT = Path(__file__).parent / "scripts" / "optim_db.py"
WHOLE = {"Adafactor", "LBFGS", "Muon"}  # they need whole matrices, or closures


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("optim_db")
    command = [sys.executable, "-W", "ignore", SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=folder)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_element_wise_setting_agrees_on_servers(found):
    agree = 0
    for name, options, results in found:
        told = results["sync"]
        if name in WHOLE or name == "SparseAdam":
            assert name in told, (name, options, told)  # refused by name
        else:
            assert isinstance(told, float), (name, options, told)
            assert told <= 1e-6, (name, options)
            agree += 1
    assert agree >= 55


def test_every_setting_agrees_under_allreduce(found):
    for name, options, results in found:
        told = results["allreduce"]
        if name == "SparseAdam":
            assert text("optim_db.sparse") in told
        else:
            assert isinstance(told, float), (name, options, told)
            assert told <= 1e-6, (name, options)
    assert {name for name, _, _ in found} >= WHOLE
