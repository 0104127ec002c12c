"""Starts a fork server and waits: python parent.py FILENO SOCKETS"""

import os
import subprocess
import sys

fileno, sockets = sys.argv[1:]
arguments = ["-m", "shoal.engines.fork_server", fileno, sockets, str(os.getpid())]
subprocess.Popen([sys.executable, *arguments], pass_fds=(int(fileno),))
input()
