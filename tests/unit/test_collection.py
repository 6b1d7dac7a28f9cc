"""Every test file can be read where no extra is installed but those that tests need. Files of other extras skip themselves."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import folders

# Runs pytest's collection in a process where the modules that are named cannot be imported.
COLLECT = """
import sys
from importlib.machinery import PathFinder

hidden, found = frozenset(sys.argv[1].split(",")), PathFinder.find_spec

class Finds:  # an instance, since pytest keeps what it finds here in a class
    def __call__(self, name, *rest):
        return None if name.partition(".")[0] in hidden else found(name, *rest)

PathFinder.find_spec = Finds()

import pytest
sys.exit(pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", *sys.argv[2:]]))
"""


def distributions(requirements: list[str]) -> set[str]:
    return {match[0].lower() for line in requirements if (match := re.match(r"[\w.-]+", line))}


def closure(names: set[str]) -> set[str]:
    """`names` and, where these are installed, what they require without extras of their own."""
    found: set[str] = set()
    left = set(names)
    while left:
        name = left.pop()
        found.add(name)
        with contextlib.suppress(metadata.PackageNotFoundError):
            lines = [line for line in metadata.requires(name) or [] if "extra ==" not in line]
            left |= distributions(lines) - found
    return found


def hidden_modules() -> set[str]:
    """Modules of extras that neither tests nor the package itself require, where they are installed here."""
    project = tomllib.loads((folders.ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    kept = closure(distributions([*project["dependencies"], *extras["test"], *extras["lint"]]))
    optional = distributions([line for lines in extras.values() for line in lines]) - kept
    return {module for module, owners in metadata.packages_distributions().items() if {o.lower() for o in owners} & optional}


def test_files_are_collected_without_extras() -> None:
    hidden = hidden_modules() | {"uvicorn"}
    command = [sys.executable, "-c", COLLECT, ",".join(sorted(hidden)), str(folders.TESTS)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=folders.ROOT, timeout=600)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


def test_a_file_that_imports_an_extra_is_noticed(tmp_path: Path) -> None:
    planted = tmp_path / "test_planted.py"
    planted.write_text("import uvicorn\n")
    command = [sys.executable, "-c", COLLECT, "uvicorn", str(planted)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=600)
    assert done.returncode != 0
    assert "No module named 'uvicorn'" in done.stdout
