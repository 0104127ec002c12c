"""Authenticated frames that no lawful member sends: what they do to a cluster, and to machines.

    python -m tests.tools.fuzz_frames --frames 1000000 [--seed S] [--json]

A fifth of them goes over sockets, to a scheduler, two servers with replicas and a worker that goes
on pushing; the others go to the machines of simulated clusters in this process, which know far
more of each other. Every type of message goes to every role, with fields at their boundaries, ids
that were learnt from lawful traffic, and payloads that are of another size or never come.

Fails if a process ends, a machine raises an error, a message takes a loop more than half a second,
the net of the node is needed (`PeerFault`: an unexpected error in the check of a message), a
process grows by 30 MB, or the worker makes no progress.
"""

import argparse
import json
import resource
import sys
import tempfile
import time
import warnings
from pathlib import Path

from tests.tools.fuzz_machines import fuzz
from tests.tools.fuzz_sockets import siege

GROWTH_KIB = 30 << 10


def in_process(frames: int, seed: int) -> dict[str, object]:
    """Send frames to machines; what became of them."""
    warnings.simplefilter("ignore")  # numpy's, of NaNs that were pushed
    began = time.monotonic()
    report = fuzz(frames, seed)
    return {
        "frames": report.frames,
        "seconds": round(time.monotonic() - began, 1),
        "became": dict(report.counted),
        "longest_turn_s": round(report.slowest[0], 3),
        "longest_turn_of": report.slowest[1],
        "problems": dict(report.times),
        "examples": list(report.problems.values())[:5],
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
    }


def failures(sockets: dict[str, object], machines: dict[str, object]) -> list[str]:
    """What must not have happened."""
    growth = sockets["growth_kib"]
    assert isinstance(growth, dict)
    found = [f"{name} grew by {kib >> 10} MiB" for name, kib in growth.items() if kib > GROWTH_KIB]
    found += [f"ended: {each}" for each in (sockets["ended"],) if each]
    found += [f"the net caught {each}" for each in (sockets["net"],) if each]
    found += ["the worker made no progress"] if not sockets["steps_after"] else []
    problems = machines["problems"]
    assert isinstance(problems, dict)
    return found + [f"{count} x {what}" for what, count in problems.items()]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print all that was found as JSON")
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="shoal-fuzz-") as folder:
        sockets = siege(Path(folder), asked.frames // 5, asked.seed)
    machines = in_process(asked.frames - asked.frames // 5, asked.seed)
    found = failures(sockets, machines)
    if asked.json:
        print(json.dumps({"sockets": sockets, "machines": machines, "failures": found}, indent=1))
    else:
        _print(sockets, machines, found)
    return 1 if found else 0


def _print(sockets: dict[str, object], machines: dict[str, object], found: list[str]) -> None:
    for where, report in (("on sockets", sockets), ("in process", machines)):
        print(f"{report['frames']:,} frames {where} in {report['seconds']} s")
        for name, value in report.items():
            if name not in ("frames", "seconds", "examples"):
                print(f"  {name:20} {value}")
    print("FAILED: " + "; ".join(found) if found else "no process ended, the net is empty")
    for example in machines["examples"] if found else ():  # type: ignore[attr-defined]
        print(example)


if __name__ == "__main__":
    sys.exit(main())
