"""The runner of code blocks: it runs what it should, in order, and a wrong block is caught."""

import os
import re
import sys
import time
from pathlib import Path

import pytest
from run_blocks import BlockError, Runner, blocks_of, environment, pages, run_page

TICKS = "```"
FAST = ("README.md", "docs/howto/tables-by-hand.md", "docs/howto/distribute-a-script.md",
        "docs/howto/word-embeddings.md", "docs/howto/extend.md")  # fmt: skip


def block(language: str, *lines: str) -> str:
    return "\n".join([f"{TICKS}{language}", *lines, TICKS, ""])


def run_text(text: str, folder: Path, timeout_s: float = 30.0) -> None:
    (folder / "page.md").write_text(text)
    runner = Runner(folder, environment(Path(sys.executable).parent), timeout_s)
    for each in blocks_of("page.md", folder):
        runner.run(each)


# --- what it does ------------------------------------------------------------------------------


def test_blocks_run_in_order_in_one_folder(tmp_path):
    text = "First:\n\n" + block("bash", "echo 2 > number") + block(
        "python", "n = int(open('number').read())", "open('number', 'w').write(str(n + 40))"
    )  # fmt: skip
    run_text(text, tmp_path)
    assert (tmp_path / "number").read_text() == "42"


def test_a_named_block_is_written_and_not_run(tmp_path):
    text = block("python", "# half.py", "raise SystemExit('run at the wrong time')")
    run_text(text + block("bash", "! python half.py 2> told", "grep wrong told"), tmp_path)
    assert (tmp_path / "half.py").exists()


def test_other_languages_are_text(tmp_path):
    run_text(block("diff", "-exit 1") + block("text", "exit 1") + block("", "exit 1"), tmp_path)


def test_a_marked_block_is_left_out(tmp_path):
    run_text(block("bash", "# not run: needs two hosts", "exit 1"), tmp_path)


def test_output_of_a_console_block_is_compared(tmp_path):
    run_text(block("console", "$ echo run 17 of 20", "run ... of 20", "$ true"), tmp_path)


def test_directives_and_longer_fences_are_no_blocks(tmp_path):
    run_text("````text\n" + block("bash", "exit 1") + "````\n" + block("{image} a.svg"), tmp_path)


# --- what it catches ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (block("bash", "shoal train digits --workesr 2"), "No such option"),
        (block("bash", "shoal tarin digits"), "No such command"),
        (block("bash", "true | false", "true"), "status 1"),
        (block("bash", "echo $NO_SUCH_VARIABLE"), "unbound variable"),
        (block("python", "import shoal", "shoal.no_such_name"), "no_such_name"),
        (block("console", "$ echo 3", "4"), "is to print"),
        (block("bash", "# not run:", "true"), "needs a reason"),
    ],
    ids=["option", "command", "pipe", "variable", "name", "output", "reason"],
)
def test_a_planted_wrong_block_is_caught(text, told, tmp_path):
    with pytest.raises(BlockError, match=re.escape(told)):
        run_text(text, tmp_path)


def test_a_wrong_block_fails_its_page_and_says_where(tmp_path, monkeypatch):
    (tmp_path / "page.md").write_text("Words.\n\n" + block("bash", "false"))
    monkeypatch.setattr("run_blocks.blocks_of", lambda page: blocks_of(page, tmp_path))
    (failed,) = run_page("page.md", environment(Path(sys.executable).parent), tmp_path)
    assert failed.startswith("page.md:3 (bash): status 1")


def test_a_block_that_hangs_is_ended_with_all_that_it_started(tmp_path):
    with pytest.raises(BlockError, match="not over after"):
        run_text(block("bash", "sleep 60 &", "echo $! > pid", "wait"), tmp_path, timeout_s=1.0)
    child = int((tmp_path / "pid").read_text())
    for _ in range(100):
        status = Path(f"/proc/{child}/stat")
        if not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.05)
    os.kill(child, 9)
    pytest.fail("a process of the block is still there")


# --- the documentation's own -------------------------------------------------------------------


@pytest.mark.real
@pytest.mark.parametrize("page", FAST)
def test_python_blocks_of_a_page_run(page, tmp_path):
    """The fast part; `make docs-check` runs every block."""
    runner = Runner(tmp_path, environment(Path(sys.executable).parent), 120.0)
    ran = [each for each in blocks_of(page) if each.language == "python" and each.runs]
    for each in ran:
        runner.run(each)
    assert ran, page


def test_every_page_with_blocks_is_listed():
    assert {"README.md", "docs/quickstart.md", "CONTRIBUTING.md", *FAST} <= set(pages())
    assert sum(each.runs for page in pages() for each in blocks_of(page)) > 25
