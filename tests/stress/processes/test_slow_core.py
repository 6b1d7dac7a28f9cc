"""Slowed cores: something else runs there, and nothing is left behind, whoever is killed."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from process_tools import wait_until

from aspen_mp.bench import slow
from aspen_mp.bench.slow import CannotSlow, Method, SlowCore, slow_core

WATCHDOG_S = 30.0
CPU = max(os.sched_getaffinity(0))
CHILD = """
import sys
sys.path[:] = {path!r}
from aspen_mp.bench.slow import slow_core
with slow_core({cpu}, 0.5) as core:
    print(core.keeper, *core.pids, flush=True)
    sys.stdin.read()
"""


def allowed(method: Method) -> bool:
    """Whether this process has what it takes."""
    if method == "fifo":
        try:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        except PermissionError:
            return False
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    if method == "quota":
        try:
            with slow._group(CPU, 0.5):
                pass
        except OSError:
            return False
    return True


def wait_until_gone(pid: int) -> None:
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([fd], [], [], WATCHDOG_S)[0], f"process {pid} is still there"
    finally:
        os.close(fd)


def groups() -> list[Path]:
    return [*Path("/sys/fs/cgroup/cpu").glob("aspen-mp-slow-*"), *Path("/sys/fs/cgroup").glob("**/aspen-mp-slow-*")]


@pytest.mark.parametrize("method", slow.METHODS)
def test_the_core_has_a_load(method: Method) -> None:
    if not allowed(method):
        with pytest.raises(CannotSlow, match=method), slow_core(CPU, 0.4, method):
            pass
        return
    with slow_core(CPU, 0.4, method) as core:
        assert 0 < core.speed < 1
        assert core.pids
        for pid in core.pids:
            assert os.sched_getaffinity(pid) == {CPU}
            assert os.sched_getscheduler(pid) == (os.SCHED_FIFO if method == "fifo" else os.SCHED_OTHER)
        before = core.load_seconds()
        wait_until(lambda: core.load_seconds() > before, "the load to take its share")
    for pid in (core.keeper, *core.pids):
        wait_until_gone(pid)
    assert not groups()


def test_the_context_ends_it_at_an_exception() -> None:
    context = slow_core(CPU, 0.7)
    core = context.__enter__()
    assert context.__exit__(ZeroDivisionError, ZeroDivisionError(), None) is not True
    for pid in (core.keeper, *core.pids):
        wait_until_gone(pid)


@pytest.mark.parametrize("victim", ["user", "keeper"])
def test_kill(victim: str) -> None:
    """Of the process that wanted a slow core, or of the keeper: the load ends."""
    code = CHILD.format(path=sys.path, cpu=CPU)
    process = subprocess.Popen([sys.executable, "-P", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdin is not None
    keeper, *loads = map(int, process.stdout.readline().split())
    assert loads
    os.kill(process.pid if victim == "user" else keeper, signal.SIGKILL)
    for pid in (*loads, keeper) if victim == "user" else loads:
        wait_until_gone(pid)
    process.stdin.close()
    process.wait(WATCHDOG_S)
    process.stdout.close()
    if victim == "user":
        assert not groups()


@pytest.mark.parametrize("speed", [0.0, 0.01, 1.0, 2.0])
def test_speeds_that_cannot_be_had(speed: float) -> None:
    with pytest.raises(ValueError, match="slowed"), slow_core(CPU, speed):
        pass


def test_cpus_that_cannot_be_had() -> None:
    with pytest.raises(ValueError, match="CPU 4000"), slow_core(4000):
        pass


def test_what_is_refused_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next best way is taken, and `say` hears why; without any the error names each, and no process stays."""
    keepers: list[int] = []

    def refuse(self: slow._Keeper) -> SlowCore:
        keepers.append(self._process.pid)
        raise CannotSlow(f"{self._method}: not today")

    monkeypatch.setattr(slow._Keeper, "begin", refuse)
    heard: list[str] = []
    with pytest.raises(CannotSlow, match="fifo: not today; quota: not today; nice: not today"), slow_core(CPU, 0.5, say=heard.append):
        pass
    assert len(heard) == len(keepers) == 3
    for pid in keepers:
        wait_until_gone(pid)


def test_a_method_that_nobody_knows() -> None:
    with pytest.raises(ValueError, match="telepathy"), slow_core(CPU, 0.5, "telepathy"):  # type: ignore[arg-type]
        pass
