"""Inputs that are read into the runtime's memory: right results, requests that are cancelled, and when there are none."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import serving_tools as tools
import small_models

import aspen_mp
from aspen_mp.serving.buffers import Buffers
from aspen_mp.serving.protocol import inference
from aspen_mp.serving.protocol.messages import Request

SHAPE = (1, 64, 64, 64)


@pytest.fixture
def runtime() -> Iterator[aspen_mp.Runtime]:
    with aspen_mp.Runtime(workers=1) as found:
        yield found


def loaded(runtime: aspen_mp.Runtime) -> aspen_mp.Model:
    return runtime.load(small_models.conv_chain(4, 64, 64))


def x_of(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(SHAPE).astype(np.float32)


def request(shape: tuple[int, ...] = SHAPE, **more: Any) -> Request:
    tensor = {"name": "x", "shape": shape, "datatype": "FP32"}
    return inference.decoded(
        json.dumps({"inputs": [tensor | (more or {"parameters": {"binary_data_size": 4 * int(np.prod(shape))}})]}).encode()
    )


async def until_there(buffers: Buffers, number: int) -> None:
    """Asks until so many were made: one request after the other has them made in the background."""
    deadline = time.monotonic() + tools.WATCHDOG_S
    taken = []
    while len(taken) < number:
        assert time.monotonic() < deadline
        rooms = buffers.rooms()
        rooms.open(request())
        if rooms.of("x", np.dtype(np.float32)) is not None:
            taken.append(rooms)
        await asyncio.sleep(0.001)
    for rooms in taken:
        rooms.__exit__(None, None, None)


async def ask(model: aspen_mp.Model, buffers: Buffers, x: np.ndarray) -> tuple[np.ndarray, bool]:
    """The output, and whether the input was read in place."""
    with buffers.rooms() as rooms:
        rooms.open(request())
        room = rooms.of("x", x.dtype)
        array = np.empty(SHAPE, np.float32) if room is None else room
        array[...] = x
        await asyncio.sleep(0)
        results = await model.run_async({"x": array}, copy=False)
        return results["y"], room is not None


def test_results_are_those_of_copied_inputs(runtime: aspen_mp.Runtime) -> None:
    model = loaded(runtime)
    expected = [model.run({"x": x_of(seed)})["y"].tobytes() for seed in range(12)]

    async def work() -> None:
        buffers = Buffers(model)
        await until_there(buffers, 2)
        before = model.transfers
        for _ in range(5):  # more at a time than there are buffers: the others are copied
            found = await asyncio.gather(*(ask(model, buffers, x_of(seed)) for seed in range(12)))
            assert [y.tobytes() for y, _ in found] == expected
        assert any(in_place for _, in_place in found)
        assert model.transfers.in_place_bytes > before.in_place_bytes
        buffers.close()

    asyncio.run(work())


def test_requests_that_are_cancelled_keep_what_workers_read(runtime: aspen_mp.Runtime) -> None:
    model = loaded(runtime)
    expected = [model.run({"x": x_of(seed)})["y"].tobytes() for seed in range(3)]

    async def work() -> None:
        buffers = Buffers(model)
        await until_there(buffers, 2)
        for turn in range(20):
            task = asyncio.create_task(ask(model, buffers, x_of(7)))
            for _ in range(turn % 4):
                await asyncio.sleep(0)
            task.cancel()
            found = await asyncio.gather(*(ask(model, buffers, x_of(seed)) for seed in range(3)))
            assert [y.tobytes() for y, _ in found] == expected
            await asyncio.wait([task])
        buffers.close()

    asyncio.run(work())


@pytest.mark.parametrize(
    "asked", [request((1, 2, 2, 2)), request(data=[1.0]), request((2, 64, 64, 64))], ids=["small", "JSON", "wrong shape"]
)
def test_requests_without_buffers(runtime: aspen_mp.Runtime, asked: Request) -> None:
    model = loaded(runtime)

    async def work() -> None:
        buffers = Buffers(model)
        for _ in range(20):
            with buffers.rooms() as rooms:
                rooms.open(asked)
                assert rooms.of("x", np.dtype(np.float32)) is None
            await asyncio.sleep(0.001)
        buffers.close()

    asyncio.run(work())


def test_buffers_of_a_runtime_that_was_lost_are_not_used_again(runtime: aspen_mp.Runtime) -> None:
    """One request still has them when the next one finds another runtime."""
    model = loaded(runtime)

    async def work() -> None:
        buffers = Buffers(model)
        await until_there(buffers, 1)
        with buffers.rooms() as rooms:
            rooms.open(request())
            assert rooms.of("x", np.dtype(np.float32)) is not None
            buffers._model = SimpleNamespace(home="another", input_buffers=model.input_buffers)  # type: ignore[assignment]
            with buffers.rooms() as later:
                later.open(request())
                assert later.of("x", np.dtype(np.float32)) is None
        assert not any(buffers._free.values())
        assert (buffers._made, buffers._nbytes) == (0, 0)
        buffers.close()

    asyncio.run(work())


def test_no_buffers_after_the_end(runtime: aspen_mp.Runtime) -> None:
    model = loaded(runtime)

    async def work() -> None:
        buffers = Buffers(model)
        await until_there(buffers, 1)
        with buffers.rooms() as rooms:
            rooms.open(request())
            buffers.close()
        with buffers.rooms() as rooms:
            rooms.open(request())
            assert rooms.of("x", np.dtype(np.float32)) is None

    asyncio.run(work())
