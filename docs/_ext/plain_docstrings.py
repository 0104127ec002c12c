"""Docstrings as this project writes them, made into reStructuredText for autodoc.

`name` is code; a paragraph of lines `name:  text` is a list of definitions; `*` and a trailing `_`
mean themselves. A module's docstring is left out: the page says what it is. Help texts of commands
that click is not to wrap are literal blocks.
"""

import re
from typing import Any

from docutils import nodes

FIELD = re.compile(r"^(?!Raises|Args|Returns|Yields|Attributes|Example)(\w+(?:, \w+)*):\s+(\S.*)$")
CODE = re.compile(r"(?<![`:\w])`([^`]+)`(?!`)")
MARKUP = re.compile(r"(\*+|(?<=\w)_(?=\W|$))")
MADE_BY_SHOAL = {f"shoal.{name}" for name in ("Context", "Future", "Lease", "Run", "TrainResult")}
SECTION = re.compile(r"^(Args|Raises|Returns|Yields|Attributes|References):$")


def escaped(line: str) -> str:
    """A line with code in double backticks, and other markup as plain characters."""
    parts = re.split(r"(``[^`]+``)", CODE.sub(r"``\1``", line))
    return "".join(p if p.startswith("``") else MARKUP.sub(r"\\\1", p) for p in parts)


def paragraphs(lines: list[str]) -> list[list[str]]:
    found: list[list[str]] = [[]]
    for line in lines:
        if line.strip():
            found[-1].append(line)
        elif found[-1]:
            found.append([])
    return [each for each in found if each]


def definitions(paragraph: list[str]) -> list[str]:
    """A paragraph of `name:  text` lines as a definition list."""
    out: list[str] = []
    for line in paragraph:
        if found := FIELD.match(line):
            out += [f"``{found[1]}``", f"    {escaped(found[2])}"]
        else:
            out.append(f"    {escaped(line.strip())}")
    return out


def as_rst(lines: list[str]) -> list[str]:
    out = ["", ""]
    for paragraph in paragraphs(lines):
        first = paragraph[0]
        if first.lstrip().startswith(">>>"):
            out += paragraph
        elif FIELD.match(first):
            out += definitions(paragraph)
        elif first.startswith("Example"):
            out += paragraph
        elif SECTION.match(first):
            out += [first, *(escaped(line) for line in paragraph[1:])]
        elif first.startswith(" ") and out[-2].endswith("::"):
            out += paragraph
        elif first.startswith(" ") or any(line.startswith("    ") for line in paragraph[1:]):
            out += [".. code-block:: text", "", *(f"    {line}" for line in paragraph)]
        else:
            out += [escaped(line) for line in paragraph]
        out.append("")
    return out


def process(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = [] if what == "module" else as_rst(lines)


def process_signature(
    app: Any, what: str, name: str, obj: Any, options: Any, signature: str | None, returns: Any
) -> tuple[str | None, Any]:
    """No signature where it is not for the reader: of errors, and of what Shoal makes itself."""
    return ("", None) if what == "exception" or name in MADE_BY_SHOAL else (signature, returns)


def process_help(app: Any, context: Any, lines: list[str]) -> None:
    """Lines that begin with a bar, as sphinx-click has unwrapped ones, are a literal block."""
    out: list[str] = []
    for line in lines:
        bar = line.startswith("| ")
        if bar and not (out and out[-1].startswith("    ")):
            out += [".. code-block:: text", ""]
        out.append(f"    {line[2:]}" if bar else line)
    lines[:] = out


def process_options(app: Any, context: Any, lines: list[str]) -> None:
    """An @ is no address."""
    lines[:] = [line.replace("@", "\\@") for line in lines]


def with_dashes(app: Any, doctree: nodes.document) -> None:
    """The two hyphens between a parameter and its text are a dash."""
    for text in doctree.findall(nodes.Text):
        if text == " -- ":
            text.parent.replace(text, nodes.Text(" \N{EN DASH} "))


def setup(app: Any) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", process, priority=400)  # before napoleon
    app.connect("autodoc-process-signature", process_signature)
    app.connect("sphinx-click-process-description", process_help)
    app.connect("sphinx-click-process-options", process_options)
    app.connect("doctree-read", with_dashes)
    return {"parallel_read_safe": True}
