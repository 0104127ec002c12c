"""How long a group takes to step again that torchrun starts anew: two nodes of two ranks each.

    python -m tests.tools.rank_restarts [TIMES]

Rank 3 is killed at step 20; torchrun starts all ranks again, and rank 0 says when it has stepped.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.transport.rigs import free_port

SCRIPT = Path(__file__).parents[1] / "real" / "scripts" / "ranked.py"


def restart(folder: Path) -> float:
    """Return the seconds from the kill to the first step of the next attempt."""
    place = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}"]
    how = ["--nnodes", "2", "--nproc-per-node", "2", "--max-restarts", "3", *place]
    words = [sys.executable, "-m", "torch.distributed.run", *how]
    mark = folder / "killed"
    quiet = subprocess.DEVNULL
    nodes = [
        subprocess.Popen([*words, str(SCRIPT), "kill", str(mark)], stdout=quiet, stderr=quiet)
        for _ in range(2)
    ]
    if any(each.wait(120) for each in nodes):
        raise SystemExit("a node of torchrun has failed")
    _, again = map(float, Path(f"{mark}.steps").read_text().split())
    return again - float(mark.read_text())


def main() -> None:
    times = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    found = []
    for _ in range(times):
        with tempfile.TemporaryDirectory() as folder:
            found.append(restart(Path(folder)))
            print(f"stepped {found[-1]:.1f} s after the kill", flush=True)
    print(f"{len(found)} of {times} have stepped again, after {max(found):.1f} s at most")


if __name__ == "__main__":
    main()
