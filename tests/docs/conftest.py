"""The runner of the documentation's blocks, which is a script, as a module."""

import importlib.util
import sys
from pathlib import Path

_spec = importlib.util.spec_from_file_location(
    "run_blocks", Path(__file__).parent / "run_blocks.py"
)
run_blocks = importlib.util.module_from_spec(_spec)
sys.modules["run_blocks"] = run_blocks
_spec.loader.exec_module(run_blocks)
