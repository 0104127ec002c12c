"""Run the code blocks of README and the documentation as they are printed.

    python tests/docs/run_blocks.py                     all pages, with this environment's shoal
    python tests/docs/run_blocks.py README.md           some pages
    python tests/docs/run_blocks.py --fresh             in a fresh clone, which `make venv` sets up
    python tests/docs/run_blocks.py --list              what would run, and what does not, and why

A page's blocks run in order, in one temporary folder that begins as a copy of the checkout. `bash`
blocks run under `bash -euo pipefail`; `python` blocks are scripts; of a `console` block the lines
behind `$ ` run, and the lines below each are its output, in which `...` stands for anything.
A block whose first line is a comment with a file's name is written to that file. One whose first
line is `# not run: REASON` is left out. Blocks in other languages are text.
"""

from __future__ import annotations

import argparse
import doctest
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
LANGUAGES = ("bash", "console", "python")
TIMEOUT_S = 600.0
FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>`{3,}|:{3,})(?P<info>.*)$")
NOT_RUN = re.compile(r"^# not run:\s*(?P<reason>.*)$")
NAMED = re.compile(r"^# (?P<name>[\w./-]+\.(?:py|toml|txt|libsvm))$")


class BlockError(Exception):
    """A block that did not do what its page says."""


@dataclass(frozen=True)
class Block:
    """A fenced block: where it is, its language and its text."""

    page: str
    line: int
    language: str
    text: str

    @property
    def first_line(self) -> str:
        return self.text.split("\n", 1)[0]

    @property
    def reason(self) -> str:
        """Why it is not run; empty where it is."""
        found = NOT_RUN.match(self.first_line)
        if found and not found["reason"].strip():
            raise BlockError(f"{self}: 'not run' needs a reason")
        return found["reason"] if found else ""

    @property
    def file(self) -> str:
        """The file that it is written to; empty where it is run."""
        found = NAMED.match(self.first_line)
        return found["name"] if found else ""

    @property
    def runs(self) -> bool:
        return self.language in LANGUAGES and not self.reason and not self.file

    def __str__(self) -> str:
        return f"{self.page}:{self.line} ({self.language})"


def pages() -> list[str]:
    """README, CONTRIBUTING and the documentation, in the order of reading."""
    first = ["README.md", "docs/quickstart.md"]
    found = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))
    skipped = ("docs/_build", "docs/_ext")
    return [*first, *(p for p in found if p not in first and not p.startswith(skipped)),
            "CONTRIBUTING.md"]  # fmt: skip


def blocks_of(page: str, root: Path = ROOT) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    lines = (root / page).read_text().split("\n")
    at = 0
    while at < len(lines):
        found = FENCE.match(lines[at])
        at += 1
        if found is None or found["ticks"].startswith(":"):
            continue
        begin, indent = at, len(found["indent"])
        while lines[at].strip() != found["ticks"]:
            at += 1
        text = "\n".join(line[indent:] for line in lines[begin:at])
        at += 1
        yield Block(page, begin, found["info"].strip(), text)


class Runner:
    """Runs blocks in a folder."""

    def __init__(self, folder: Path, env: Mapping[str, str], timeout_s: float = TIMEOUT_S) -> None:
        self._folder = folder
        self._env = dict(env)
        self._timeout_s = timeout_s

    def run(self, block: Block) -> None:
        """Do what a block says; BlockError where that fails."""
        if block.reason:
            return
        if block.file:
            path = self._folder / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text + "\n")
        elif block.language == "bash":
            self._done(block, ["bash", "-euo", "pipefail", "-c", block.text])
        elif block.language == "python":
            script = self._folder / f"block_{block.line}.py"
            script.write_text(block.text + "\n")
            self._done(block, ["python", str(script)])
        elif block.language == "console":
            self._console(block)

    def _console(self, block: Block) -> None:
        for command, expected in conversations(block.text):
            output = self._done(block, ["bash", "-euo", "pipefail", "-c", command])
            flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
            if expected and not doctest.OutputChecker().check_output(expected, output, flags):
                raise BlockError(
                    f"{block}: {command!r} is to print\n{expected}\nand printed\n{output}"
                )

    def _done(self, block: Block, command: Sequence[str]) -> str:
        """The output of a command that has to end well, in time."""
        with subprocess.Popen(
            command, cwd=self._folder, env=self._env, text=True, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        ) as process:  # fmt: skip
            try:
                output, _ = process.communicate(timeout=self._timeout_s)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                output, _ = process.communicate()
                raise BlockError(f"{block}: not over after {self._timeout_s} s\n{output}") from None
        if process.returncode:
            told = output[-3000:]
            raise BlockError(f"{block}: status {process.returncode}\n{block.text}\n---\n{told}")
        return output


def conversations(text: str) -> Iterator[tuple[str, str]]:
    """(command, expected output) of a `console` block."""
    command, expected = "", ""
    for line in text.split("\n"):
        if line.startswith("$ "):
            if command:
                yield command, expected
            command, expected = line[2:], ""
        elif command.endswith("\\"):
            command += "\n" + line.removeprefix("> ")
        else:
            expected += line + "\n"
    if command:
        yield command, expected


def copy_of_checkout(target: Path) -> Path:
    """What git knows of the working tree, or would add."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).exists():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    return target


def environment(binaries: Path) -> dict[str, str]:
    """This process's, with the commands of an environment first."""
    path = f"{binaries}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONUNBUFFERED": "1", "COLUMNS": "100"}


def run_page(page: str, env: Mapping[str, str], folder: Path) -> list[str]:
    """Run a page's blocks; what failed. After a failure the page's others run all the same."""
    failed = []
    runner = Runner(folder, env)
    for block in blocks_of(page):
        began = time.monotonic()
        try:
            runner.run(block)
        except BlockError as error:
            failed.append(str(error))
        if block.runs:
            told = "FAILED" if failed and failed[-1].startswith(str(block)) else "ok"
            print(f"{told:6} {time.monotonic() - began:6.1f} s  {block}", flush=True)
        elif block.reason:
            print(f"left out         {block}: {block.reason}", flush=True)
    return failed


def list_blocks(chosen: Sequence[str]) -> None:
    for page in chosen:
        for block in blocks_of(page):
            if block.language in LANGUAGES or block.file:
                how = f"not run: {block.reason}" if block.reason else block.file or "runs"
                print(f"{block}: {how}")


def main() -> None:
    parser = argparse.ArgumentParser(description="run the documentation's code blocks")
    parser.add_argument("pages", nargs="*", help="README.md, docs/... (all by default)")
    parser.add_argument("--fresh", action="store_true", help="in a clone that `make venv` sets up")
    parser.add_argument("--list", action="store_true", help="say what would run")
    given = parser.parse_args()
    chosen = given.pages or pages()
    if given.list:
        return list_blocks(chosen)
    failed: list[str] = []
    with tempfile.TemporaryDirectory(prefix="shoal-docs-") as place:
        binaries, clone = Path(sys.executable).parent, Path(place) / "clone"
        if given.fresh:
            subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
            subprocess.run(["make", "venv"], cwd=clone, check=True)
            binaries = clone / ".venv" / "bin"
        for page in chosen:
            own = given.fresh and page == "README.md"  # it is about the clone itself
            folder = clone if own else copy_of_checkout(Path(place) / page.replace("/", "-"))
            failed += run_page(page, environment(binaries), folder)
    for each in failed:
        print(f"\n{each}", file=sys.stderr)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
