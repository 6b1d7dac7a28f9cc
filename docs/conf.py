"""Settings of Sphinx for the documentation site; `make docs` builds it. No setting makes the build use a network."""

from __future__ import annotations

import sys
from pathlib import Path

import aspen_mp

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS / "_ext"))

from repository_links import URL  # noqa: E402

project = "aspen-mp"
author = "the authors of aspen-mp"
release = aspen_mp.__version__
version = release

extensions = ["myst_parser", "sphinx.ext.autodoc", "generated", "repository_links"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["README.md", "_ext"]
root_doc = "index"

# Markdown
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence", "deflist", "fieldlist"]

# Python API. Docstrings put code between single backticks.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_class_signature = "mixed"
python_maximum_signature_line_length = 100

# Appearance
html_theme = "furo"
html_title = f"aspen-mp {release}"
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"source_repository": f"{URL}/", "source_branch": "main", "source_directory": "docs/"}
