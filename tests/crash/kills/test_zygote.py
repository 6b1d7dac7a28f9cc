"""The zygote makes workers start fast, and nothing more: without it they start as well."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest
from process_tools import WATCHDOG_S, alive, chain, feeds, kill_worker, wait_until

import aspen_mp


def zygote(runtime: aspen_mp.Runtime) -> int:
    return int(runtime.status()["runtime"]["zygote"])


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def all_run(runtime: aspen_mp.Runtime, number: int) -> bool:
    return [w["state"] for w in runtime.workers] == ["running"] * number


def test_workers_are_the_planner_process_s_children() -> None:
    with aspen_mp.Runtime(workers=2) as runtime:
        runtime.add_workers(1)
        wait_until(lambda: all_run(runtime, 3), "three workers")
        pids = [w["pid"] for w in runtime.workers]
        assert {parent(pid) for pid in [*pids, zygote(runtime)]} == {runtime.pid}
        for pid in pids:
            assert len(os.listdir(f"/proc/{pid}/task")) == 1
            assert Path(f"/proc/{pid}/oom_score_adj").read_text().strip() == "800"
            # Standard ones, its own socket, what it writes to when it has parked; the rest is mapped and closed again.
            files = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd") if int(fd) > 2]
            assert sorted(name.partition(":[")[0] for name in files) == ["anon_inode", "socket"]
            assert "anon_inode:[eventfd]" in files
        assert [os.readlink(f"/proc/{zygote(runtime)}/fd/{fd}")[:7] for fd in os.listdir(f"/proc/{zygote(runtime)}/fd") if int(fd) > 2] == [
            "socket:"
        ]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV])
def test_a_zygote_that_dies_is_replaced(number: signal.Signals) -> None:
    with aspen_mp.Runtime(workers=1, max_workers=4) as runtime:
        model = chain(runtime)
        expected = model.run(feeds())["y"].tobytes()
        first = zygote(runtime)
        assert alive(first)
        futures = [model.submit(feeds()) for _ in range(8)]
        os.kill(first, number)
        runtime.add_workers(2)
        wait_until(lambda: all_run(runtime, 3), "workers without a zygote")
        wait_until(lambda: zygote(runtime) not in {0, first}, "a new zygote")
        assert not alive(first)
        kill_worker(runtime)
        wait_until(lambda: runtime.status()["recovery"]["worker_deaths"] == 1 and all_run(runtime, 3), "a worker in place of the dead one")
        assert [f.result(WATCHDOG_S)["y"].tobytes() for f in futures] == [expected] * 8
        assert [e["event"] for e in runtime.status()["events"]].count("zygote-died") == 1


def test_without_any_zygote() -> None:
    """One that dies again and again is given up; workers are new programs then."""
    with aspen_mp.Runtime(workers=1, max_workers=4) as runtime:
        model = chain(runtime)
        expected = model.run(feeds())["y"].tobytes()

        def kill() -> bool:
            pid = zygote(runtime)
            with suppress(ProcessLookupError):  # it may have ended since the runtime named it
                if pid:
                    os.kill(pid, signal.SIGKILL)
            return not pid

        wait_until(kill, "the last zygote to be given up")
        runtime.add_workers(1)
        kill_worker(runtime)
        wait_until(lambda: runtime.status()["recovery"]["worker_deaths"] == 1 and all_run(runtime, 2), "workers")
        assert model.run(feeds())["y"].tobytes() == expected


def test_a_zygote_ends_with_its_planner_process() -> None:
    with aspen_mp.Runtime(workers=1) as runtime:
        pids = [zygote(runtime), runtime.workers[0]["pid"]]
        os.kill(runtime.pid, signal.SIGKILL)
        wait_until(lambda: not any(map(alive, pids)), "zygote and worker of a killed planner process")
