"""Plans in use are made again for other cores: requests see nothing of it but other times."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import psutil
import pytest

import aspen_mp
from aspen_mp import config

# isort: split
from process_tools import chain, feeds, wait_until


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


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_planning_child_is_killed(number: int) -> None:
    """Then the plan stays as it was."""
    with aspen_mp.Runtime(workers=1, max_workers=4) as runtime:
        model = chain(runtime)
        before, ended = plans(runtime), []

        def end() -> bool:
            for child in psutil.Process(runtime.pid).children():
                if child.name() == "aspen-plan":
                    os.kill(child.pid, number)
                    ended.append(child.pid)
            return bool(ended)

        wait_until(lambda: not any(child.name() == "aspen-plan" for child in psutil.Process(runtime.pid).children()), "the first one to go")
        with requests(model):
            runtime.add_workers(1)
            wait_until(end, "planning to begin again")
        model.run(feeds())
        assert plans(runtime) == before


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
