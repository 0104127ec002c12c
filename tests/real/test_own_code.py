"""Scripts under `shoal run` that register access methods: when do servers import them?"""

import os
import subprocess
import sys
from textwrap import dedent

import pytest

pytestmark = pytest.mark.real

METHOD = """
    import sys
    import torch, shoal

    print("loaded as", __name__, sys.argv[1:], file=sys.stderr)

    def halving(row, state, update, factor=0.5):
        for j in range(row.size):
            row[j] = factor * (row[j] + update[j])

    {register}

    def main():
        context = shoal.init()
        access = shoal.tables.Access("{name}")
        spec = shoal.TableSpec("t", row_shape=(2,), kind="sparse", access=access)
        context.client.create_table(spec)
        keys = torch.tensor([5], dtype=torch.uint64)
        print(context.client.push_pull("t", torch.full((1, 2), 8.0), keys).wait().tolist())

    {end}
"""
REGISTER = 'shoal.access_method("halving")(halving)'
GUARDED = """if __name__ == "__main__":
        main()"""


@pytest.fixture
def run(tmp_path):
    """Runs a script with the words after it; what came of it, and the logs of its servers."""

    def ran(register=REGISTER, name="halving", end=GUARDED, words=(), options=()):
        script = tmp_path / "script.py"
        script.write_text(dedent(METHOD.format(register=register, name=name, end=end)))
        command = [sys.executable, "-m", "shoal", "run", "--workers", "1", *options, str(script)]
        done = subprocess.run(
            [*command, *words], cwd=tmp_path, capture_output=True, text=True, timeout=60,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        logs = [each.read_text() for each in tmp_path.glob("shoal-runs/*/logs/server-*.log")]
        return done, "".join(logs)

    return ran


def test_servers_import_the_script_without_running_what_is_guarded(run):
    done, logs = run(words=["--lr", "3"])
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[[4.0, 4.0]]\n"
    assert "loaded as shoal_script_script" in logs
    assert "['--lr', '3']" in logs


def test_servers_do_not_import_a_script_whose_tables_they_know(run):
    done, logs = run(register="", name="sum")
    assert done.returncode == 0, done.stderr
    assert "loaded as" not in logs


def test_a_script_without_a_guard_is_refused_and_starts_no_cluster(run, tmp_path):
    done, _ = run(end="main()")
    assert done.returncode != 0
    assert "script.py calls shoal.init() at its top level" in done.stderr
    assert 'put the call under `if __name__ == "__main__":`' in done.stderr
    assert len(list(tmp_path.glob("shoal-runs/*"))) == 1


def test_importing_a_script_without_a_guard_starts_nothing(run, tmp_path):
    done, _ = run(end="main()", options=["--import", str(tmp_path / "script.py")])
    assert done.returncode == 2
    assert "calls shoal.init() at its top level" in done.stderr
    assert not (tmp_path / "shoal-runs").exists()


def test_what_only_workers_register_is_unknown_to_servers(run):
    guarded = f'if __name__ == "__main__":\n        {REGISTER}'
    done, _ = run(register=guarded)
    assert done.returncode != 0
    assert "unknown access method of sparse tables 'halving'" in done.stderr
