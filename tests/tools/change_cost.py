"""What a change costs: the files of `src` that a commit touches, and its lines there.

    python tests/tools/change_cost.py COMMIT...

The rooms are right if an option of all training commands takes three files of `src` at most, a
message three and a strategy two. Each line of the answer is one commit.
"""

import argparse
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def cost_of(commit: str) -> str:
    """One line: what the commit says it does, and the files of `src` that it touches."""
    subject = git("show", "--no-patch", "--format=%h %s", commit)
    told = git("show", "--numstat", "--format=", commit, "--", "src").splitlines()
    files = [line.split("\t") for line in told]
    added, removed = (sum(int(each[at]) for each in files) for at in (0, 1))
    names = ", ".join(each[2].removeprefix("src/shoal/") for each in files) or "none"
    return f"{subject}: {len(files)} files of src, +{added} -{removed} lines: {names}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("commits", nargs="+", metavar="COMMIT")
    for commit in parser.parse_args().commits:
        print(cost_of(commit))


if __name__ == "__main__":
    main()
