"""Prints long lines: long_lines.py NUMBER"""

import sys

import shoal

rank = shoal.init().rank
for _ in range(int(sys.argv[1])):
    print("BEGIN", str(rank) * 100_000, "END", flush=True)
