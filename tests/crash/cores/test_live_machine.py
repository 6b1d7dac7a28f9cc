"""The machine changes while a runtime runs: affinity mask, cpuset and CPU quota. Workers follow, requests go on."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
from process_tools import WATCHDOG_S, cgroup, chain, feeds, wait_until

import aspen_mp

CPUS = sorted(os.sched_getaffinity(0))
several = pytest.mark.skipif(len(CPUS) < 2, reason="takes two CPUs")


def cpus(runtime: aspen_mp.Runtime) -> list[int]:
    """Where its workers are, while nobody is on his way."""
    workers = runtime.workers
    return sorted(w["cpu"] for w in workers) if all(w["state"] == "running" for w in workers) else []


def affinity(runtime: aspen_mp.Runtime) -> list[set[int]]:
    return [os.sched_getaffinity(worker["pid"]) for worker in runtime.workers]


def changes(runtime: aspen_mp.Runtime) -> list[dict[str, object]]:
    return [event for event in runtime.status()["events"] if event["event"] == "machine-changed"]


class Root:
    """A made-up /proc and /sys for the planner process: a cgroup of version 2 with a cpuset and a quota."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder / "root"
        self.put("proc/self/cgroup", "0::/box")
        self.put("proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate")
        hook = folder / "hook"
        hook.mkdir()
        # Python imports it in every process that is started from here on.
        (hook / "sitecustomize.py").write_text(f"from aspen_mp.workers import topology\ntopology.ROOT = {str(self._folder)!r}\n")
        monkeypatch.setenv("PYTHONPATH", str(hook))

    def put(self, path: str, text: str) -> None:
        file = self._folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        new = file.with_suffix(".new")
        new.write_text(text + "\n")
        new.rename(file)


@several
def test_the_affinity_mask_changes() -> None:
    """A runtime whose user gave no number follows; requests of before and after have the same bits."""
    with aspen_mp.Runtime() as runtime, aspen_mp.Runtime(cores=CPUS[:2]) as fixed:
        assert cpus(runtime) == CPUS
        models = [chain(runtime), chain(fixed)]
        expected = models[0].run(feeds())["y"].tobytes()
        for mask in (CPUS[1:2], CPUS):
            futures = [model.submit(feeds()) for model in models for _ in range(20)]
            for server in (runtime.pid, fixed.pid):
                os.sched_setaffinity(server, mask)
            wait_until(lambda mask=mask: cpus(runtime) == mask, f"workers on {mask}")
            wait_until(lambda mask=mask: cpus(fixed) == (mask * 2)[:2], f"two workers on {mask}")
            assert [f.result(WATCHDOG_S)["y"].tobytes() for f in futures] == [expected] * 40
            assert all(w["shared"] == (len(mask) == 1) for w in fixed.workers)
        assert [(e["workers"], e["level"]) for e in changes(runtime)] == [(1, "info"), (len(CPUS), "info")]
        assert [(e["workers"], e["level"]) for e in changes(fixed)] == [(2, "warning"), (2, "info")]
        assert "2 workers on 1 CPU" in str(changes(fixed)[0]["why"])
        assert runtime.status()["machine"]["changes"] == 2
        for one in (runtime, fixed):
            assert one.status()["recovery"]["worker_deaths"] == 0


@several
def test_cpuset_and_quota_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = Root(tmp_path, monkeypatch)
    root.put("sys/fs/cgroup/box/cpuset.cpus.effective", str(CPUS[1]))
    root.put("sys/fs/cgroup/box/cpu.max", "max 100000")
    with aspen_mp.Runtime() as runtime:
        assert cpus(runtime) == CPUS[1:2]
        model = chain(runtime)
        expected = model.run(feeds())["y"].tobytes()
        root.put("sys/fs/cgroup/box/cpuset.cpus.effective", f"{CPUS[0]},{CPUS[1]}")
        wait_until(lambda: cpus(runtime) == CPUS[:2], "a second worker")
        root.put("sys/fs/cgroup/box/cpu.max", "150000 100000")
        wait_until(lambda: len(cpus(runtime)) == 1, "as many workers as the quota pays for")
        assert runtime.status()["machine"]["cpu_quota"] == 1.5
        assert runtime.scale(2) == 2  # from now on it is the user's number
        root.put("sys/fs/cgroup/box/cpu.max", "50000 100000")
        wait_until(lambda: runtime.status()["machine"]["cpu_quota"] == 0.5, "the change to be seen")
        assert len(cpus(runtime)) == 2
        assert runtime.scale(None) == 1
        assert runtime.status()["machine"]["workers"] == "follow"
        wait_until(lambda: len(cpus(runtime)) == 1, "the quota to count again")
        assert model.run(feeds())["y"].tobytes() == expected
        assert [e["workers"] for e in changes(runtime)] == [2, 1, 2]


@several
def test_a_real_cpuset_changes() -> None:
    """The kernel moves every process of the group at once, workers too, whatever they are pinned to."""
    with cgroup("cpuset") as box:
        if (box / "cpuset.mems").exists() and not (box / "cpuset.mems").read_text().strip():
            (box / "cpuset.mems").write_text("0")
        (box / "cpuset.cpus").write_text(f"{CPUS[0]},{CPUS[1]}")
        with aspen_mp.Runtime() as runtime:
            model = chain(runtime)
            expected = model.run(feeds())["y"].tobytes()
            planner = psutil.Process(runtime.pid)
            for process in (planner, *planner.children()):
                (box / "cgroup.procs").write_text(str(process.pid))
            wait_until(lambda: cpus(runtime) == CPUS[:2], "two workers")
            for chosen in (CPUS[1:2], CPUS[:2]):
                futures = [model.submit(feeds()) for _ in range(20)]
                (box / "cpuset.cpus").write_text(",".join(map(str, chosen)))
                wait_until(lambda chosen=chosen: cpus(runtime) == chosen, f"workers on {chosen}")
                assert [f.result(WATCHDOG_S)["y"].tobytes() for f in futures] == [expected] * 20
            for worker in runtime.workers:
                assert os.sched_getaffinity(worker["pid"]) == {worker["cpu"]}


@several
def test_a_core_that_another_runtime_gives_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASPEN_MP_LEASES", str(tmp_path / "cores"))
    with aspen_mp.Runtime(cores=CPUS) as all_of_them, aspen_mp.Runtime(workers=1) as guest:
        assert guest.workers[0]["shared"]
        assert affinity(guest) == [set(CPUS)]  # others were there first, on every core
        assert guest.status()["machine"]["shared_cpus"] == str(guest.workers[0]["cpu"])
        model = chain(guest)
        expected = model.run(feeds())["y"].tobytes()
        free = next(c for c in CPUS if c != guest.workers[0]["cpu"])
        all_of_them.remove_workers(cores=[free])
        futures = [model.submit(feeds()) for _ in range(20)]
        wait_until(lambda: cpus(guest) == [free] and not guest.workers[0]["shared"], "a core of its own")
        assert affinity(guest) == [{free}]
        assert [f.result(WATCHDOG_S)["y"].tobytes() for f in futures] == [expected] * 20


@several
def test_killed_runtimes_leave_their_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is killed: the others spread over the cores, and each is bound to its own where there are enough."""
    monkeypatch.setenv("ASPEN_MP_LEASES", str(tmp_path / "cores"))
    with ExitStack() as stack:
        runtimes = [stack.enter_context(aspen_mp.Runtime(workers=1)) for _ in range(2 * len(CPUS[:2]) + 1)]
        stays = [runtimes[0], runtimes[-1]]
        expected = chain(stays[1]).run(feeds())["y"].tobytes()
        for runtime in runtimes[1:-1]:
            os.kill(runtime.status()["runtime"]["pid"], signal.SIGKILL)
        wait_until(lambda: all(cpus(r) and not r.workers[0]["shared"] for r in stays), "cores of their own")
        assert sorted(affinity(stays[0]) + affinity(stays[1]), key=min) == [{cpu} for cpu in sorted(cpus(stays[0]) + cpus(stays[1]))]
        assert cpus(stays[0]) != cpus(stays[1])
        assert chain(stays[1]).run(feeds())["y"].tobytes() == expected
