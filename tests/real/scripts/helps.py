"""Asks all commands for their help, and prints what large packages that has imported."""

import sys

from click.testing import CliRunner

from shoal.cli import main

for words in ([], *(name.split() for name in main.commands)):
    done = CliRunner().invoke(main, [*words, "--help"])
    assert done.exit_code == 0, (words, done.output)
    assert "Usage:" in done.output, (words, done.output)
print(*({"torch", "numpy", "numba", "sklearn", "scipy", "plotly", "pandas"} & sys.modules.keys()))
