"""Logs ten steps; worker 1 may fail at the seventh: logs.py [fail|die|leave]"""

import os
import signal
import sys

import shoal

if __name__ == "__main__":
    context = shoal.init()
    for step in range(10):
        shoal.log({"valid/accuracy": step / 10}, loss=10.0 / (1 + step) + context.rank)
        if step == 6 and context.rank == 1 and "fail" in sys.argv:
            raise KeyError("price")
        if step == 6 and context.rank == 1 and "die" in sys.argv:
            os.kill(os.getpid(), signal.SIGKILL)
    if "leave" in sys.argv:
        os._exit(0)
