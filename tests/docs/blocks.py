"""Blocks of code of a page, as docs/README.md describes them: which run, which are files, which are shown only."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal

import folders
from markdown_it import MarkdownIt

RUN: Final = ("python", "sh")
SHOWN: Final = ("text", "console", "toml", "ini", "yaml", "json", "dockerfile")
KINDS: Final = ("tutorial", "howto", "explanation", "reference")
FILES: Final = re.compile(r"[\w./-]*\w\.(?:onnx|py|toml|npy|npz|csv|networks)\b(?!\()")
"""Names of files that a reader has to have."""
_MAKES: Final = re.compile(
    r"(?:save|write\w*|dump|to_file|savez?|export|compile_ahead)\(|(?:^|\s)-(?:o|-output)\b|>\s*\S|open\([^)]*[\"'][wx]b?[\"']"
)
"""A line of a block that makes the files which it names."""
_COMMENT: Final = re.compile(r"<!-- (not run|file|needs): (\S.*) -->")
_HIDDEN: Final = re.compile(r"<!-- (python|sh)\n(.*)^-->", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """`action`: what happens with it. `line`: where its text begins in the page, counted from 0. `name`: of its file."""

    action: Literal["python", "sh", "file"]
    text: str
    line: int
    name: str = ""


def pages() -> list[Path]:
    """Every page whose blocks run."""
    docs = folders.ROOT / "docs"
    return [folders.ROOT / "README.md", docs / "index.md", *(page for kind in KINDS for page in sorted((docs / kind).rglob("*.md")))]


def blocks(text: str) -> list[Block]:
    """The blocks of a page that do something, in order. ValueError names the line of one that the conventions do not know."""
    found: list[Block] = []
    comment: re.Match[str] | None = None
    for token in MarkdownIt().parse(text):
        first = token.map[0] if token.map else 0
        where = f"line {first + 1}"
        if token.type == "html_block":
            comment = _COMMENT.fullmatch(token.content.strip())
            hidden = _HIDDEN.fullmatch(token.content.strip())
            if hidden:
                found.append(Block(_action(hidden[1]), hidden[2], first + 1))
            elif not comment and re.match(r"<!--\s*(not[ -]run|file|needs|python|sh)\b", token.content):
                raise ValueError(
                    f"{where}: write <!-- not run: REASON -->, <!-- file: NAME -->, <!-- needs: MODULE --> or a hidden block, "
                    "whose last line is -->"
                )
            continue
        if token.type == "code_block":
            raise ValueError(f"{where}: an indented block says no language; put it between ```")
        if token.type == "fence" and not token.info.startswith("{"):
            if token.info not in (*RUN, *SHOWN):
                raise ValueError(f"{where}: a block is one of {', '.join((*RUN, *SHOWN))}, not {token.info!r}")
            if comment and comment[1] == "file":
                found.append(Block("file", token.content, first + 1, comment[2]))
            elif token.info in RUN and (not comment or (comment[1] == "needs" and find_spec(comment[2]) is not None)):
                found.append(Block(_action(token.info), token.content, first + 1))
        comment = None
    return found


def _action(language: str) -> Literal["python", "sh"]:
    return "python" if language == "python" else "sh"


def unexplained(text: str) -> set[str]:
    """Files that visible blocks of a page use although no visible block before makes them, and no text before names them."""
    known: set[str] = set()
    missing: set[str] = set()
    for token in MarkdownIt().parse(text):
        if token.type == "inline":
            known |= set(FILES.findall(token.content))
        elif token.type == "fence" and token.info in RUN:
            for line in token.content.splitlines():
                named = set(FILES.findall(line))
                if _MAKES.search(line):
                    known |= named
                missing |= named - known
    return missing
