"""Joins a cluster of which a process is killed at its start: python loses.py PROCESS"""

import os
import signal
import sys

import shoal
from shoal.engines.processes import Processes

start = Processes.start


def start_and_kill(processes, task):
    start(processes, task)
    if task.name == sys.argv[1]:
        os.kill(processes.pid(task.name), signal.SIGKILL)


Processes.start = start_and_kill
try:
    shoal.init()
except shoal.errors.ProcessDied as error:
    print(error.message.partition(";")[0])
