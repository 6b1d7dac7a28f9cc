"""Links of pages name files, so that they work on GitHub. Here they are turned into links of the site.

A link to a page stays. A link to a file of the repository that has a page of its own leads to that page (`PAGES`), a link to any other file
or folder to the repository. A link to what does not exist stays, and fails the build.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from sphinx.application import Sphinx

URL: Final = "https://github.com/aspen-mp/aspen-mp"
ROOT: Final = Path(__file__).resolve().parents[2]
DOCS: Final = ROOT / "docs"
PAGES: Final = {
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CODE_OF_CONDUCT.md": "code-of-conduct.md",
    "CONTRIBUTING.md": "contributing.md",
    "README.md": "index.md",
    "SECURITY.md": "security.md",
    "aspen_mp/compat/onnxruntime/SURFACE.md": "reference/python/surface.md",
}
"""{file of the repository: page of the site whose text it is}."""

_FENCE: Final = re.compile(r"^ *(```+|~~~+)", re.MULTILINE)
_LINK: Final = re.compile(r"(?<=\]\()(?![a-z][a-z0-9+.-]*:|#)([^()\s#]+)(#[^()\s]*)?(?=\))")


def rewritten(text: str, base: Path, page: Path) -> str:
    """Return `text`, whose links are relative to the folder `base`, with links that are right on the page `page` of the site."""

    def replaced(match: re.Match[str]) -> str:
        target = Path(os.path.normpath(base / match[1]))
        anchor = match[2] or ""
        if not target.exists() or not target.is_relative_to(ROOT):
            return match[0]
        inside = target.relative_to(ROOT).as_posix()
        if inside in PAGES and (DOCS / PAGES[inside]).exists():
            target = DOCS / PAGES[inside]
        elif target.is_dir() and (target / "index.md").exists() and target.is_relative_to(DOCS):
            target /= "index.md"
        elif not target.is_relative_to(DOCS) or target.is_dir() or target == DOCS / "README.md":
            return f"{URL}/{'tree' if target.is_dir() else 'blob'}/main/{inside}{anchor}"
        return os.path.relpath(target, page.parent) + anchor

    return "".join(part if code else _LINK.sub(replaced, part) for part, code in _parts(text))


def _parts(text: str) -> list[tuple[str, bool]]:
    """The text in pieces, with whether each is a fenced block of code."""
    parts: list[tuple[str, bool]] = []
    begin, fence = 0, ""
    for match in _FENCE.finditer(text):
        if not fence:
            parts.append((text[begin : match.start()], False))
            begin, fence = match.start(), match[1]
        elif match[1].startswith(fence):
            parts.append((text[begin : match.end()], True))
            begin, fence = match.end(), ""
    return [*parts, (text[begin:], bool(fence))]


def _on_read(app: Sphinx, docname: str, source: list[str]) -> None:
    page = Path(app.env.doc2path(docname))
    source[0] = rewritten(source[0], page.parent, page)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", _on_read, priority=500)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
