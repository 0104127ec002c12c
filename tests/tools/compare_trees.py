"""Times a benchmark of two trees by turns, in the same minutes.

    python tests/tools/compare_trees.py wire OLD NEW [--rounds 50] [--again]

Each tree runs `shoal bench SUITE` in a process of its own, with clusters of its own. A process does
one round of calls when it gets the turn, and waits for the next one. So both trees meet the same
load of the machine, and the paired ratios of a round vary by a few per cent where ratios of whole
runs vary by a half. With --again OLD runs once more: its ratios show what is noise.

Beside the times is the processor time of all processes of a tree, but for `dense`, whose pushes and
pulls take turns. That suite runs without its bounds, its peers and its other kinds of pushes.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path
from random import Random
from statistics import median, quantiles
from typing import Any
from unittest.mock import patch

WITH_PARTNER = ("train", "allreduce")  # suites in which another process takes part
REST_S = 0.5
Times = list[list[float]]  # the median call of each side, round by round


# ---------------------------------------------------------------------------- a process of a tree


def processor_time() -> float:
    """Return the seconds of processor time of this process and all that it has begun."""
    parents: dict[int, int] = {}
    for each in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            fields = (each / "stat").read_text().rpartition(")")[2].split()
            parents[int(each.name)] = int(fields[1])
    own = {os.getpid()}
    while more := {each for each, parent in parents.items() if parent in own} - own:
        own |= more
    total = 0.0
    for pid in own:
        with suppress(OSError):
            total += time.clock_gettime(~pid << 3 | 2)  # a process's clock, on Linux
    return total


def measure(suite: str, rounds: int) -> None:
    """Run a suite; a round waits for a line on standard input, and prints a line."""
    import shoal.apps.bench.rows as rows
    from shoal.apps.bench.command import run_suite

    def by_turns(
        sides: Any, count: int, own: int, warm_up: int = rows.WARM_UP, during: Any = None
    ) -> Any:
        for call, _ in sides:
            for _ in range(warm_up):
                call()
        measured: list[Any] = [[] for _ in sides]
        begun.append(own)
        for _ in range(own):
            sys.stdin.readline()
            spent = []
            for (call, cores), batches in zip(sides, measured, strict=True):
                before = processor_time()
                with rows.on(cores):
                    batches.append([rows.timed(call) for _ in range(count)])
                spent.append((processor_time() - before) / count)
            if suite in WITH_PARTNER:  # it may be some calls behind, and tells nobody of its end
                time.sleep(REST_S)
            told = [len(begun), [median(each[-1]) for each in measured], spent]
            print(json.dumps(told), file=out, flush=True)
        return measured

    def by_pairs(client: Any, buffers: Any, into: Any, count: int) -> Any:
        """Measure pushes, and a pull after each, unless they are the warm-up of a measurement."""
        if count == dense.WARM_UP:
            begun.append(count)
            return pairs(client, buffers, into, count)
        sys.stdin.readline()
        found = pairs(client, buffers, into, count)
        told = [len(begun), [median(each) for each in found], [0.0, 0.0]]
        print(json.dumps(told), file=out, flush=True)
        return found

    def nothing(sides: Any, count: int, own: int, warm_up: int = 0) -> Any:
        return [[[1.0] * count] * own for _ in sides]

    from rich.console import Console

    import shoal.apps.bench.suites.dense as dense

    begun: list[int] = []
    pairs = dense._measure
    out, sys.stdout = sys.stdout, sys.stderr
    with ExitStack() as stack:
        for module, name, replaced in (
            (rows, "by_turns", by_turns),  # each round waits for its turn
            (dense, "_measure", by_pairs),  # in the dense suite, too, whose bounds and peers
            (dense, "by_turns", nothing),  # need no turns
            (dense, "KINDS", {}),
            (dense, "gloo", lambda *_: nullcontext()),
            (dense, "ray_actor", lambda *_: nullcontext()),
        ):
            stack.enter_context(patch.object(module, name, replaced, create=True))
        report = run_suite(suite, rounds, Console(stderr=True, quiet=True))
    sys.stdin.readline()
    print(json.dumps({"rows": [each["name"] for each in report["rows"]]}), file=out, flush=True)


# ---------------------------------------------------------------------------- the one that compares


def compared(suite: str, trees: list[Path], rounds: int) -> tuple[list[list[Times]], list[str]]:
    """Each measurement's rounds in all trees, and the names of the suite's rows."""
    command = [sys.executable, str(Path(__file__).resolve()), "--measure", suite, str(rounds)]
    order = Random(0)
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    command,
                    env={**os.environ, "PYTHONPATH": str(tree / "src")},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    bufsize=1,
                )
            )
            for tree in trees
        ]
        measured = defaultdict[int, list[Times]](lambda: [[] for _ in trees])
        rows: list[str] = []
        while not rows:
            for number in order.sample(range(len(trees)), len(trees)):
                given, told = processes[number].stdin, processes[number].stdout
                assert given is not None
                assert told is not None
                given.write("\n")
                line = told.readline()
                if not line:
                    raise SystemExit(f"{trees[number]} has ended early")
                found = json.loads(line)
                if isinstance(found, dict):
                    rows = found["rows"]
                else:
                    measured[found[0]][number].append(found[1] + found[2])
        return list(measured.values()), rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suite", choices=("wire", "dense", "sparse", "train", "allreduce"))
    parser.add_argument("trees", nargs="*", type=Path)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--again", action="store_true", help="run the first tree once more")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        measure(given.suite, int(str(given.trees[0])))
        return
    trees = [each.resolve() for each in given.trees]
    if given.again:
        trees.append(trees[0])
    measurements, rows = compared(given.suite, trees, given.rounds)
    print("rows:", ", ".join(rows))
    for number, found in enumerate(measurements, 1):
        sides = [zip(*times, strict=False) for times in found]
        count = len(found[0][0]) // 2
        for number_of, (first, *others) in enumerate(zip(*sides, strict=True)):
            what = f"side {number_of % count}" + ", CPU of all" * (number_of >= count)
            for tree, other in zip(trees[1:], others, strict=True):
                if not any(first):
                    continue
                ratios = [b / a for a, b in zip(first, other, strict=True)]
                low, _, high = quantiles(ratios) if len(ratios) > 1 else ratios * 3
                print(
                    f"measurement {number}, {what}: {median(first) * 1e6:.1f} us, in "
                    f"{tree.name} x {median(ratios):.3f} ({low:.3f}..{high:.3f})",
                    flush=True,
                )


if __name__ == "__main__":
    main()
