"""Damages files that Shoal reads, and reads them: each is right or refused by name.

    PYTHONPATH=src:. python tests/tools/damaged_files.py --files 10000

A file of a small run is damaged in a way drawn from the seed, and everything that reads it does.
Right are the content that was written, and an error of Shoal's that names the file. Wrong are any
other error, another content of a file with a checksum, memory beyond LIMIT_BYTES, a read that takes
longer than LIMIT_S, and the end of the process. So reads are in child processes.
"""

import argparse
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

LIMIT_S = 20
LIMIT_BYTES = 500 << 20
ROOT = Path(__file__).parents[2]
COLUMNS = ("files", "refused", "wrong", "untyped", "unnamed", "other content", "hang", "crash")


# ---------------------------------------------------------------------------- a child


def read_damaged(folder: Path, seed: int, numbers: list[int]) -> None:
    """Damage and read the files of these numbers; a line on standard output before and after."""
    import logging

    from tests.tools.run_readers import KINDS

    logging.disable()
    warnings.simplefilter("ignore")
    told, sys.stdout = sys.stdout, sys.stderr
    names, whole = list(KINDS), folder / "whole"
    expected: dict[tuple[str, Path], list[set[str]]] = {}

    def tell(**said: Any) -> None:
        told.write(json.dumps(said) + "\n")
        told.flush()

    for number in numbers:
        draw, name = Random(f"{seed}-{number}"), names[number % len(names)]
        kind = KINDS[name]
        file = draw.choice(sorted(kind.found(whole))).relative_to(whole)
        if (name, file) not in expected:
            expected[name, file] = _right(whole, folder / f"right-{os.getpid()}", file, kind)
        tell(begun=number, kind=name, file=str(file))
        case = _copy(whole, folder / f"case-{os.getpid()}")
        tell(done=number, **_read(case, file, kind, draw, expected[name, file]))
        shutil.rmtree(case)


def _read(
    case: Path, file: Path, kind: Any, draw: Random, expected: list[set[str]]
) -> dict[str, Any]:
    """Damage a file and read it in every way; what is wrong, and how many refused it."""
    from tests.tools.damage import damage

    _limit_memory()
    way = damage(case / file, draw)
    lost = not os.path.lexists(case / file)
    wrong, refused = [], 0
    for reader, right in zip(kind.readers, expected, strict=True):
        signal.alarm(LIMIT_S)  # whose default is to end the process, also in native code
        try:
            content = reader(case, case / file)
        except BaseException as error:
            problem = _problem(error, case, file, lost)
            refused += not problem
            wrong += [problem] if problem else []
        else:
            if way != "rewritten" and content is not None and content not in right:
                wrong.append(f"other content: from {reader.__name__}")
        finally:
            signal.alarm(0)
    return {"way": way, "wrong": wrong, "refused": refused}


def _right(whole: Path, folder: Path, file: Path, kind: Any) -> list[set[str]]:
    """What each reader may return: of the whole file; where there is none, if it may lack; and of
    the first entries of a log, which is what a crash leaves of it."""
    from shoal.errors import ShoalError

    data = (whole / file).read_bytes()
    ends = [at + 1 for at, byte in enumerate(data) if byte == ord("\n")] if kind.appended else []
    found: list[set[str]] = []
    for reader in kind.readers:
        right = set()
        for end in (len(data), None, *ends):
            case = _copy(whole, folder)
            (case / file).unlink()
            if end is not None:
                (case / file).write_bytes(data[:end])
            try:
                content = reader(case, case / file)
                right |= {content} if content is not None else set()
            except (ShoalError, OSError):
                if end == len(data):
                    raise
        found.append(right)
    return found


def _copy(whole: Path, case: Path) -> Path:
    shutil.rmtree(case, ignore_errors=True)
    shutil.copytree(whole, case, copy_function=os.link)
    return case


def _limit_memory() -> None:
    """At most LIMIT_BYTES more than now; with more there is a MemoryError."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + LIMIT_BYTES, resource.RLIM_INFINITY))


def _problem(error: BaseException, case: Path, file: Path, lost: bool) -> str:
    """What is wrong with an error; "" if it is typed and names the file."""
    from shoal.errors import InvariantBroken, ShoalError

    if not isinstance(error, ShoalError) or isinstance(error, InvariantBroken):
        last = traceback.extract_tb(error.__traceback__)
        ours = [each for each in last if "/shoal/" in each.filename] or last
        place = f"{ours[-1].filename.partition('/shoal/')[2]}, {ours[-1].name}"
        return f"untyped: {type(error).__name__} in {place}: {str(error)[:150]}"
    text = re.sub(r"\s+", " ", str(error))
    names = [case / file, *(case / file).parents[: len(file.parts)]] if lost else [case / file]
    if not any(str(each) in text for each in names):
        return f"unnamed: {type(error).__name__}: {text[:200].replace(str(case), '')}"
    return ""


# ---------------------------------------------------------------------------- the parent


def outcomes(folder: Path, seed: int, numbers: list[int]) -> Iterator[dict[str, Any]]:
    """What became of each file; a child that ends early is followed by another one."""
    left = list(numbers)
    while left:
        command = [sys.executable, __file__, "--child", str(folder), "--seed", str(seed)]
        env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1"}
        with (folder / "stderr").open("wb") as stderr:
            child = subprocess.Popen(
                [*command, "--numbers", ",".join(map(str, left))],
                stdout=subprocess.PIPE, stderr=stderr, text=True, env=env, cwd=folder,
            )  # fmt: skip
        assert child.stdout is not None
        begun: dict[str, Any] = {}
        for line in child.stdout:
            said = json.loads(line)
            begun.update(said)
            if "done" in said:
                left.remove(said["done"])
                yield begun
                begun = {}
        code = child.wait()
        if left and not begun:
            raise RuntimeError((folder / "stderr").read_text()[-2000:])
        if begun:
            name = signal.Signals(-code).name if code < 0 else f"exit {code}"
            hung = -code == signal.SIGALRM
            what = f"hang: more than {LIMIT_S} s" if hung else f"crash: {name}"
            left.remove(begun["begun"])
            yield {**begun, "way": "?", "wrong": [what], "refused": 0}


def run(files: int, seed: int, only: str = "") -> dict[str, Any]:
    """Damage and read that many files; returns the figures."""
    from tests.tools.run_files import write_files
    from tests.tools.run_readers import KINDS

    with tempfile.TemporaryDirectory(prefix="damaged-") as place:
        folder = Path(place).resolve()
        write_files(folder / "whole")
        names = list(KINDS)
        numbers = [n for n in range(files * (len(names) if only else 1))
                   if not only or names[n % len(names)] == only]  # fmt: skip
        by_kind = {name: Counter[str]() for name in names if not only or name == only}
        wrong = []
        for each in outcomes(folder, seed, numbers):
            counted = by_kind[each["kind"]]
            counted["files"] += 1
            counted["refused"] += bool(each["refused"])
            counted["wrong"] += bool(each["wrong"])
            counted.update({text.partition(":")[0] for text in each["wrong"]})
            wrong += [each] if each["wrong"] else []
    return {
        "files": len(numbers),
        "wrong": len(wrong),
        "by_kind": {name: dict(counted) for name, counted in by_kind.items()},
        "found": wrong,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", default="", help="one kind alone")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    parser.add_argument("--numbers", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        numbers = [int(each) for each in given.numbers.split(",")]
        read_damaged(Path(given.child), given.seed, numbers)
        return
    report = run(given.files, given.seed, given.kind)
    if given.json:
        print(json.dumps(report))
    else:
        show(report)
    sys.exit(1 if report["wrong"] else 0)


def show(report: dict[str, Any]) -> None:
    print(f"{'':<18}{''.join(f'{each:>15}' for each in COLUMNS)}")
    for name, counted in report["by_kind"].items():
        numbers = "".join(f"{counted.get(each, 0):>15}" for each in COLUMNS)
        print(f"{name:<18}{numbers}")
    print(f"{report['files']} files, {report['wrong']} of them wrong")
    seen = Counter(
        f"{each['kind']}: {text[:200]}" for each in report["found"] for text in each["wrong"]
    )
    for text, count in seen.most_common(60):
        print(f"{count:>6}  {text}")


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT / "src"), str(ROOT)]
    main()
