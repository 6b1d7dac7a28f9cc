"""What `make` says while it compiles: lines of progress from what a command prints, and all of that if it fails."""

from __future__ import annotations

import importlib.util
import io
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / ".ci/progress.py"
pytestmark = pytest.mark.skipif(not SCRIPT.exists(), reason="needs the repository")
COMPILER = "for k in range(1, 41): print(f'noise\\n[{k}/40] Building C object {k}.o', flush=True)"


@pytest.fixture
def progress() -> ModuleType:
    spec = importlib.util.spec_from_file_location("progress", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_lines(progress: ModuleType) -> None:
    assert progress.line("compile", 12, 0, 0) == "compile: 12 s"
    assert progress.line("compile", 12, 0, 40) == "compile: 0 of 40 files, 12 s"
    assert progress.line("compile", 12, 3, 40) == "compile: 3 of 40 files, 12 s"
    assert progress.line("compile", 10, 20, 40) == "compile: 20 of 40 files, 10 s, about 10 s left"


def test_says_something_from_the_first_moment(progress: ModuleType) -> None:
    out = io.StringIO()
    assert progress.run("compile", [sys.executable, "-c", COMPILER], out) == 0
    first, *_, last = out.getvalue().splitlines()
    assert first == "compile: 0 s"
    assert last.startswith("compile: done in ")
    assert "noise" not in out.getvalue()


def test_every_file_is_counted(progress: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "ELSEWHERE_S", 0.0)
    out = io.StringIO()
    progress.run("compile", [sys.executable, "-c", COMPILER], out)
    assert any(re.fullmatch(r"compile: 40 of 40 files, \d+ s, about 0 s left", line) for line in out.getvalue().splitlines())


def test_a_terminal_has_one_line() -> None:
    ours, theirs = os.openpty()
    try:
        command = [sys.executable, str(SCRIPT), "compile", sys.executable, "-c", COMPILER]
        assert subprocess.run(command, stderr=theirs, check=False).returncode == 0
        text = os.read(ours, 1 << 16).decode()
    finally:
        os.close(ours)
        os.close(theirs)
    assert text.startswith("\r\033[Kcompile: 0 s")
    assert text.count("\n") == 1
    assert text.endswith("s\r\n")


def test_failures_show_all_that_was_printed(progress: ModuleType) -> None:
    out = io.StringIO()
    failing = "import sys; print('[1/2] first'); print('why', file=sys.stderr); sys.exit(3)"
    assert progress.run("compile", [sys.executable, "-c", failing], out) == 3
    assert "compile: failed in " in out.getvalue()
    assert "[1/2] first" in out.getvalue()
    assert "why" in out.getvalue()
