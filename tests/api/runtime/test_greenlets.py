"""Programs in which gevent or eventlet has patched threads: no wait stops the others, results are right, and late patches are refused."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import folders
import pytest

PROGRAM = folders.TESTS / "helpers" / "processes" / "greenlet_program.py"
WATCHDOG_S = 240.0
LIBRARIES = ("gevent", "gevent, threads alone", "eventlet")


def is_right(library: str, case: str, seed: int = 0) -> None:
    if importlib.util.find_spec(library.partition(",")[0]) is None:
        pytest.skip(f"needs {library}")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(folders.FOLDERS)}
    command = [sys.executable, str(PROGRAM), library, case, str(seed)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=WATCHDOG_S, check=False)
    assert (done.stdout, done.returncode) == ("right\n", 0), f"seed {seed}: {done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("seed", range(2))
def test_results_of_many_greenlets(library, seed):
    is_right(library, "drawn", seed)


@pytest.mark.parametrize("library", LIBRARIES)
def test_others_go_on_while_one_waits(library):
    """A stopped worker goes on when another greenlet says so."""
    is_right(library, "stopped")


@pytest.mark.parametrize("library", LIBRARIES)
def test_time_limits_end_waits(library):
    is_right(library, "late_result")


@pytest.mark.parametrize("library", LIBRARIES)
def test_lost_runtimes_end_waits(library):
    is_right(library, "lost")


@pytest.mark.parametrize("library", ["gevent", "eventlet"])
def test_late_patches_are_refused(library):
    is_right(library, "late")
