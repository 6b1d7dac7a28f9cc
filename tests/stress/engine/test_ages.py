"""Older requests go first, by the engine's own functions on tables made by hand (`ages.c`).

What that is worth to clients `aspen-mp bench clients` measures.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import cbuild


def test_older_requests_go_first(tmp_path: Path) -> None:
    folder = cbuild.sources(tmp_path, small=False)
    program = cbuild.build(folder, "ages")
    done = subprocess.run([program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "fine\n")
