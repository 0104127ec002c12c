"""Bugs in what resumes, checkpoints, strategies, caches and collectives keep: which test has each?

    python -m tests.tools.mutants [NAME ...] [--json]

Each bug is one change of one line. It is made in a copy of the package, and the fast tests beside
it are run there: the table has the first test that fails. A bug that none catches is a failure.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[2]
LIMIT_S = 300
LAW = "tests/strategies/test_minima.py -k restored"


class Mutant(msgspec.Struct, frozen=True):
    """A bug.

    path:  below src/shoal
    tests:  where one that fails is looked for
    """

    name: str
    path: str
    right: str
    wrong: str
    tests: str


MUTANTS = [
    Mutant(
        "a row cache never ages",
        "client/row_cache.py",
        "= now + self._max_age_s",
        "= float('inf')",
        "tests/client/test_row_cache.py",
    ),
    Mutant(
        "a row cache does not forget when it is full",
        "client/row_cache.py",
        "if len(self._index) > self._max_rows:",
        "if False:",
        "tests/client/test_row_cache.py",
    ),
    Mutant(
        "neighbours take values of an older phase",
        "protocol/worker/peers/links.py",
        "or self.taken.version[0] < due[0]:",
        "or False:",
        "tests/protocol/worker/peers tests/simulation/workloads/test_neighbours.py",
    ),
    Mutant(
        "a neighbour's values are taken twice",
        "protocol/worker/peers/links.py",
        "return self.taken if ordered or self.taken is not before else None",
        "return self.taken",
        "tests/protocol/worker/peers tests/simulation/workloads/test_neighbours.py",
    ),
    Mutant(
        "of several answers to probes an old one counts",
        "protocol/worker/peers/ring.py",
        "or 0 < message.probe <= one.stale:",
        "or False:",
        "tests/protocol/worker/peers/test_ring.py tests/protocol/worker/peers/test_links.py",
    ),
    Mutant(
        "an acknowledgement of what is not applied yet",
        "protocol/server/chains/chain.py",
        "return ReplicateAck(self._view, incoming.expected, done)",
        "return ReplicateAck(self._view, incoming.expected + len(incoming.early), done)",
        "tests/protocol/server/chains",
    ),
    Mutant(
        "a push counts as done before its tail has it",
        "protocol/server/state/request_log.py",
        "if not 0 <= part.version <= part.replica.done]",
        "if not 0 <= part.version]",
        "tests/protocol/server",
    ),
    Mutant(
        "a mean ignores weights below 1",
        "tables/spec.py",
        "total = sum(weights)",
        "weights = [max(each, 1.0) for each in weights]\n        total = sum(weights)",
        "tests/tables/test_spec.py tests/tables/dense",
    ),
    Mutant(
        "routes of an earlier view are used",
        "protocol/worker/routing.py",
        "if known is not None and known[0] is self:",
        "if known is not None:",
        "tests/protocol/worker",
    ),
    Mutant(
        "footprints of an earlier view are used",
        "protocol/server/requests/admission.py",
        "        self._footprints.clear()\n        if changed:",
        "        if changed:",
        "tests/protocol/server",
    ),
    Mutant(
        "a worker's state is of the run's clock, without those before",
        "pytorch/worker_state.py",
        "origin = Origin(self._run, due + self._offset, view.id)",
        "origin = Origin(self._run, due, view.id)",
        "tests/pytorch/test_worker_state.py",
    ),
    Mutant(
        "numpy's generator is not restored",
        "pytorch/worker_state.py",
        "    np.random.set_state(state)\n",
        "",
        "tests/pytorch/test_worker_state.py",
    ),
    Mutant(
        "bases of later checkpoints are pruned",
        "storage/checkpoints.py",
        "if clock < oldest and self.path(clock) not in needed:",
        "if clock < oldest:",
        "tests/storage/test_checkpoints.py",
    ),
    Mutant(
        "changes build on a file that was not written",
        "storage/checkpoints.py",
        'if save.since >= 0 and self._wrote.get(key, ("", 0))[1] != save.since:',
        "if False:",
        "tests/storage/test_checkpoints.py",
    ),
    Mutant(
        "marks of changed rows outlive their checkpoint",
        "tables/touched.py",
        "            self._marks[:] = False",
        "            pass",
        "tests/tables/test_touched.py tests/tables/sparse",
    ),
    Mutant(
        "a resumed epoch begins at its first batch",
        "data/sampler.py",
        "start = self.position if self._resuming and epoch == self.epoch else 0",
        "start = 0",
        "tests/data/test_sampler.py",
    ),
    Mutant(
        "elastic averaging resumes without its step",
        "strategies/elastic.py",
        'self._steps = int(state["steps"])',
        "pass",
        LAW,
    ),
    Mutant(
        "neighbours resume without their step",
        "strategies/p2p.py",
        'self._steps = int(state["steps"])',
        "pass",
        "tests/strategies/test_p2p.py",
    ),
    Mutant(
        "the momentum of eamsgd is not restored",
        "strategies/elastic.py",
        'restore(self._velocity, state["velocity"])',
        "pass",
        LAW,
    ),
    Mutant(
        "a fragment under way is forgotten at a checkpoint",
        "strategies/streaming.py",
        "self._under_way = None if number < 0 else (None, number)",
        "self._under_way = None",
        "tests/strategies/test_streaming.py",
    ),
    Mutant(
        "dc_asgd resumes without its mean of squares",
        "strategies/delayed.py",
        'self._squares.update(state["mean_square"])',
        "pass",
        LAW,
    ),
    Mutant(
        "double buffering resumes from the newest parameters",
        "strategies/delayed.py",
        '        restore(self._values, state["values"])',
        "        pass",
        LAW,
    ),
    Mutant(
        "the outer optimizer without servers begins anew",
        "strategies/local_updates.py",
        'self._outer.load_state_dict(state["outer"])',
        "pass",
        "tests/strategies/test_local_updates.py -k outer_optimizer",
    ),
]


def caught_by(mutant: Mutant, folder: Path) -> str:
    """The first test that fails with a bug; "" if none does."""
    source = folder / re.sub(r"\W+", "-", mutant.name) / "shoal"
    shutil.copytree(ROOT / "src" / "shoal", source, ignore=shutil.ignore_patterns("__pycache__"))
    path = source / mutant.path
    text = path.read_text()
    assert text.count(mutant.right) >= 1, f"{mutant.path} has no {mutant.right!r} any more"
    path.write_text(text.replace(mutant.right, mutant.wrong, 1))
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, *mutant.tests.split()],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(source.parent)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    assert failed or not done.returncode, done.stdout[-2000:] + done.stderr[-2000:]
    return failed[0] if failed else ""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(arguments)
    chosen = [each for each in MUTANTS if not asked.names or each.name in asked.names]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        found = dict(
            zip(
                [each.name for each in chosen],
                pool.map(lambda each: caught_by(each, Path(folder)), chosen),
                strict=True,
            )
        )
    if asked.json:
        print(json.dumps(found, indent=1))
    else:
        for name, test in found.items():
            print(f"{name:60} {test or 'NOT CAUGHT'}")
    return 0 if all(found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
