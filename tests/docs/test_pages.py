"""README and the documentation name only what exists: links, options, files, events, names."""

import re
import shlex
import subprocess
from pathlib import Path

import click
import pytest
from run_blocks import ROOT, blocks_of, pages

import shoal
import shoal.client
import shoal.pytorch
import shoal.reports
import shoal.tables
from shoal.cli import main
from shoal.engines.environment import ScriptEnvironment
from shoal.engines.roles import LOGGED

SOURCES = [ROOT / "src" / "shoal", ROOT]
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)")
PATH = re.compile(r"`((?:[\w.-]+/)+[\w.-]+\.(?:py|md|toml|svg|txt))(?:::(\w+))?`")
ANYWHERE = [*pages(), "CHANGELOG.md", "GLOSSARY.md"]


def prose(page: str) -> str:
    """A page without its fenced blocks."""
    return re.sub(r"^( *)(`{3,}).*?^\1\2$", "", (ROOT / page).read_text(), flags=re.M | re.S)


@pytest.mark.parametrize("page", [*ANYWHERE, "ARCHITECTURE.md"])
def test_links_lead_somewhere(page):
    for target, _ in LINK.findall(prose(page)):
        if target:
            assert ((ROOT / page).parent / target).exists(), f"{page} links to {target}"


@pytest.mark.parametrize("page", ANYWHERE)
def test_files_and_tests_that_are_named_exist(page):
    for name, test in PATH.findall(prose(page)):
        found = [folder / name for folder in SOURCES if (folder / name).exists()]
        beside = (ROOT / page).parent / name
        assert found or beside.exists(), f"{page} names {name}"
        if test:
            assert f"def {test}" in found[0].read_text(), f"{page} names {name}::{test}"


def commands_of(text: str) -> list[list[str]]:
    """The arguments of each call of `shoal` in a shell script."""
    text = re.sub(r'"?\$\([^()]*\)"?', "X", text.replace("\\\n", " "))
    parts = [part.strip() for line in text.split("\n") for part in re.split(r"&&?|\||;", line)]
    shells = [part.removeprefix("$ ") for part in parts]
    return [shlex.split(each, comments=True)[1:] for each in shells if each.startswith("shoal ")]


@pytest.mark.parametrize("page", pages())
def test_options_of_the_command_line_exist(page):
    """Also in blocks that are not run."""
    for block in blocks_of(page):
        if block.language not in ("bash", "console"):
            continue
        for words in commands_of(block.text):
            context = click.Context(main)
            _, command, rest = main.resolve_command(context, list(words))
            known = {name for param in command.params for name in param.opts}
            script = next((i for i, word in enumerate(rest) if word.endswith(".py")), len(rest))
            asked = {word.partition("=")[0] for word in rest[:script] if word.startswith("--")}
            assert asked <= known | {"--help"}, f"{block}: {' '.join(words)}"


def options_of(command: click.Command) -> set[str]:
    """Every option of a command and of those in it."""
    inner = command.commands.values() if isinstance(command, click.Group) else []
    own = {name for param in command.params for name in param.opts}
    return own.union(*map(options_of, inner))


TOOLS = {"--connections", "--files", "--frames"}  # of tests/tools
OTHERS = {"--write", "--help", "--rewrite-transcripts", "--fresh", "--list", "--nproc-per-node"}


@pytest.mark.parametrize("page", [*pages(), "GLOSSARY.md"])
def test_options_in_the_text_exist(page):
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+\b", prose(page)))
    assert named <= options_of(main) | OTHERS | TOOLS


def test_calls_are_found_in_scripts():
    text = 'shoal run --workers 2 \\\n  a.py --lr 1 &\nrun="$(ls | tail -1)"; shoal why "$run"  # x'
    assert commands_of(text) == [
        ["run", "--workers", "2", "a.py", "--lr", "1"],
        ["why", "$run"],
    ]


def test_every_public_name_is_in_the_reference():
    text = (ROOT / "docs/reference/api.md").read_text()
    for package in (shoal, shoal.client, shoal.pytorch, shoal.reports, shoal.tables):
        named = re.findall(rf":: {re.escape(package.__name__)}\.(\w+)(?=\n)", text)
        others = {"Client", "KeyRange", "Optimizer", "Run", "TableSpec", "load_run"}  # named above
        assert set(package.__all__) - others <= {*named}
        assert {*named} <= set(package.__all__)
    assert set(re.findall(r":: shoal\.(\w+)(?=\n)", text)) == set(shoal.__all__)


def test_every_event_is_in_the_reference():
    page = (ROOT / "docs/reference/events.md").read_text()
    listed = set(re.findall(r"^\| `([\w ]+)` \|", page, re.M))
    written = {
        kind
        for path in (ROOT / "src" / "shoal").rglob("*.py")
        for kind in re.findall(r"log\.write\(\s*\"(\w+)\"", path.read_text())
    }
    notes = {note.__struct_config__.tag: note for note in LOGGED}
    assert listed == written | notes.keys()
    of_scheduler = page.partition("## From the scheduler")[2]
    for kind, fields in re.findall(r"^\| `([\w ]+)` \| (.*?) \|", of_scheduler, re.M):
        assert re.findall(r"`(\w+)`", fields) == [
            each for each in notes[kind].__struct_fields__ if each != "node"
        ]


def test_every_environment_variable_is_in_the_reference():
    text = (ROOT / "docs/reference/environment.md").read_text()
    read = {
        name
        for path in (ROOT / "src" / "shoal").rglob("*.py")
        for name in re.findall(r"\"(SHOAL_[A-Z_]+)\"", path.read_text())
    }
    assert read
    read |= {f"SHOAL_{name.upper()}" for name in ScriptEnvironment.__struct_fields__}
    assert read <= set(re.findall(r"`(SHOAL_[A-Z_]+)`", text))


def test_readme_names_the_two_commands():
    text = (ROOT / "README.md").read_text()
    assert "make demo" in text
    assert "make test" in text


def test_the_difference_in_readme_is_that_of_the_examples():
    """Every line of the diff is a line of the example that it comes from."""
    (diff,) = [each.text for each in blocks_of("README.md") if each.language == "diff"]
    for sign, name in (("-", "mnist.py"), ("+", "mnist_shoal.py")):
        lines = (ROOT / "examples" / name).read_text().split("\n")
        for line in diff.split("\n"):
            if line.startswith(sign):
                assert line[1:] in lines


def test_nothing_tells_of_other_machines():
    tracked = subprocess.run(
        ["git", "ls-files", "*.md", "docs"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    for name in tracked:
        text = (ROOT / name).read_text(errors="replace")
        assert not re.search(r"/work/|/home/\w|/tmp/|\.\./shared", text), name


def test_pages_are_in_the_site():
    """Each page is in a toctree: Sphinx warns otherwise, and this needs no Sphinx."""
    listed = {"index"}
    for index in (ROOT / "docs/index.md", ROOT / "docs/decisions/index.md"):
        for tree in re.findall(r"```\{toctree\}\n(.*?)```", index.read_text(), re.S):
            names = [line for line in tree.split("\n") if line and not line.startswith(":")]
            base = index.parent.relative_to(ROOT / "docs")
            listed |= {str(base / name) for name in names}
    found = {
        str(path.relative_to(ROOT / "docs").with_suffix(""))
        for path in (ROOT / "docs").rglob("*.md")
        if "_build" not in Path(path).parts
    }
    assert found == listed
