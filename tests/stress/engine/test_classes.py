"""Higher classes are not kept waiting by lower ones, which go on all the same: the engine's own functions on tables made by hand
(`classes.c`)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import cbuild


def test_what_is_held_back_and_lent(tmp_path: Path) -> None:
    folder = cbuild.sources(tmp_path, small=False)
    program = cbuild.build(folder, "classes")
    done = subprocess.run([program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "fine\n")
