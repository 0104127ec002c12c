"""Joins a run of its own, and leaves it or waits to be killed: python joined.py leave|wait"""

import signal
import sys

import shoal

context = shoal.init()
print("joined", flush=True)
if sys.argv[1] == "wait":
    signal.pause()
context.close()
