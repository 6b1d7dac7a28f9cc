"""A runtime's CPUs in a process whose OpenMP library has bound the thread that starts it."""

from __future__ import annotations

import ctypes.util
import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(
    ctypes.util.find_library("gomp") is None or len(os.sched_getaffinity(0)) < 2, reason="needs libgomp and two CPUs"
)

CHILD = """
import ctypes, ctypes.util, json, os, sys
from aspen_mp.client import openmp
ctypes.CDLL(ctypes.util.find_library("gomp"))
if sys.argv[1:]:
    os.sched_setaffinity(0, {int(cpu) for cpu in sys.argv[1].split(",")})
before = os.sched_getaffinity(0)
with openmp.unbound():
    within = os.sched_getaffinity(0)
print(json.dumps([sorted(before), sorted(within), sorted(os.sched_getaffinity(0))]))
"""


def cpus(binds: dict[str, str], *arguments: str) -> list[list[int]]:
    """The CPUs of the thread before, within and after `unbound`, in a process with `binds` in its environment."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_", "KMP_"))}
    command = [sys.executable, "-c", CHILD, *arguments]
    done = subprocess.run(command, env={**environment, **binds}, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)  # type: ignore[no-any-return]


@pytest.mark.parametrize("binds", [{"OMP_PROC_BIND": "true"}, {"OMP_PROC_BIND": "close", "OMP_PLACES": "cores"}])
def test_all_places_of_a_bound_thread(binds: dict[str, str]) -> None:
    before, within, after = cpus(binds)
    assert len(before) < len(os.sched_getaffinity(0))
    assert within == sorted(os.sched_getaffinity(0))
    assert after == before


def test_places_that_the_user_named() -> None:
    first, second, *_ = sorted(os.sched_getaffinity(0))
    assert cpus({"OMP_PROC_BIND": "true", "OMP_PLACES": f"{{{second}}}"}) == [[second]] * 3
    assert cpus({"GOMP_CPU_AFFINITY": f"{first} {second}"})[1] == [first, second]


def test_a_thread_that_no_library_has_bound() -> None:
    first, second, *_ = sorted(os.sched_getaffinity(0))
    assert cpus({}, str(first)) == [[first]] * 3
    assert cpus({"OMP_PROC_BIND": "false"}, str(first)) == [[first]] * 3
    assert cpus({"OMP_PROC_BIND": "true", "OMP_PLACES": f"{{{first},{second}}}"}, str(first)) == [[first]] * 3
