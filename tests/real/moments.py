"""Runs `shoal` with the words of its command line, watched by an audit hook.

At the first of the moments, EVENT:TEXT, an event with a text in an argument, it sends SIGNAL to
itself; at "finalization:" once the interpreter removes modules. At the end it writes to FILE which
large packages were imported, and which of them before the first process was started.

    python moments.py FILE EVENT:TEXT,... SIGNAL WORD...
"""

import atexit
import json
import os
import runpy
import sys
from functools import partial
from pathlib import Path

LARGE = "torch numpy numba scipy sklearn pandas plotly jinja2 matplotlib PIL pyarrow IPython"


class Late:
    """Sends a signal when it is removed with the module that has it."""

    def __init__(self, number):
        self.send = partial(os.kill, os.getpid(), number)

    def __del__(self):
        self.send()


def large():
    return [name for name in LARGE.split() if name in sys.modules]


def main():
    file, moments, signal, *words = sys.argv[1:]
    awaited = [each.split(":") for each in moments.split(",")]
    seen = {"sent": False, "before": None}

    def hook(event, arguments):
        if event == "subprocess.Popen" and seen["before"] is None:
            seen["before"] = large()
        if not seen["sent"] and any(
            event == name and text in str(each) for name, text in awaited for each in arguments
        ):
            seen["sent"] = True
            write()
            os.kill(os.getpid(), int(signal))

    def write():
        Path(file).write_text(json.dumps({**seen, "imported": large()}))

    atexit.register(write)
    if moments == "finalization:":
        seen["sent"] = True
        sys.modules["late"] = Late(int(signal))
    sys.addaudithook(hook)
    sys.argv = ["shoal", *words]
    sys.path[0] = ""  # as under -m: not this file's folder
    runpy.run_module("shoal", run_name="__main__", alter_sys=True)


main()
