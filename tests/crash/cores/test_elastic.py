"""The set of cores is a dial: workers come and go, down to none, while requests run."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest
import small_models
from process_tools import WATCHDOG_S, chain, feeds, wait_until

import aspen_mp
from aspen_mp.errors import PlanError, RequestError, RequestTimeout, ResourceLimitError


def events(runtime: aspen_mp.Runtime) -> list[str]:
    return [event["event"] for event in runtime.status()["events"]]


def children(pid: int, name: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                text = (entry / "stat").read_text()
            except OSError:
                continue
            words = text.rpartition(")")[2].split()
            if int(words[1]) == pid and text.partition("(")[2].startswith(name + ")"):
                found.append(int(entry.name))
    return found


def test_without_workers_requests_wait() -> None:
    with aspen_mp.Runtime(workers=2, max_workers=2) as runtime:
        model = chain(runtime)
        expected = model.run(feeds())["y"].tobytes()
        running = [model.submit(feeds()) for _ in range(4)]
        assert runtime.scale(0) == 0
        wait_until(lambda: not runtime.workers, "the workers leave")
        assert not runtime.status()["runtime"]["ready"]
        waiting = model.submit(feeds())
        with pytest.raises(RequestTimeout):
            model.run(feeds(), timeout=0.05)
        another = runtime.load(small_models.mlp())  # planning needs no worker
        later = another.submit({"x": np.ones((4, 16), np.float32)})
        with aspen_mp.Runtime(workers=1) as other:  # nor does anybody else notice
            assert chain(other).run(feeds())["y"].tobytes() == expected
        assert not waiting.done()
        assert runtime.scale(2) == 2
        assert [f.result(WATCHDOG_S)["y"].tobytes() for f in [*running, waiting]] == [expected] * 5
        assert later.result(WATCHDOG_S)["y"].shape[0] == 4
        assert runtime.status()["runtime"]["ready"]
        assert events(runtime).count("worker-left") == 2


def test_up_again_before_all_have_left() -> None:
    """Rows of leaving workers are taken again as soon as they are free, however few rows there are."""
    with aspen_mp.Runtime(workers=2, max_workers=2) as runtime:
        model = chain(runtime)
        expected = model.run(feeds())["y"].tobytes()
        futures = [model.submit(feeds()) for _ in range(6)]
        for _ in range(15):
            assert runtime.scale(0) == 0
            assert runtime.scale(2) == 2
            assert runtime.remove_workers() == 1
            assert runtime.add_workers() == 2
        assert [f.result(WATCHDOG_S)["y"].tobytes() for f in futures] == [expected] * 6
        wait_until(lambda: sum(w["state"] == "running" for w in runtime.workers) == 2, "two workers")
        with pytest.raises(ResourceLimitError, match="max_workers=2"):
            runtime.add_workers()


def test_workers_leave_by_core() -> None:
    cpu = min(os.sched_getaffinity(0))
    with aspen_mp.Runtime(cores=[cpu, cpu]) as runtime:
        model = chain(runtime)
        expected = model.run(feeds())["y"].tobytes()
        assert runtime.remove_workers(cores=[cpu]) == 1
        with pytest.raises(RequestError, match="no worker on CPU 65535"):
            runtime.remove_workers(cores=[65535])
        with pytest.raises(RequestError, match="2 workers to remove"):
            runtime.remove_workers(cores=[cpu, cpu])
        assert model.run(feeds())["y"].tobytes() == expected
        assert runtime.add_workers(cores=[cpu]) == 2
        assert model.run(feeds())["y"].tobytes() == expected


def test_scaling_while_workers_die() -> None:
    """What is asked for and what is replaced add up."""
    with aspen_mp.Runtime(workers=3) as runtime:
        model = chain(runtime)
        expected = model.run(feeds())["y"].tobytes()
        for total in (1, 3, 2, 0, 3):
            futures = [model.submit(feeds()) for _ in range(2)]
            for worker in runtime.workers[:2]:
                os.kill(worker["pid"], signal.SIGKILL)
            assert runtime.scale(total) == total
            wait_until(lambda n=total: [w["state"] for w in runtime.workers] == ["running"] * n, f"{total} workers")
            if total:
                assert [f.result(WATCHDOG_S)["y"].tobytes() for f in futures] == [expected] * 2
        assert [f.result(WATCHDOG_S)["y"].tobytes() for f in futures] == [expected] * 2


def test_a_stopped_worker_is_replaced() -> None:
    with aspen_mp.Runtime(workers=2) as runtime:
        model = chain(runtime)
        expected = model.run(feeds())["y"].tobytes()
        futures = [model.submit(feeds()) for _ in range(6)]
        futures[0].result(WATCHDOG_S)
        stopped = runtime.workers[0]["pid"]
        os.kill(stopped, signal.SIGSTOP)
        assert [f.result(WATCHDOG_S)["y"].tobytes() for f in futures] == [expected] * 6
        wait_until(lambda: stopped not in {w["pid"] for w in runtime.workers} and len(runtime.workers) == 2, "a new worker")
        assert {"worker-stopped", "worker-died", "recovered"} <= set(events(runtime))


def test_a_stopped_worker_holds_no_recovery_up() -> None:
    """Another one's death finds it stopped: it is ended at once, not after the time that a stop may take."""
    with aspen_mp.Runtime(workers=3) as runtime:
        model = chain(runtime)
        expected = model.run(feeds())["y"].tobytes()
        for _ in range(3):
            futures = [model.submit(feeds()) for _ in range(6)]
            first, second, _ = (w["pid"] for w in runtime.workers)
            os.kill(first, signal.SIGSTOP)
            os.kill(second, signal.SIGKILL)
            assert [f.result(WATCHDOG_S)["y"].tobytes() for f in futures] == [expected] * 6
            wait_until(lambda: [w["state"] for w in runtime.workers] == ["running"] * 3, "new workers")
            assert not {first, second} & {w["pid"] for w in runtime.workers}
        assert "worker-stopped" not in events(runtime)  # which it is called when nothing else ended it


def test_a_moment_s_stop_is_no_death() -> None:
    with aspen_mp.Runtime(workers=1) as runtime:
        model = chain(runtime)
        expected = model.run(feeds())["y"].tobytes()
        future = model.submit(feeds())
        pid = runtime.workers[0]["pid"]
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T", "the worker to stop")
        os.kill(pid, signal.SIGCONT)
        assert future.result(WATCHDOG_S)["y"].tobytes() == expected
        assert runtime.workers[0]["pid"] == pid


def test_a_stuck_planning_process_is_ended(tmp_path: Path) -> None:
    profile = tmp_path / "impatient.toml"
    profile.write_text("[models]\npatience_s = 1\n")
    with aspen_mp.Runtime(workers=1, profile=profile) as runtime:
        model = runtime.load(small_models.two_inputs())
        (child,) = children(runtime.pid, "aspen-plan")
        os.kill(child, signal.SIGSTOP)
        x = {"a": np.ones((5, 3), np.float32), "b": np.ones(3, np.float32)}
        with pytest.raises(PlanError, match="stuck for 1 s"):
            model.run(x)
        assert model.run(x)["sum"].shape == (5, 3)


def test_two_runtimes_share_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one gets cores that the first has left, where there are any."""
    monkeypatch.setenv("ASPEN_MP_LEASES", str(tmp_path / "cores"))
    cpus = sorted(os.sched_getaffinity(0))
    with aspen_mp.Runtime(cores=cpus[:1]) as first:
        with aspen_mp.Runtime() as second:
            assert sorted(w["cpu"] for w in second.workers) == (cpus[1:] or cpus)
            with aspen_mp.Runtime(workers=1) as third:  # none is left
                assert "core-shared" in events(third)
            assert first.scale(0) == 0
            wait_until(lambda: not first.workers, "the worker leaves")
            assert second.add_workers(1) == len(second.workers)
            assert cpus[0] in {w["cpu"] for w in second.workers}
            assert "core-shared" not in events(second) or len(cpus) == 1
            assert first.scale(1) == 1
        assert chain(first).run(feeds())["y"].shape == (1, 64, 64, 64)
