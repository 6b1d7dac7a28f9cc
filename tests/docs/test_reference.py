"""The reference is complete: every public name, error, environment variable and key has its place, and what it names is there."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable
from pathlib import Path

import folders
import pytest

import aspen_mp
from aspen_mp import errors

DOCS = folders.ROOT / "docs"
REFERENCE = DOCS / "reference"
SOURCES = ("aspen_mp", "bench", "config", "planner", "shm", "workers", "tests", "Makefile")
SUFFIXES = {".py", ".pyx", ".c", ".h", ""}
FOR_TESTS = {"tests", "Makefile"}
NOT_FOR_USERS = {
    f"Model.{name}" for name in ("arguments", "begun", "check_names", "counted", "losses", "stages", "taken_over", "terms")
} | {"Planning.checked"}
"""Methods that other modules of ours call; the pages leave them out."""


def documented(text: str, package: str) -> set[str]:
    """The names of a package that autodoc directives of a page document."""
    return set(re.findall(rf"^\.\. auto(?:class|function|exception|data):: {re.escape(package)}\.(\w+)(?:\(\))?$", text, re.MULTILINE))


def variables(parts: tuple[str, ...]) -> dict[str, set[str]]:
    """{environment variable of ours: parts of the repository whose sources name it}."""
    found: dict[str, set[str]] = {}
    for part in parts:
        top = folders.ROOT / part
        for file in [top] if top.is_file() else top.rglob("*"):
            if file.is_file() and file.suffix in SUFFIXES and file != Path(__file__):
                for name in re.findall(r"\bASPEN_MP_[A-Z_0-9]+\b", file.read_text(encoding="utf-8", errors="ignore")):
                    found.setdefault(name, set()).add(part)
    return found


def test_public_names_have_a_place() -> None:
    pages = "\n".join(page.read_text(encoding="utf-8") for page in (REFERENCE / "python").glob("*.md"))
    lacking = set(aspen_mp.__all__) - documented(pages, "aspen_mp") - {"errors", "__version__"}
    assert not lacking, f"no page under docs/reference/python documents {', '.join(sorted(lacking))}"
    assert "`aspen_mp.errors`" in pages
    assert "`aspen_mp.__version__`" in pages


def test_public_names_have_docstrings() -> None:
    for name in set(aspen_mp.__all__) - {"__version__"}:
        value = getattr(aspen_mp, name)
        assert value.__doc__, name
        if isinstance(value, type):
            own = {key: member for key, member in vars(value).items() if not key.startswith("_") and callable(member)}
            lacking = [key for key, member in own.items() if not member.__doc__]
            assert not lacking, f"{name} has members without a docstring: {', '.join(lacking)}"


def unsaid(function: Callable[..., object], text: str) -> list[str]:
    """Arguments of a function that its docstring does not describe."""
    return [name for name in inspect.signature(function).parameters if name != "self" and f"\n    {name}: " not in text]


def test_docstrings_describe_every_argument() -> None:
    """Of our own interface; onnxruntime describes its."""
    lacking = {"connect": unsaid(aspen_mp.connect, inspect.getdoc(aspen_mp.connect) or "")}
    for kind in (aspen_mp.Runtime, aspen_mp.Model, aspen_mp.ModelStream, aspen_mp.Planning):
        made = [] if kind in (aspen_mp.Model, aspen_mp.ModelStream) else [kind]
        own = [member for name, member in vars(kind).items() if not name.startswith("_") and inspect.isfunction(member)]
        for function in (*made, *own):
            if function.__qualname__ not in NOT_FOR_USERS:
                lacking[function.__qualname__] = unsaid(function, inspect.getdoc(function) or "")
    assert not {name: names for name, names in lacking.items() if names}
    assert unsaid(lambda a, b: None, "Add.\n\nArgs:\n    a: A number.\n") == ["b"]


def test_errors_have_advice() -> None:
    text = (REFERENCE / "errors.md").read_text(encoding="utf-8")
    sections = re.split(r"^##+ ", text, flags=re.MULTILINE)[1:]
    advised = [section.split("\n", 1)[0] for section in sections if "**What to do.**" in section]
    assert sorted(advised) == sorted(errors.__all__)
    assert documented(text, "aspen_mp.errors") == set(errors.__all__)
    assert {name for name in vars(errors) if isinstance(getattr(errors, name), type)} == set(errors.__all__)


def test_environment_variables_are_documented() -> None:
    """Those that only tests read stand apart from those of users."""
    page = (REFERENCE / "environment.md").read_text(encoding="utf-8")
    users, workers = (set(re.findall(r"\bASPEN_MP_\w+", part)) for part in page.split("## For those who work on aspen-mp"))
    there = variables(SOURCES)
    assert users | workers == set(there)
    assert not {name for name in users if there[name] <= FOR_TESTS}
    assert not users & workers


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("command_line", ["### `aspen-mp launch`", "#### `aspen-mp bench peers`", "--max-queued"]),
        ("configuration", ["`memory_mib`", "`low_power_speed`", "## `[cache]`"]),
    ],
)
def test_generators_describe_what_is_there(name: str, parts: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """`make docs` runs all generators; what these two describe changes most often."""
    monkeypatch.syspath_prepend(str(DOCS / "_ext"))
    text = importlib.import_module(f"generators.{name}").text()
    for part in parts:
        assert part in text


def test_what_is_lacking_is_noticed() -> None:
    page = ".. autoclass:: aspen_mp.Runtime\n\n.. autoclass:: aspen_mp.Model()\n.. autoexception:: aspen_mp.errors.QueueFull\n"
    assert documented(page, "aspen_mp") == {"Runtime", "Model"}
    assert documented(page, "aspen_mp.errors") == {"QueueFull"}
    assert variables(("aspen_mp",))["ASPEN_MP_DEBUG"] == {"aspen_mp"}
