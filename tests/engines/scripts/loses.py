"""Joins a cluster of which a process is killed at its start: python loses.py PROCESS"""

import os
import signal
import sys

import shoal
from shoal.engines.local import LocalEngine

start = LocalEngine.start


def start_and_kill(engine, task):
    start(engine, task)
    if task.name == sys.argv[1]:
        os.kill(engine.pid(task.name), signal.SIGKILL)


LocalEngine.start = start_and_kill
try:
    shoal.init()
except shoal.errors.ProcessDied as error:
    print(error.message.partition(";")[0])
