"""Documents of the repository say what is there: the rules of the house, and files by names that they have."""

from __future__ import annotations

import re
from pathlib import Path

import folders
import house_rules as rules
import pytest

PARTS = ("aspen_mp", "planner", "workers", "shm", "bench", "config", "tests")


def files() -> set[str]:
    """Every file of ours by its path in the repository."""
    return {path.relative_to(folders.ROOT).as_posix() for part in PARTS for path in (folders.ROOT / part).rglob("*.*")}


def documents() -> list[Path]:
    """READMEs, and what says how the whole is built; not what was once true (CHANGELOG.md) or measured (bench/RESULTS.md)."""
    found = [folders.ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")]
    return [
        *found,
        *sorted((folders.ROOT / "docs").rglob("*.md")),
        *(p for part in PARTS for p in sorted((folders.ROOT / part).rglob("README.md"))),
    ]


def unknown(text: str, known: set[str]) -> set[str]:
    """Names of source files in backticks that no file has, or that lie elsewhere."""
    named = set(re.findall(r"`(?:\.\./)*([\w/]+\.(?:pyx|py|c|h))`", text))
    ends = {path[i:] for path in known for i in [0, *(m.end() for m in re.finditer("/", path))]}
    return named - ends


def test_architecture_prints_the_rules() -> None:
    text = (folders.ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert rules.printed(text) == text, "run: python tests/unit/house_rules.py"
    rule = rules.RULES[0].says
    assert rules.printed(text.replace(rule, "")) == text != text.replace(rule, "")
    with pytest.raises(ValueError, match="lacks"):
        rules.printed(text.replace(rules.MARKS[1], ""))


def test_documents_name_files_that_are_there() -> None:
    known = files()
    for document in documents():
        assert not unknown(document.read_text(encoding="utf-8"), known), document
    assert unknown("`planner/nowhere.py`, `api.py`, `../shm/planner/api.py`", known) == {"planner/nowhere.py", "shm/planner/api.py"}
