"""A table of contents of pages that need no list by hand, because their names and titles say what they hold."""

from __future__ import annotations


def text(*patterns: str) -> str:
    """`patterns`: globs of pages, relative to the page, without ``.md``."""
    return "\n".join(["```{toctree}", ":glob:", ":maxdepth: 1", "", *patterns, "```"])
