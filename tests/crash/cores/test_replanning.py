"""Plans in use are made again for other cores: requests see nothing of it but other times."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import pytest

import aspen_mp
from aspen_mp import config

# isort: split
from process_tools import chain, feeds, planning_children, small_models, wait_until


def plans(runtime: aspen_mp.Runtime) -> list[int]:
    return [plan["plan"] for model in runtime.status()["models"] for plan in model["plans"]]


@contextmanager
def requests(*models: aspen_mp.Model) -> Iterator[list[int]]:
    """Requests of each of these models by a thread of its own, one after the other; results must not change. How many, in the end."""
    ended, done, wrong = threading.Event(), [0] * len(models), []

    def run(k: int) -> None:
        try:
            expected = models[k].run(feeds())["y"].tobytes()
            buffers = models[k].input_buffers()
            buffers["x"][...] = feeds()["x"]
            while not ended.is_set():
                assert models[k].run(feeds())["y"].tobytes() == expected
                assert models[k].submit(feeds()).result()["y"].tobytes() == expected
                assert models[k].run(buffers)["y"].tobytes() == expected
                done[k] += 1
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=run, args=(k,)) for k in range(len(models))]
    for thread in threads:
        thread.start()
    try:
        yield done
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert not wrong, wrong
    assert all(done)


def test_workers_come_and_go() -> None:
    """Plans follow, for every client; the old ones and their segments go."""
    with aspen_mp.Runtime(workers=1, max_workers=4) as runtime:
        model = chain(runtime)
        before = plans(runtime)
        with requests(model, chain(runtime)) as done:
            wait_until(lambda: done[0] > 0, "requests")
            runtime.add_workers(1)
            wait_until(lambda: plans(runtime) not in (before, []), "another plan")
        wait_until(lambda: runtime.status()["memory"]["plan"]["segments"] == 1, "the old one to go")
        model.run(feeds())


def hold(runtime: aspen_mp.Runtime) -> int:
    """Stops the next planning child, in whatever it is at."""
    found: list[int] = []

    def stopped() -> bool:
        for pid in planning_children(runtime):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                found.append(pid)
        return bool(found)

    wait_until(stopped, "planning to begin again")
    return found[0]


def events(runtime: aspen_mp.Runtime, name: str) -> list[dict[str, Any]]:
    return [event for event in runtime.status()["events"] if event["event"] == name]


@pytest.mark.parametrize("number", [signal.SIGSEGV])  # simulated histories have SIGKILL
def test_a_planning_child_is_killed(number: int) -> None:
    """Then the plan stays as it was."""
    with aspen_mp.Runtime(workers=1, max_workers=8, log="off") as runtime:
        model = chain(runtime)
        wait_until(lambda: not planning_children(runtime), "the first one to go")
        with requests(model):
            while not events(runtime, "not-replanned"):
                before, made = plans(runtime), len(events(runtime, "replanned"))
                runtime.add_workers(1)
                pid = hold(runtime)
                # Its answer is read before any question that comes later: after some of those it is clear whether it had given one.
                late = [len(events(runtime, "replanned")) > made for _ in range(5)]
                os.kill(pid, number)
                os.kill(pid, signal.SIGCONT)
                if not late[-1]:
                    wait_until(lambda: bool(events(runtime, "not-replanned")), "the end of planning")
                    assert plans(runtime) == before
                wait_until(lambda pid=pid: pid not in planning_children(runtime), "it to go")
        model.run(feeds())


def test_a_client_does_not_wait_for_it() -> None:
    """Other shapes of the model are planned at once, though the plan in use is being made again; then that is."""
    with aspen_mp.Runtime(workers=1, max_workers=8, log="off") as runtime:
        model = runtime.load(small_models.mlp("n"))
        shapes = [{"x": np.ones((n, 16), np.float32)} for n in range(1, 4)]
        expected = [model.run(x)["y"] for x in shapes[:2]]
        wait_until(lambda: not planning_children(runtime), "the first one to go")
        runtime.add_workers(1)
        stop = threading.Event()
        busy = threading.Thread(target=lambda: [model.run(shapes[0]) for _ in iter(stop.is_set, True)])
        busy.start()
        try:
            hold(runtime)
            assert model.run(shapes[2])["y"].shape == (3, 8)
        finally:
            stop.set()
            busy.join()
        assert [model.run(x)["y"].tobytes() for x in shapes[:2]] == [y.tobytes() for y in expected]
        assert not events(runtime, "not-replanned")


def test_it_can_be_switched_off() -> None:
    profile = config.Profile(models=config.Models(replan=False))
    with aspen_mp.Runtime(workers=1, max_workers=4, profile=profile) as runtime:
        model = chain(runtime)
        before = plans(runtime)
        runtime.add_workers(1)
        looks = runtime.status()["runtime"]["uptime_s"]
        with requests(model):
            wait_until(lambda: runtime.status()["runtime"]["uptime_s"] > looks + 6, "some looks")
        assert plans(runtime) == before
        assert np.isfinite(model.run(feeds())["y"]).all()
