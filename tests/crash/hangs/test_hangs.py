"""A worker that hangs, in a tile or between two, is ended, and another does its tile."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import small_models
from onnx import TensorProto, helper, numpy_helper
from process_tools import WATCHDOG_S, chain, feeds, wait_until

import aspen_mp
from aspen_mp.errors import PoisonTile

SPIN, SLEEP = signal.SIGUSR1, signal.SIGUSR2
# What SIGUSR1 and SIGUSR2 do in the processes of these tests: a jump to itself, and the C library's pause(), again and again. Both run in
# place of whatever the worker is doing, in C, and never return: a real hang, without a line of the product knowing of it.
ENDLESS = bytes.fromhex("ebfe" if platform.machine() == "x86_64" else "00000014")
HANG = f"""
import ctypes, mmap, signal
page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write({ENDLESS!r})
libc = ctypes.CDLL(None)
libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
libc.signal({int(SPIN)}, ctypes.addressof(ctypes.c_char.from_buffer(page)))
libc.signal({int(SLEEP)}, ctypes.cast(libc.pause, ctypes.c_void_p))
"""


def hook(folder: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Every Python process that is started from here on begins with `code`."""
    (folder / "sitecustomize.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(folder))


def events(runtime: aspen_mp.Runtime, kind: str) -> list[dict[str, object]]:
    return [event for event in runtime.status()["events"] if event["event"] == kind]


@pytest.mark.parametrize("how", [SPIN, SLEEP])
def test_a_hung_worker_is_replaced(how: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hook(tmp_path, monkeypatch, HANG)
    with aspen_mp.Runtime(workers=1, log="off") as runtime:  # that one never rests while there are requests
        model = chain(runtime)
        expected = model.run(feeds())["y"].tobytes()
        for _ in range(2):  # the second time there is nothing to map any more
            futures = [model.submit(feeds()) for _ in range(30)]
            futures[0].result(WATCHDOG_S)
            victim = runtime.workers[0]["pid"]
        os.kill(victim, how)
        assert not futures[-1].done()
        runtime.add_workers(1)
        assert [f.result(WATCHDOG_S)["y"].tobytes() for f in futures] == [expected] * 30
        wait_until(lambda: victim not in {w["pid"] for w in runtime.workers}, "the hang to be noticed")
        wait_until(lambda: [w["state"] for w in runtime.workers] == ["running"] * 2, "a new worker")
        (event,) = events(runtime, "worker-hung")
        assert event["pid"] == victim
        assert str(event["where"]).endswith("without an end" if how == SPIN else "asleep")
        assert model.run(feeds())["y"].tobytes() == expected


@pytest.mark.parametrize("how", [SPIN, SLEEP])
def test_a_worker_hangs_that_is_marked_as_parked(how: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It spins, which nobody does who sleeps; or it sleeps, which is seen when there is something that it should have woken up for."""
    hook(tmp_path, monkeypatch, HANG)
    with aspen_mp.Runtime(workers=2, log="off") as runtime:
        model = chain(runtime)
        expected = model.run(feeds())["y"].tobytes()
        wait_until(lambda: [w["idle"] for w in runtime.workers] == ["parked"] * 2, "the workers to sleep")
        victim = runtime.workers[0]["pid"]
        os.kill(victim, how)
        if how == SLEEP:
            assert model.run(feeds())["y"].tobytes() == expected  # the other one does what there is
            runtime.load(small_models.mlp()).run({"x": np.ones((4, 16), np.float32)})  # which both have to map
        wait_until(lambda: victim not in {w["pid"] for w in runtime.workers}, "the hang to be noticed")
        wait_until(lambda: [w["state"] for w in runtime.workers] == ["running"] * 2, "a new worker")
        (event,) = events(runtime, "worker-hung")
        assert event["where"] == f"parked, {'without an end' if how == SPIN else 'asleep'}"
        assert model.run(feeds())["y"].tobytes() == expected


def reduction(n: int) -> onnx.ModelProto:
    """y = where the greatest of `n` equal elements is: one tile that takes as long as one likes, and next to no memory."""
    nodes = [
        helper.make_node("Expand", ["x", "n"], ["many"], "expand"),
        helper.make_node("ArgMax", ["many"], ["y"], "reduce", axis=0, keepdims=0),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    y = helper.make_tensor_value_info("y", TensorProto.INT64, [])
    graph = helper.make_graph(nodes, "long", [x], [y], [numpy_helper.from_array(np.array([n], np.int64), "n")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


IMPATIENT = """
from aspen_mp.control.pool import watchdog
from aspen_mp.control.process import machine
watchdog.LEAST_S, watchdog.TIMES, watchdog.GROWTH, watchdog.SOON_S, machine.LOOK_S = 0.2, 0.0, 1.0, 0.02, 0.05
"""


def test_a_tile_that_hangs_worker_after_worker_fails_its_request_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A legal tile that takes some seconds, and a planner process that has 0.2 s of patience, whatever the plan says."""
    hook(tmp_path, monkeypatch, IMPATIENT)
    with aspen_mp.Runtime(workers=2, log="off") as runtime:
        other = chain(runtime)
        expected = other.run(feeds())["y"].tobytes()
        model = runtime.load(reduction(1_000_000_000))
        future = model.submit({"x": np.ones(1, np.float32)})
        others = [other.submit(feeds()) for _ in range(4)]
        with pytest.raises(PoisonTile, match=r"reduce .*: every worker that executed it has died"):
            future.result(WATCHDOG_S)
        assert [f.result(WATCHDOG_S)["y"].tobytes() for f in others] == [expected] * 4
        assert len(events(runtime, "worker-hung")) == 3
        wait_until(lambda: [w["state"] for w in runtime.workers] == ["running"] * 2, "new workers")
        assert other.run(feeds())["y"].tobytes() == expected


def test_long_is_not_hung(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python takes as long as it takes, a tile as long as the plan says; idle workers do nothing for any length of time; and on a machine
    on which a worker gets next to no CPU nothing can be told."""
    hook(tmp_path, monkeypatch, IMPATIENT.replace("0.0, 1.0", "10.0, 1.0"))
    with aspen_mp.Runtime(workers=1, log="off") as runtime:
        long = runtime.load(reduction(20_000_000))
        loop = runtime.load(small_models.loop())
        assert long.run({"x": np.zeros(1, np.float32)})["y"] == 0
        steps = 3000
        assert loop.run({"n": np.array(steps), "limit": np.array(1e9, np.float32)})["y"] == steps
        (worker,) = runtime.workers
        os.sched_setaffinity(worker["pid"], os.sched_getaffinity(0))
        os.setpriority(os.PRIO_PROCESS, worker["pid"], 19)
        model = chain(runtime)
        rivals = [subprocess.Popen([sys.executable, "-c", "while True: pass"], env={}) for _ in range(2 * len(os.sched_getaffinity(0)))]
        try:
            for _ in range(3):
                model.run(feeds())
        finally:
            for rival in rivals:
                rival.kill()
                rival.wait()
        assert runtime.workers[0]["pid"] == worker["pid"]
        assert not events(runtime, "worker-hung")
