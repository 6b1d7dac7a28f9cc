"""Descriptors, memory and processes run out in the planner process of a runtime that works: who asks for something is told so, nothing else
is lost, and when there is enough again it is as before."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import small_models
from process_tools import WATCHDOG_S, cgroup, chain, feeds, own_cgroup, wait_until

import aspen_mp
from aspen_mp.errors import ResourceLimitError


@contextlib.contextmanager
def limited(pid: int, what: int, most: int) -> Iterator[None]:
    """The soft limit of a living process is `most` meanwhile."""
    before = resource.prlimit(pid, what)
    resource.prlimit(pid, what, (most, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, what, before)


def events(runtime: aspen_mp.Runtime, name: str) -> list[dict[str, Any]]:
    return [event for event in runtime.status()["events"] if event["event"] == name]


def settled(runtime: aspen_mp.Runtime, n: int) -> bool:
    workers = runtime.workers
    return len(workers) == n and all(w["state"] == "running" for w in workers)


def kill_workers(runtime: aspen_mp.Runtime, n: int) -> None:
    """`n` of them, one after the other, each when the one before has been seen to."""
    for _ in range(n):
        deaths = runtime.status()["recovery"]["worker_deaths"]
        os.kill(next(w["pid"] for w in runtime.workers if w["state"] == "running"), signal.SIGKILL)
        wait_until(lambda deaths=deaths: runtime.status()["recovery"]["worker_deaths"] > deaths, "the death to be seen")


def looks(runtime: aspen_mp.Runtime, n: int) -> None:
    """Time for as many looks at the machine."""
    end = time.monotonic() + n * 1.1
    wait_until(lambda: time.monotonic() > end, "looks")


STARTS = """
import os, resource, sys
import aspen_mp
from aspen_mp import errors
from aspen_mp.client import model, runtime, session
most = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
try:
    with aspen_mp.Runtime(workers=2) as started:
        print("started", len(started.workers))
except errors.ResourceLimitError as error:
    print("limit", error)
except errors.RuntimeLost as error:
    print("lost", error)
"""


def test_starts_with_few_descriptors() -> None:
    """Whatever number of them is too small is said to be, in place of a runtime that was lost; but for the interpreter's own start, which
    ends in its own words."""
    environment, answers = {**os.environ, "ASPEN_MP_CACHE": "off"}, list[str]()
    for most in range(4, 40):
        command = [sys.executable, "-c", STARTS, str(most)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=WATCHDOG_S, env=environment, check=False)
        assert ended.returncode == 0, (most, ended.stderr)
        answers.append(ended.stdout)
        if "Fatal Python error" in ended.stderr:
            assert answers[-1].startswith("lost "), (most, answers[-1])
            continue
        assert ended.stderr == ""
        if answers[-1] == "started 2\n":
            break
        assert answers[-1].startswith("limit "), (most, answers[-1])
    assert answers[-1] == "started 2\n"
    assert len(answers) > 10
    assert sum(answer.startswith("lost ") for answer in answers) <= 2


@pytest.mark.parametrize(("dead", "zygote"), [(1, True), (2, False)])
def test_no_descriptors(dead: int, zygote: bool, tmp_path: Path) -> None:
    """Workers die (one of two; both) and models are loaded while the planner process cannot get a single descriptor. The zygote as well."""
    file = str(tmp_path / "mlp.onnx")
    onnx.save(small_models.mlp(), file)
    with aspen_mp.Runtime(workers=2) as runtime:
        model = chain(runtime)
        expected = model.run(feeds())["y"].tobytes()
        futures = [model.submit(feeds()) for _ in range(12)]
        with limited(runtime.pid, resource.RLIMIT_NOFILE, 3):
            if not zygote:
                os.kill(runtime.status()["runtime"]["zygote"], signal.SIGKILL)
            kill_workers(runtime, dead)
            for source in (file, small_models.mlp(), file):
                with pytest.raises(ResourceLimitError):
                    runtime.load(source)
            with pytest.raises(ResourceLimitError):
                runtime.add_workers(1)
            looks(runtime, 2)
            if dead < 2:
                assert [f.result(WATCHDOG_S)["y"].tobytes() for f in futures] == [expected] * 12
            assert len(runtime.workers) == 2 - dead
            assert len(events(runtime, "worker-not-started")) == 1
            assert len(events(runtime, "planner-lacks")) == 1
            assert not events(runtime, "machine-changed")
        assert [f.result(WATCHDOG_S)["y"].tobytes() for f in futures] == [expected] * 12
        wait_until(lambda: settled(runtime, 2), "two workers")
        wait_until(lambda: runtime.status()["runtime"]["zygote"] != 0, "a zygote")
        answers = [runtime.load(source).run({"x": np.ones((4, 16), np.float32)})["y"] for source in (file, small_models.mlp())]
        assert answers[0].tobytes() == answers[1].tobytes()
        assert runtime.add_workers(1) == 3
        kill_workers(runtime, 1)
        wait_until(lambda: settled(runtime, 3), "three workers")
        assert model.run(feeds())["y"].tobytes() == expected
        assert runtime.status()["recovery"]["given_up"] == 0


def address_space(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()


def test_no_memory_to_recover_with() -> None:
    """Arenas cannot be mapped for want of address space: the world stands still, and goes on as soon as they can be."""
    with aspen_mp.Runtime(workers=2) as runtime:
        model = chain(runtime)
        expected = model.run(feeds())["y"].tobytes()
        futures = [model.submit(feeds()) for _ in range(12)]
        runtime.status()  # after which nothing is mapped any more that was for a request of ours
        with limited(runtime.pid, resource.RLIMIT_AS, address_space(runtime.pid)):
            kill_workers(runtime, 1)
            kill_workers(runtime, 1)
            for _ in range(2):
                with pytest.raises(ResourceLimitError):
                    runtime.load(small_models.mlp())
            looks(runtime, 2)
            assert runtime.status()["recovery"]["recoveries"] == 0
            assert len(events(runtime, "recovery-waits")) == 1
        assert [f.result(WATCHDOG_S)["y"].tobytes() for f in futures] == [expected] * 12
        wait_until(lambda: settled(runtime, 2), "two workers")
        assert runtime.status()["recovery"]["recoveries"] == 1
        assert runtime.load(small_models.mlp()).run({"x": np.ones((4, 16), np.float32)})["y"].shape == (4, 8)


@contextlib.contextmanager
def no_processes(pids: list[int]) -> Iterator[None]:
    """These cannot fork. Nobody may be limited who may do anything, so a superuser's are put into a group of their own."""
    if os.getuid():
        with contextlib.ExitStack() as stack:
            for pid in pids:
                stack.enter_context(limited(pid, resource.RLIMIT_NPROC, 1))
            yield
        return
    with cgroup("pids") as box:
        before = {pid: own_cgroup("pids", pid) for pid in pids}
        for pid in pids:
            (box / "cgroup.procs").write_text(str(pid))
        (box / "pids.max").write_text(str(len(pids)))
        try:
            yield
        finally:
            for pid, folder in before.items():
                with contextlib.suppress(ProcessLookupError):
                    (folder / "cgroup.procs").write_text(str(pid))


def test_no_processes(tmp_path: Path) -> None:
    with aspen_mp.Runtime(workers=2) as runtime:
        model = chain(runtime)
        expected = model.run(feeds())["y"].tobytes()
        futures = [model.submit(feeds()) for _ in range(12)]
        with no_processes([runtime.pid, runtime.status()["runtime"]["zygote"]]):
            kill_workers(runtime, 2)
            for _ in range(2):
                with pytest.raises(ResourceLimitError):
                    runtime.load(small_models.mlp())
            with pytest.raises(ResourceLimitError):
                runtime.add_workers(1)
            looks(runtime, 2)
            assert not runtime.workers
            assert len(events(runtime, "worker-not-started")) == 1
        assert [f.result(WATCHDOG_S)["y"].tobytes() for f in futures] == [expected] * 12
        wait_until(lambda: settled(runtime, 2), "two workers")
        assert runtime.load(small_models.mlp()).run({"x": np.ones((4, 16), np.float32)})["y"].shape == (4, 8)


_START = """
import resource, sys
import aspen_mp, aspen_mp.control.process.main, aspen_mp.client.runtime, aspen_mp.client.session
from aspen_mp.errors import ResourceLimitError
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]),) * 2)
try:
    with aspen_mp.Runtime(workers=1):
        print("runs")
except ResourceLimitError as error:
    print(error)
"""


@pytest.mark.parametrize("most", [10, 17, 18])
def test_too_few_descriptors_to_start(most: int) -> None:
    done = subprocess.run([sys.executable, "-c", _START, str(most)], capture_output=True, text=True, timeout=WATCHDOG_S, check=True)
    assert "descriptor" in done.stdout
