import sys
from pathlib import Path

import shoal


def tokenise():
    Path(sys.argv[1]).read_text()


tokenise()
shoal.init()
