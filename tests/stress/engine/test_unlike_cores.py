"""Slow cores leave tiles to faster ones, by the engine's own functions on tables made by hand; what that is worth is measured elsewhere."""

from __future__ import annotations

import subprocess
from pathlib import Path

import cbuild


def test_what_a_slow_core_leaves(tmp_path: Path) -> None:
    folder = cbuild.sources(tmp_path, small=False)
    program = cbuild.build(folder, "unlike")
    done = subprocess.run([program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "fine\n")
