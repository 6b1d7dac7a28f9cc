"""What tests that end processes have in common."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
import small_models

import aspen_mp

WATCHDOG_S = 60.0


def feeds() -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(0).standard_normal((1, 64, 64, 64)).astype(np.float32)}


def chain(runtime: aspen_mp.Runtime) -> aspen_mp.Model:
    return runtime.load(small_models.conv_chain(24, 64, 64))


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def asleep(pid: int) -> bool:
    """Whether every thread of a process waits in the kernel."""
    return all(each.read_text().rpartition(")")[2].split()[0] == "S" for each in Path(f"/proc/{pid}/task").glob("*/stat"))


def _turns(pid: int) -> int:
    """How often threads of a process have had a processor and given it up."""
    text = "".join(each.read_text() for each in Path(f"/proc/{pid}/task").glob("*/status"))
    return sum(int(line.split()[1]) for line in text.splitlines() if "ctxt_switches" in line)


def wait_until_idle(pids: list[int]) -> None:
    """Until none of these processes has had a turn for half a second: that is so of sleeping ones, whatever else runs."""

    def idle() -> bool:
        before = [_turns(pid) for pid in pids]
        time.sleep(0.5)
        return [_turns(pid) for pid in pids] == before

    wait_until(idle, "processes to sleep")


def descendants(pid: int, wanted: Callable[[psutil.Process], bool]) -> list[psutil.Process]:
    """The processes below one that are `wanted`. Any may end while it is looked at, and then is none of them."""
    found = []
    for process in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # a zombie too
            if wanted(process):
                found.append(process)
    return found


def planning_children(runtime: aspen_mp.Runtime) -> list[int]:
    return [process.pid for process in descendants(runtime.pid, lambda process: process.name() == "aspen-plan")]


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WATCHDOG_S
    while not condition():
        assert time.monotonic() < deadline, f"watchdog: {what}"
        time.sleep(0.005)


@contextlib.contextmanager
def without_workers(runtime: aspen_mp.Runtime) -> Iterator[None]:
    """No request begins or ends meanwhile, however long its program waits for a processor."""
    before = len(runtime.workers)
    runtime.scale(0)
    wait_until(lambda: not runtime.workers, "the workers to leave")
    try:
        yield
    finally:
        runtime.scale(before)


def kill_worker(runtime: aspen_mp.Runtime, number: int = signal.SIGKILL) -> None:
    """Send a signal to a worker. One that is named may have ended, or may not have begun: then it is another's turn, or a later one."""

    def sent() -> bool:
        for pid in [worker["pid"] for worker in runtime.workers if worker["pid"]]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
                return True
        return False

    wait_until(sent, "a worker that can be sent a signal")


def own_cgroup(controller: str, pid: int | str = "self") -> Path:
    """A process's cgroup of version 1."""
    lines = (line.split(":") for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines())
    own = next((line for line in lines if controller in line[1].split(",")), None)
    return Path("/sys/fs/cgroup") / (own[1] if own else "") / (own[2].lstrip("/") if own else "")


@contextlib.contextmanager
def cgroup(controller: str) -> Iterator[Path]:
    """A cgroup of our own, where this machine lets us make one."""
    folder = own_cgroup(controller) / f"aspen-test-{os.getpid()}"
    made = None
    with contextlib.suppress(OSError):
        folder.mkdir()
        made = folder
    try:
        if made is None or not any(made.glob(f"{controller}.*")):
            pytest.skip(f"no cgroup with {controller} can be made here")
        yield made
    finally:
        if made is not None:
            wait_until(lambda: not (made / "cgroup.procs").read_text(), "the cgroup to be empty")
            made.rmdir()
