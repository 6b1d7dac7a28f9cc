"""Tests of a group run in one process: what they share is made once, and what only one may use at a time is not used by two."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = """
import os
from pathlib import Path
import pytest

@pytest.mark.parametrize("k", range(4))
@pytest.mark.parametrize("group", [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in ("one", "other")])
def test_where(group, k):
    Path(f"{group}.{os.environ['PYTEST_XDIST_WORKER']}").touch()
"""


def test_a_group_runs_in_one_process(tmp_path: Path) -> None:
    (tmp_path / "test_planted.py").write_text(TESTS)
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadgroup", "-p", "no:cacheprovider", "test_planted.py"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=tmp_path, env=env, timeout=600)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert sorted(path.name.partition(".")[0] for path in tmp_path.glob("*.gw*")) == ["one", "other"]
