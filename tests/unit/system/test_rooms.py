"""The rooms of `aspen_mp.system` hand on the standard library's own functions, also in programs that gevent or eventlet has patched."""

from __future__ import annotations

import errno
import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from services import rooms, standard_names

from aspen_mp.system import descriptors, filesystem, processes, sockets, watches

WATCHDOG_MS = 60_000
LATE = {"concurrent.futures", "queue", "random", "secrets", "shutil", "subprocess", "tempfile", "uuid"}
"""Modules of some size that few processes need."""


def standard(name: str) -> object:
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


@pytest.mark.parametrize("name", sorted(rooms()))
def test_names_are_those_of_the_standard_library(name: str) -> None:
    room = rooms()[name]
    assert sorted(room.__all__) == room.__all__
    public = {each for each, value in vars(room).items() if each[0] != "_" and callable(value)} - {"suppress", "Final"}
    assert public - set(room.__all__) <= {"Callable", "NoReturn", "PathLike"}
    for each, origin in standard_names(room).items():
        assert getattr(room, each) is standard(origin)


def loaded(code: str) -> set[str]:
    """The modules that a program has loaded at its end."""
    code += "\nimport sys; print(*sys.modules)"
    return set(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split())


def test_nothing_of_size_is_loaded_for_them() -> None:
    found = loaded(f"from aspen_mp.system import {', '.join(sorted(rooms()))}")
    assert {"aspen_mp.system.clock", "socket", "threading"} <= found
    assert not found & LATE
    assert "queue" in loaded("from aspen_mp.system import threads\nthreads.SimpleQueue()")


def test_without_what_patched_programs_lack() -> None:
    lacking = "import select, selectors\ndel select.poll, select.epoll, selectors.EpollSelector, selectors.PollSelector\n"
    assert "aspen_mp.system.sockets" in loaded(f"{lacking}import aspen_mp.client.runtime")


def test_no_other_name_of_threads_is_made_up() -> None:
    assert isinstance(rooms()["threads"], ModuleType)
    with pytest.raises(AttributeError, match="no_such_name"):
        rooms()["threads"].no_such_name  # noqa: B018


def test_a_child_runs_its_function_alone() -> None:
    ours, theirs = os.pipe()

    def child() -> None:
        os.write(theirs, str(os.getppid()).encode())
        os._exit(7)

    pid = processes.fork(child)  # type: ignore[arg-type]
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert os.read(ours, 100) == str(os.getpid()).encode()
    os.close(ours)
    os.close(theirs)


def test_folders_that_are_watched(tmp_path: Path) -> None:
    fd = watches.init()
    watches.add_watch(fd, tmp_path, watches.CREATED)
    with pytest.raises(BlockingIOError):
        descriptors.read(fd, 4096)
    poll = sockets.poll()
    poll.register(fd)
    (tmp_path / "new").touch()
    assert poll.poll(WATCHDOG_MS)
    assert b"new\0" in descriptors.read(fd, 4096)
    with pytest.raises(FileNotFoundError, match=r"cannot be watched.*fs.inotify.*gone"):
        watches.add_watch(fd, tmp_path / "gone", watches.CREATED)
    with pytest.raises(OSError, match="cannot be watched") as raised:
        watches.add_watch(-1, tmp_path, watches.CREATED)
    assert raised.value.errno == errno.EBADF
    os.close(fd)


def test_folders_for_a_while() -> None:
    folder = filesystem.mkdtemp("aspen-mp-test-")
    assert os.path.dirname(folder) == filesystem.gettempdir()
    Path(folder, "file").touch()
    filesystem.rmtree(folder)
    assert not os.path.exists(folder)
    filesystem.rmtree(folder, ignore_errors=True)
    with pytest.raises(FileNotFoundError):
        filesystem.rmtree(folder)


@pytest.mark.parametrize("text", ["nonsense=1", "partial=2", "scarce=-0.1", "delays=often"])
def test_trouble_that_is_not_known(text: str) -> None:
    from aspen_mp.system import injection

    with pytest.raises(ValueError, match=r"ASPEN_MP_INJECT|could not convert"):
        injection.Trouble(text)


def test_real_processes_meet_trouble() -> None:
    """A runtime answers although its messages come in pieces and late, and workers die at calls of the system."""
    code = """
import numpy as np, aspen_mp
from simulation import models
known = models.known()
with aspen_mp.Runtime(2, log="off") as runtime:
    for each in known:
        model = runtime.load(each.data)
        for seed in range(5):
            feeds = each.feeds(seed, each.lengths[seed % len(each.lengths)])
            for name, wanted in each.answer(feeds).items():
                assert np.array_equal(model.run(feeds)[name], wanted)
print("right")
"""
    tests = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "ASPEN_MP_INJECT": "seed=3,partial=0.3,delays=0.05,kill-worker=0.002", "PYTHONPATH": str(tests)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=600, check=False)
    assert done.stdout == "right\n", done.stderr
