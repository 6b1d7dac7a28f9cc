"""Bursts of requests: their memory goes back soon after, and neither results nor forked children notice."""

from __future__ import annotations

import asyncio
import os
import random
import threading
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from process_tools import WATCHDOG_S, wait_until

import aspen_mp

MEBI = 1 << 20


def scale(rows: int, factor: float) -> onnx.ModelProto:
    """y = x * factor, of `rows` times 16 KiB."""
    shape = [rows, 4096]
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "f"], ["y"])],
        "scale",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [helper.make_tensor("f", TensorProto.FLOAT, [], [factor])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def data_bytes(runtime: aspen_mp.Runtime) -> int:
    return int(runtime.status()["memory"]["data"]["bytes"])


def x_of(rows: int, value: int) -> np.ndarray[Any, Any]:
    return np.full((rows, 4096), value, np.float32)


@pytest.mark.parametrize("way", ["submit", "threads", "loop"])
def test_the_memory_of_a_burst_goes_back_by_itself(way: str) -> None:
    """However the requests are sent, and though nothing else happens afterwards."""
    with aspen_mp.Runtime(workers=1) as runtime:
        model = runtime.load(scale(32, 3.0))
        model.run(x_of(32, 1))
        before = data_bytes(runtime)
        runtime.scale(0)
        n = 24 if way == "threads" else 60
        found: list[Any] = [None] * n

        def run(k: int) -> None:
            found[k] = model.run(x_of(32, k), timeout=WATCHDOG_S)

        async def gather() -> None:
            begun = [asyncio.ensure_future(model.run_async(x_of(32, k))) for k in range(n)]
            while data_bytes(runtime) < before + 30 * MEBI:
                await asyncio.sleep(0)
            runtime.scale(1)
            found[:] = await asyncio.gather(*begun)

        if way == "loop":
            asyncio.run(gather())
        else:
            threads = [threading.Thread(target=run, args=(k,)) for k in range(n if way == "threads" else 0)]
            for thread in threads:
                thread.start()
            futures = [model.submit(x_of(32, k)) for k in range(n if way == "submit" else 0)]
            wait_until(lambda: data_bytes(runtime) >= before + 15 * MEBI, "the burst")
            runtime.scale(1)
            for thread in threads:
                thread.join()
            found = found if threads else [future.result(WATCHDOG_S) for future in futures]
            del futures, threads
        for k, result in enumerate(found):
            assert (result["y"] == 3.0 * k).all()
        wait_until(lambda: data_bytes(runtime) <= before + MEBI, "the memory of the burst")
        wait_until(lambda: runtime._link.session()._look_at == 0.0, "the end of looks")
        assert all((result["y"] == 3.0 * k).all() for k, result in enumerate(found))


@pytest.mark.parametrize("seed", range(4))
def test_bursts_of_several_models_with_held_results_and_forks(seed: int) -> None:
    rng = random.Random(seed)
    with aspen_mp.Runtime(workers=2) as runtime:
        sizes = [1, 9, 80]  # the outputs of the last one are lent, not copied
        models = [runtime.load(scale(rows, 2.0), name=f"m{rows}") for rows in sizes]
        session = runtime._link.session()
        flying: list[tuple[int, int, Any]] = []
        held: list[tuple[int, Any]] = []
        buffers: list[tuple[int, Any]] = []
        for _ in range(40):
            k, value = rng.randrange(3), rng.randrange(1000)
            step = rng.choice(("burst", "burst", "take", "take", "look", "run", "buffers", "forget", "fork"))
            if step == "burst":
                flying += [(k, value + i, models[k].submit(x_of(sizes[k], value + i))) for i in range(rng.randrange(1, 30))]
            elif step == "take":
                for _ in range(rng.randrange(len(flying) + 1)):
                    _, sent, future = flying.pop(rng.randrange(len(flying)))
                    held.append((sent, future.result(WATCHDOG_S)["y"]))
            elif step == "look":
                session.look()
            elif step == "run":
                assert (models[k].run(x_of(sizes[k], value))["y"] == 2.0 * value).all()
            elif step == "buffers":
                filled = models[k].input_buffers()
                filled["x"][:] = value
                buffers.append((value, filled))
            elif step == "forget":
                rng.shuffle(held)
                del held[: len(held) // 2], buffers[: len(buffers) // 2]
            elif step == "fork":
                pid = os.fork()
                if pid == 0:
                    os._exit(0 if all((y == 2.0 * sent).all() for sent, y in held) else 1)
                assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, f"seed {seed}: a forked child sees other results"
            assert all((y == 2.0 * sent).all() for sent, y in held), f"seed {seed}: a held result has changed after {step}"
            assert all((filled["x"] == sent).all() for sent, filled in buffers), f"seed {seed}: buffers have changed after {step}"
        for _, sent, future in flying:
            assert (future.result(WATCHDOG_S)["y"] == 2.0 * sent).all()
        flying.clear()
        held.clear()
        buffers.clear()
        for _ in range(4):
            session.look()
        shared = 8 * 3 * MEBI  # outputs and buffers that a forked child has seen keep their regions
        assert data_bytes(runtime) <= 40 * MEBI + shared, f"seed {seed}"
        for k, model in enumerate(models):
            assert (model.run(x_of(sizes[k], 7))["y"] == 14.0).all()


def test_a_loop_of_requests_leaves_the_segment_of_the_burst() -> None:
    """The last region of a burst is in use whenever somebody looks: its request moves it when it has ended."""
    with aspen_mp.Runtime(workers=1) as runtime:
        model = runtime.load(scale(32, 2.0))
        session = runtime._link.session()
        runtime.scale(0)
        futures = [model.submit(x_of(32, k)) for k in range(80)]
        runtime.scale(1)
        for future in futures:
            future.result(WATCHDOG_S)
        del futures, future
        stop = threading.Event()
        wrong: list[int] = []

        def run() -> None:
            k = 0
            while not stop.is_set():
                k += 1
                if not (model.run(x_of(32, k))["y"] == 2.0 * k).all():
                    wrong.append(k)

        thread = threading.Thread(target=run)
        thread.start()
        wait_until(lambda: data_bytes(runtime) <= 8 * MEBI, "the memory of the burst")
        stop.set()
        thread.join()
        assert not wrong
        assert session.error is None


def test_who_sends_one_request_at_a_time_has_no_thread_for_it() -> None:
    """Nobody looks for memory of bursts where there was none."""
    with aspen_mp.Runtime(workers=1) as runtime:
        models = [runtime.load(scale(rows, 2.0)) for rows in (1, 2, 3)]
        for _ in range(3):
            for rows, model in zip((1, 2, 3), models, strict=True):
                model.run(x_of(rows, 1))
        session = runtime._link.session()
        assert session._look_at == 0.0
        assert session._resolver is None
