"""How many files of a server one exchange goes through (`tests/tools/exchange_path.py`)."""

import importlib.util
from pathlib import Path

import pytest

LIMITS = {  # files, changes of file
    "push, asp": (12, 24),
    "push through a chain of two, asp": (40, 120),
    "push, advance and pull, bsp (sync)": (40, 180),
}


@pytest.fixture(scope="module")
def paths():
    spec = importlib.util.spec_from_file_location(
        "exchange_path", Path(__file__).parent / "tools" / "exchange_path.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.measure()


@pytest.mark.parametrize("name", LIMITS)
def test_an_exchange_stays_within_its_files(paths, name):
    files, _, changes = paths[name]
    assert files <= LIMITS[name][0]
    assert changes <= LIMITS[name][1]
