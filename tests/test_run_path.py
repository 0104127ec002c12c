"""How many files are given the options of a run (`tests/tools/run_path.py`)."""

import pytest

from tests.tools.run_path import measure

GIVEN_MOST, HAND_ON_MOST = 14, 6


@pytest.mark.real
def test_the_options_of_a_run_stay_within_their_files():
    chain, files = measure()
    assert chain[0] == "cli/training.py"
    assert chain[-1] == "apps/train/worker.py"
    assert len(chain) <= HAND_ON_MOST
    assert len(files) <= GIVEN_MOST
