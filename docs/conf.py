"""Sphinx configuration: `make docs` builds the site into docs/_build."""

import sys
from importlib.metadata import version as version_of
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "Shoal"
author = "the Shoal authors"
copyright = author
release = version = version_of("shoal")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_click",
    "sphinx_copybutton",
    "root_pages",
    "plain_docstrings",
    "generated_tables",
]
exclude_patterns = ["_build", "_ext"]
source_suffix = {".md": "markdown"}
smartquotes = False  # options begin with two hyphens

myst_enable_extensions = ["colon_fence", "deflist", "fieldlist"]
myst_heading_anchors = 3

napoleon_use_ivar = True  # attributes as fields of their class
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 72
add_module_names = False
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True

html_theme = "furo"
html_title = "Shoal"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {
    "top_of_page_buttons": [],
    "light_css_variables": {"color-brand-primary": "#0f62a8", "color-brand-content": "#0f62a8"},
    "dark_css_variables": {"color-brand-primary": "#6cb6ff", "color-brand-content": "#6cb6ff"},
}
pygments_style = "friendly"
pygments_dark_style = "github-dark"
