"""Runs `shoal` with another failure timeout: python soon.py SECONDS WORD..."""

import sys

from shoal.__main__ import main
from shoal.runs.options import RunOptions

policy, soon = RunOptions.policy.fget, {"failure_timeout_s": float(sys.argv[1])}
RunOptions.policy = property(lambda self: policy(self) | soon)
sys.argv = ["shoal", *sys.argv[2:]]
main()
