"""Documents of the repository say what is there: the rules of the house, and files by names that they have."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import folders
import house_rules as rules
import pytest

PARTS = ("aspen_mp", "planner", "workers", "shm", "bench", "config", "tests", "docs")


def files() -> set[str]:
    """Every file of ours by its path in the repository."""
    return {path.relative_to(folders.ROOT).as_posix() for part in PARTS for path in (folders.ROOT / part).rglob("*.*")}


def documents() -> list[Path]:
    """READMEs, and what says how the whole is built; not what was once true (CHANGELOG.md)."""
    found = [folders.ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")]
    return [
        *found,
        *sorted((folders.ROOT / "docs").rglob("*.md")),
        *(p for part in PARTS if part != "docs" for p in sorted((folders.ROOT / part).rglob("README.md"))),
    ]


def sections(text: str) -> set[str]:
    """Headings of a Markdown text."""
    return {heading.strip() for heading in re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)}


def unfound(text: str, pages: Mapping[str, set[str]]) -> list[str]:
    """What a text says of pages (`docs/protocol/pool.md, "Age"`) that are not there, or that lack a section of that name."""
    found = []
    for page, _, names in re.findall(r"""(docs/[\w/]+\.md)(`?)((?:,[ \n*]*"[^"\n]+")*)""", text):
        found += [f"{page}, {name}" for name in re.findall(r'"([^"]+)"', names) if name not in pages.get(page, ())]
        found += [page] if page not in pages else []
    return found


def anchor(heading: str) -> str:
    """The name by which a link leads to a heading."""
    return re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-")


def dead_links(document: Path) -> list[str]:
    """Links of a Markdown file that lead to no file of the repository, or to no heading of it."""
    found = []
    prose = re.sub(r"^```.*?^```|`[^`\n]*`", "", document.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for path, heading in re.findall(r"\]\(([^)#\s:]*)(?:#([^)\s]+))?\)", prose):
        target = (document.parent / path).resolve() if path else document
        if not target.exists():
            found.append(path)
        elif heading and heading not in {anchor(each) for each in sections(target.read_text(encoding="utf-8"))}:
            found.append(f"{path}#{heading}")
    return found


def unknown(text: str, known: set[str]) -> set[str]:
    """Names of source files in backticks that no file has, or that lie elsewhere."""
    named = set(re.findall(r"`(?:\.\./)*([\w/]+\.(?:pyx|py|c|h))`", text))
    ends = {path[i:] for path in known for i in [0, *(m.end() for m in re.finditer("/", path))]}
    made = set(re.findall(r"<!-- file: (\S+) -->", text))  # by the page itself, when its blocks run
    return named - ends - made


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
    named = "<!-- file: app.py --> `app.py`, `planner/nowhere.py`, `api.py`, `../shm/planner/api.py`"
    assert unknown(named, known) == {"planner/nowhere.py", "shm/planner/api.py"}


def test_links_of_readmes_lead_somewhere(tmp_path: Path) -> None:
    """Those of the site are looked at when it is built."""
    for document in documents():
        assert document.is_relative_to(folders.ROOT / "docs") or not dead_links(document), document
    page = tmp_path / "page.md"
    page.write_text(
        "## What `a.b` is: x\n[a](page.md#what-ab-is-x) [b](#no) [c](no.md) [d](https://example.org/no) `e[0](f)`", encoding="utf-8"
    )
    assert dead_links(page) == ["#no", "no.md"]


def test_comments_name_sections_that_are_there() -> None:
    pages = {path.relative_to(folders.ROOT).as_posix(): sections(path.read_text(encoding="utf-8")) for path in documents()}
    for name in sorted(files()):
        if name.endswith((".h", ".c", ".py", ".pyx")) and not name.endswith((Path(__file__).name, "test_prose.py")):
            assert not unfound((folders.ROOT / name).read_text(encoding="utf-8"), pages), name
    known = {"docs/protocol/pool.md": {"Age"}}
    assert not unfound('docs/protocol/pool.md, "Age"); `docs/protocol/pool.md`, "Age"', known)
    assert unfound('(docs/protocol/pool.md, "Age",\n * "Push"); docs/no.md', known) == ["docs/protocol/pool.md, Push", "docs/no.md"]
