"""A table of contents that is not shown in the page, for folders whose README.md is their page."""

from __future__ import annotations


def text(*patterns: str) -> str:
    """`patterns`: globs of pages, relative to the page, without ``.md``."""
    return "\n".join(["```{toctree}", ":hidden:", ":glob:", "", *patterns, "```"])
