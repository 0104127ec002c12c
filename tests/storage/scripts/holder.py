"""Holds a file until its standard input ends: python holder.py FILE"""

import sys
from pathlib import Path

from shoal.storage.held_file import HeldFile

held = HeldFile(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
