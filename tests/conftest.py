"""What every test of processes must leave behind: nothing.

Tests under api, crash, serving and stress are audited: segments in /dev/shm, child processes, descriptors and mappings of the test
process, and files in the run directory have to be back to where they were; that costs a test without remains a millisecond.
`ASPEN_MP_TIER=long` selects longer runs (`make stress`, `make zoo`). The plan cache is off, but for its own tests.
"""

from __future__ import annotations

import faulthandler
import functools
import gc
import itertools
import os
import signal
import time
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path
from types import FunctionType, ModuleType

import folders
import numpy as np
import psutil
import pytest
import tiers

from aspen_mp.control.wire import run_directory

os.environ["ASPEN_MP_CACHE"] = "off"
os.environ["ASPEN_MP_LEASES"] = "off"  # other runtimes of this machine are nothing to the tests
os.environ["ASPEN_MP_CHECK"] = "on"  # planner processes check every step in the life of a plan


def _forked() -> None:
    """What pytest has set up for its own process is not for forked children, many of which die or hang on purpose: dumps of the stack, and
    the limit of a test."""
    faulthandler.disable()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)


os.register_at_fork(after_in_child=_forked)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Started in the background of a shell, which has us ignore Ctrl-C; the processes of the tests would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)

AUDITED = {"api", "crash", "serving", "stress"}
SETTLE_S = 20.0


def _folder(path: Path) -> str:
    return path.relative_to(folders.TESTS).parts[0]


def _segments() -> set[str]:
    try:
        return {name for name in os.listdir("/dev/shm") if name.startswith(f"aspen-{os.getuid()}-")}
    except FileNotFoundError:
        return set()


def _descendants(pid: int | None = None) -> set[int]:
    """Every process below one, by default this one, zombies included.

    By the parents that processes name: the kernel's own list of a thread's children may leave out a living one while another ends.
    """
    try:
        return {child.pid for child in psutil.Process(pid).children(recursive=True)}
    except psutil.NoSuchProcess:
        return set()


def _run_files() -> set[str]:
    """What named runtimes keep in the run directory."""
    try:
        return set(os.listdir(run_directory.path()))
    except OSError:
        return set()


def _descriptors() -> dict[int, str]:
    found = {}
    for entry in os.listdir("/proc/self/fd"):
        try:
            found[int(entry)] = os.readlink(f"/proc/self/fd/{entry}")
        except OSError:
            continue
    return found


def _is_segment(shown: str) -> bool:
    """By how the kernel shows it: without a name, with one that is gone, in memory of no mount."""
    return any(mark in shown for mark in ("/dev/shm/#", "/dev/shm/aspen-", "/memfd:aspen-"))


def _mappings() -> int:
    """Shared mappings of ours that this process still has."""
    with open("/proc/self/maps") as maps:
        return sum(map(_is_segment, maps))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    tiers.mark(items)
    for item in items:
        if _folder(item.path) == "api":  # tests of a file share its runtime
            item.add_marker(pytest.mark.xdist_group(str(item.path)))


@pytest.fixture(autouse=True, scope="session")
def own_run_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Runtimes of other programs, and of tests that run beside these, are neither found nor counted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("run-directory")))
        yield


@functools.cache
def _generators(module: ModuleType) -> list[np.random.Generator]:
    """The generators named RNG of a module of tests and of the modules whose functions it uses."""
    uses = [vars(module), *(value.__globals__ for value in vars(module).values() if isinstance(value, FunctionType))]
    return [names["RNG"] for names in uses if "RNG" in names]


@pytest.fixture(autouse=True)
def same_numbers_alone_and_after_others(request: pytest.FixtureRequest) -> None:
    """Starts each RNG anew, from the test's name: its numbers do not depend on the tests that ran before it in this process."""
    for rng in _generators(request.module):
        rng.bit_generator.state = type(rng.bit_generator)(zlib.crc32(request.node.nodeid.encode())).state


FAILED = pytest.StashKey[bool]()
"""Whether a test has failed. What its traceback refers to is not left behind."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    return report


@pytest.fixture(autouse=True)
def leak_audit(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test of an audited folder that leaves a segment, a process, a descriptor or a mapping."""
    if _folder(request.path) not in AUDITED:
        yield
        return
    segments, processes, descriptors, mappings, files = _segments(), _descendants(), _descriptors(), _mappings(), _run_files()
    yield
    if request.node.stash.get(FAILED, False):
        return
    # A runtime that outlives the test keeps the memory of its requests for the next ones.
    # Its workers may be others by now, and a child that has planned waits some seconds for the next plan.
    keeps = "shared_runtime" in request.fixturenames
    # Killed processes need a moment to be gone, and what is in a cycle of references goes with the garbage: a watchdog, not a wait.
    deadline = time.monotonic() + SETTLE_S
    for attempt in itertools.count():
        if attempt == 1:
            gc.collect()
            if keeps:
                request.getfixturevalue("shared_runtime").status()  # with it goes what a finalizer has left to be unloaded
        own = _descendants(request.getfixturevalue("shared_runtime").pid) if keeps else set()
        left = {
            "segments": sorted(_segments() - segments),
            "processes": sorted(_descendants() - processes - own),
            "descriptors": sorted(
                f"{fd}: {what}" for fd, what in _descriptors().items() if fd not in descriptors and not (keeps and _is_segment(what))
            ),
            "mappings": 0 if keeps else max(0, _mappings() - mappings),
            "run files": sorted(_run_files() - files),
        }
        if not any(left.values()):
            return
        if time.monotonic() > deadline:
            pytest.fail(f"left behind: { {key: value for key, value in left.items() if value} }")
        time.sleep(0.01)
