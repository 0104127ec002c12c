"""Code on standard input, as in a notebook: what servers cannot import is refused by name."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.real.texts import text

pytestmark = pytest.mark.real
SCRIPTS = Path(__file__).parent / "scripts"
EXAMPLES = Path(__file__).parents[2] / "examples"


def typed(code, folder):
    """Python's, of code that it reads from standard input."""
    command = [sys.executable, "-"]
    return subprocess.run(
        command, input=code, capture_output=True, text=True, timeout=60, cwd=folder, check=False
    )


@pytest.mark.parametrize(
    ("example", "name"), [("own_method", "fading"), ("own_handler", "baskets")]
)
def test_a_function_that_was_typed_is_refused_with_what_to_do(example, name, tmp_path):
    code = (EXAMPLES / f"{example}.py").read_text()
    refused = typed(code, tmp_path)
    assert refused.returncode == 1
    last = refused.stderr.splitlines()[-1]
    assert text("prompt.typed", name=name) in last
    assert text("prompt.give_imports") in last
    there = code.replace(
        "shoal.init()", f"shoal.init(imports=[{str(EXAMPLES / example)!r} + '.py'])"
    )
    assert there != code
    done = typed(there, tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_loop_that_is_typed_trains(tmp_path):
    done = typed((SCRIPTS / "typed.py").read_text(), tmp_path)
    assert (done.returncode, done.stdout) == (0, "trained 3\n"), done.stderr
