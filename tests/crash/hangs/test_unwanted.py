"""Requests that nobody waits for any more, in tiles without an end: they cost others a moment, once, and never a worker for good."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from process_tools import WATCHDOG_S, wait_until
from test_hangs import events, hook

import aspen_mp
from aspen_mp.errors import RequestTimeout

X = np.zeros(2, np.float32)
LONGEST = 1 << 31
"""Rows that a kernel looks through for some seconds, which is without an end beside the grace that these tests give it."""


def model(nodes: list[onnx.NodeProto], output: int, constants: dict[str, list[int]] | None = None) -> onnx.ModelProto:
    initial = [helper.make_tensor(name, TensorProto.INT64, [len(v)], v) for name, v in (constants or {}).items()]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
    y = helper.make_tensor_value_info("y", output, None)
    return helper.make_model(helper.make_graph(nodes, "g", [x], [y], initial), opset_imports=[helper.make_opsetid("", 17)])


def endless_loop() -> onnx.ModelProto:
    """Executed by Python, step by step."""
    values = [
        helper.make_tensor_value_info(*info)
        for info in (("i", TensorProto.INT64, []), ("c", TensorProto.BOOL, []), ("v", TensorProto.FLOAT, [2]), ("d", TensorProto.BOOL, []))
    ]
    w = helper.make_tensor_value_info("w", TensorProto.FLOAT, [2])
    nodes = [helper.make_node("Identity", ["c"], ["d"]), helper.make_node("Add", ["v", "v"], ["w"])]
    body = helper.make_graph(nodes, "body", values[:3], [values[3], w])
    return model([helper.make_node("Loop", ["", "", "x"], ["y"], body=body)], TensorProto.FLOAT)


def endless_tile() -> onnx.ModelProto:
    """Executed by a kernel, in one tile."""
    nodes = [helper.make_node("Expand", ["x", "shape"], ["e"]), helper.make_node("ArgMax", ["e"], ["y"], axis=0, keepdims=0)]
    return model(nodes, TensorProto.INT64, {"shape": [LONGEST, 2]})


def doubled() -> onnx.ModelProto:
    return model([helper.make_node("Add", ["x", "x"], ["y"])], TensorProto.FLOAT)


ENDLESS = {"loop": endless_loop, "tile": endless_tile}


def works(quick: aspen_mp.Model) -> None:
    assert (quick.run({"x": X + 1}, timeout=WATCHDOG_S)["y"] == 2).all()


def busy(runtime: aspen_mp.Runtime) -> bool:
    return all(worker["op"] for worker in runtime.workers)


@pytest.mark.parametrize("kind", ENDLESS)
def test_cancelled(kind: str) -> None:
    """All workers are in it: nobody but the planner process can notice."""
    grace = 0.3 if kind == "tile" else WATCHDOG_S / 6  # on a busy machine, Python may need some time for a step
    with aspen_mp.Runtime(workers=2, cancel_grace_s=grace, log="off") as runtime:
        endless, quick = runtime.load(ENDLESS[kind]()), runtime.load(doubled())
        works(quick)
        before = {worker["pid"] for worker in runtime.workers}
        for _ in range(2):  # again with new workers
            futures = [endless.submit({"x": X}) for _ in range(2)]
            wait_until(lambda: busy(runtime), "both workers to be in it")
            assert [future.cancel() for future in futures] == [True, True]
            works(quick)
        recovery = runtime.status()["recovery"]
        if kind == "loop":  # it asks between its steps
            assert (recovery["withdrawn"], recovery["worker_deaths"]) == (0, 0)
            assert before == {worker["pid"] for worker in runtime.workers}
        else:
            assert recovery["withdrawn"] == recovery["worker_deaths"] == 4
            assert recovery["hung"] == 0
            assert "ArgMax" in events(runtime, "worker-withdrawn")[0]["where"]
        wait_until(lambda: [w["state"] for w in runtime.workers] == ["running"] * 2, "two workers")


@pytest.mark.parametrize("kind", ENDLESS)
def test_the_client_exits(kind: str, tmp_path: Path) -> None:
    name = f"unwanted-{kind}"
    onnx.save(ENDLESS[kind](), tmp_path / "m.onnx")
    guest = f"""
import os, time, numpy as np, aspen_mp
runtime = aspen_mp.connect({name!r})
model = runtime.load({str(tmp_path / "m.onnx")!r})
futures = [model.submit({{"x": np.zeros(2, np.float32)}}) for _ in range(2)]
while not all(worker["op"] for worker in runtime.workers):
    time.sleep(0.01)
os._exit(0)
"""
    with aspen_mp.Runtime(workers=2, name=name, cancel_grace_s=0.3, log="off") as runtime:
        quick = runtime.load(doubled())
        works(quick)
        subprocess.run([sys.executable, "-c", guest], check=True, timeout=WATCHDOG_S)
        works(quick)
        wait_until(lambda: len(runtime.status()["clients"]) == 1 and not any(w["op"] for w in runtime.workers), "all to be gone")


def test_time_limits() -> None:
    """`submit` and `run_async` have a limit as `run` has. Those that end in time are not touched by theirs."""
    with aspen_mp.Runtime(workers=1, cancel_grace_s=0.1, log="off") as runtime:
        endless, quick = runtime.load(endless_tile()), runtime.load(doubled())
        with pytest.raises(RequestTimeout, match=r"did not finish within 0\.2 s"):
            endless.submit({"x": X}, timeout=0.2).result(WATCHDOG_S)
        works(quick)
        with pytest.raises(RequestTimeout):
            asyncio.run(endless.run_async({"x": X}, timeout=0.2))
        works(quick)
        with pytest.raises(RequestTimeout):
            endless.run({"x": X}, timeout=0.2)
        works(quick)
        futures = [quick.submit({"x": X}, timeout=WATCHDOG_S) for _ in range(100)]
        late = quick.submit({"x": X}, timeout=0.0)
        assert all((f.result(WATCHDOG_S)["y"] == 0).all() for f in futures)
        assert late.exception(WATCHDOG_S) is None or isinstance(late.exception(), RequestTimeout)
        with pytest.raises(ValueError, match="timeout"):
            quick.submit({"x": X}, timeout=-1.0)


def test_a_long_tile_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hook(tmp_path, monkeypatch, "import aspen_mp.control.pool.watchdog\naspen_mp.control.pool.watchdog.SLOW_S = 0.5\n")
    with aspen_mp.Runtime(workers=1, cancel_grace_s=0.1, log="off") as runtime:
        endless = runtime.load(endless_tile(), name="without-end")
        began = time.monotonic()
        future = endless.submit({"x": X})
        wait_until(lambda: bool(events(runtime, "tile-slow")), "the report")
        (event,) = events(runtime, "tile-slow")
        assert event["model"] == "without-end"
        assert "ArgMax" in str(event["op"])
        status = runtime.status()
        assert status["recovery"]["slow_tiles"] == 1
        assert status["workers"][0]["tile_s"] > 0.5  # which the report waits for
        assert began + status["workers"][0]["tile_s"] < time.monotonic()
        future.cancel()
        wait_until(lambda: not any(w["op"] for w in runtime.workers), "its end")
