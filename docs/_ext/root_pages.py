"""Pages of the site whose text is a file at the root of the repository, with its links made to fit.

The page's own text, such as a picture, comes after the file's title.
"""

import os
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGES = {
    "explanation/architecture": "ARCHITECTURE.md",
    "reference/glossary": "GLOSSARY.md",
    "contributing": "CONTRIBUTING.md",
    "changelog": "CHANGELOG.md",
}
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")


def fitted(text: str, page: str) -> str:
    """`text` with the targets of its links, which are relative to the root, relative to `page`."""
    places = {source: f"docs/{name}.md" for name, source in PAGES.items()}

    def fit(found: re.Match[str]) -> str:
        target = places.get(found[1], found[1])
        path = os.path.relpath(ROOT / target, (ROOT / "docs" / page).parent)
        return f"]({path}{found[2] or ''})"

    return LINK.sub(fit, text)


def read_root_page(app: Any, name: str, source: list[str]) -> None:
    if name in PAGES:
        app.env.note_dependency(ROOT / PAGES[name])
        title, _, text = (ROOT / PAGES[name]).read_text().partition("\n")
        source[0] = f"{title}\n\n{source[0]}\n{fitted(text, name)}"


def setup(app: Any) -> dict[str, bool]:
    app.connect("source-read", read_root_page)
    return {"parallel_read_safe": True}
