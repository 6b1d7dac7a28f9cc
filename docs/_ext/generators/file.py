"""The text of a file of the repository, as a page."""

from __future__ import annotations

from repository_links import DOCS, ROOT, rewritten


def text(name: str, page: str) -> str:
    """`name`: the file, from the root of the repository. `page`: the page that it fills, from docs/."""
    return rewritten((ROOT / name).read_text(encoding="utf-8"), (ROOT / name).parent, DOCS / page)
