"""Scripts under `shoal run` that register access methods: when do servers import them?"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.real.texts import text

pytestmark = pytest.mark.real

SCRIPT = str(Path(__file__).parent / "scripts" / "halving.py")


@pytest.fixture
def run(tmp_path):
    """Runs the script with the words after it; what came of it, and the logs of its servers."""

    def ran(*words, options=()):
        command = [sys.executable, "-m", "shoal", "run", "--workers", "1", *options, SCRIPT]
        done = subprocess.run(
            [*command, *words], cwd=tmp_path, capture_output=True, text=True, timeout=60,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        logs = [each.read_text() for each in tmp_path.glob("shoal-runs/*/logs/server-*.log")]
        return done, "".join(logs)

    return ran


def test_servers_import_the_script_without_running_what_is_guarded(run):
    done, logs = run("--lr", "3")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[[4.0, 4.0]]\n"
    assert "loaded as shoal_script_halving" in logs
    assert "['--lr', '3']" in logs


def test_servers_do_not_import_a_script_whose_tables_they_know(run):
    done, logs = run("known")
    assert done.returncode == 0, done.stderr
    assert "loaded as" not in logs


def test_a_script_without_a_guard_is_refused_and_starts_no_cluster(run, tmp_path):
    done, _ = run("unguarded")
    assert done.returncode != 0
    assert text("own_code.no_guard") in done.stderr
    assert text("own_code.guard_it") in done.stderr
    assert len(list(tmp_path.glob("shoal-runs/*"))) == 1


def test_importing_a_script_without_a_guard_starts_nothing(run, tmp_path):
    done, _ = run("unguarded", options=["--import", SCRIPT])
    assert done.returncode == 2
    assert text("own_code.no_guard") in done.stderr
    assert not (tmp_path / "shoal-runs").exists()


def test_what_only_workers_register_is_unknown_to_servers(run):
    done, _ = run("late")
    assert done.returncode != 0
    assert text("own_code.unknown_method") in done.stderr
