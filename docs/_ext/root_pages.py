"""Pages of the site whose text is a file at the root of the repository.

The page's own text, such as a picture, comes after the file's title. Links of the root's files, and
links of other pages to them, are made to fit.
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
PLACES = {source: f"docs/{name}.md" for name, source in PAGES.items()}
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")


def fitted(text: str, base: str, page: str) -> str:
    """`text` with the targets of its links, which are relative to `base`, relative to `page`.

    >>> fitted("[words](GLOSSARY.md)", "", "contributing")
    '[words](reference/glossary.md)'
    """

    def fit(found: re.Match[str]) -> str:
        target = os.path.normpath(Path(base, found[1]))
        if (ROOT / target / "index.md").exists():
            target += "/index.md"
        path = os.path.relpath(PLACES.get(target, target), Path("docs", page).parent)
        return f"]({path}{found[2] or ''})"

    return LINK.sub(fit, text)


def read_page(app: Any, name: str, source: list[str]) -> None:
    if name in PAGES:
        app.env.note_dependency(ROOT / PAGES[name])
        title, _, text = (ROOT / PAGES[name]).read_text().partition("\n")
        source[0] = f"{title}\n\n{source[0]}\n{fitted(text, '', name)}"
    else:
        source[0] = fitted(source[0], str(Path("docs", name).parent), name)


def setup(app: Any) -> dict[str, bool]:
    app.connect("source-read", read_page)
    return {"parallel_read_safe": True}
