"""Settings of Sphinx for the documentation site; `make docs` builds it. No setting makes the build use a network."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from sphinx.application import Sphinx

import aspen_mp

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS / "_ext"))

from repository_links import URL  # noqa: E402

project = "aspen-mp"
author = "the authors of aspen-mp"
copyright = f"2026 {author}"
release = aspen_mp.__version__
version = release

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "generated", "repository_links"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["README.md", "_ext"]
root_doc = "index"

# Markdown
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence", "deflist", "fieldlist"]

# Python API. Docstrings put code between single backticks.
default_role = "code"
smartquotes = False  # options begin with two hyphens
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_type_aliases = {"npt.ArrayLike": "ArrayLike"}  # or else it is shown as all types that it stands for
napoleon_numpy_docstring = False
napoleon_use_rtype = False
python_maximum_signature_line_length = 100

# Appearance
html_theme = "furo"
html_title = f"aspen-mp {release}"
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"source_repository": f"{URL}/", "source_branch": "main", "source_directory": "docs/"}


def _plain(*event: object) -> tuple[str | None, str | None] | None:
    """A signature with the names of types as one says them; None where there is none."""
    signature, returns = (re.sub(r"TypeAliasForwardRef\('(\w+)'\)|\bnpt\.(\w+)", r"\1\2", str(text or "")) for text in event[-2:])
    return (signature, returns) if signature else None


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-signature", _plain)
