"""Requests whose inputs arrive in pieces, on random networks: any order of writes gives the bits of a whole request of the same plan.

Before anything is written, the request's memory is filled with garbage: NaN, or numbers that are out of range of any index. A failing case
names its seed. `check(runtime, seed)` repeats it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from process_tools import WATCHDOG_S, wait_until
from streamed_nets import Net, model

import aspen_mp
from aspen_mp.client.streams import arriving_tensors
from aspen_mp.client.streams.arriving_request import ArrivingRequest

NETS = 3000 if os.environ.get("ASPEN_MP_TIER") == "long" else 40
KILLS = 200 if os.environ.get("ASPEN_MP_TIER") == "long" else 10
F32, I64 = TensorProto.FLOAT, TensorProto.INT64
NAN, HUGE = 0xFF, 0x7F
Array = np.ndarray[Any, np.dtype[Any]]
info = helper.make_tensor_value_info


@pytest.fixture(scope="module")
def runtime() -> Iterator[aspen_mp.Runtime]:
    with aspen_mp.Runtime(workers=2) as own:
        yield own


@pytest.fixture(autouse=True)
def small_bands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arriving_tensors, "LEAST_ROWS", 1)


def spoil(request: ArrivingRequest, byte: int) -> None:
    """Fill all memory of a request."""
    region, stage = request._region, request._stage
    assert region is not None
    assert stage is not None
    memory = np.ndarray((stage.planned.region,), np.uint8, region.span.buffer, region.span.offset)
    memory[...] = byte


def pieces(rng: np.random.Generator, length: int) -> list[tuple[int, int]]:
    """Ranges of rows that cover all, in order or not."""
    cuts = sorted({0, length, *rng.integers(0, length + 1, rng.integers(0, 7)).tolist()})
    found = list(pairwise(cuts))
    if rng.random() < 0.5:
        rng.shuffle(found)
    return found


def write(rng: np.random.Generator, request: ArrivingRequest, feeds: dict[str, Array], *, wait: bool) -> None:
    """All rows of all inputs. `wait`: let bands end in between, at times."""
    todo = []
    for name, x in feeds.items():
        axis = int(rng.integers(0, max(x.ndim, 1)))
        todo.append([(name, axis, span) for span in pieces(rng, x.shape[axis] if x.ndim else 1)])
    while any(todo):
        name, axis, (first, last) = todo[rng.choice([k for k, spans in enumerate(todo) if spans])].pop(0)
        x = feeds[name]
        rows = x[(*(slice(None),) * axis, slice(first, last))] if x.ndim else x
        request.write(name, rows, first, axis=axis)
        if wait and rng.random() < 0.7:
            wait_until(lambda: request._running is None, "a band to end")


def check(runtime: aspen_mp.Runtime, seed: int) -> None:
    rng = np.random.default_rng(seed)
    net = Net(rng)
    for _ in range(rng.integers(1, 7)):
        net.grow()
    loaded = runtime.load(net.model())
    for byte in (NAN, HUGE):
        feeds = {"x": rng.standard_normal(net.shape).astype(np.float32)}
        want = at_once(loaded, feeds)
        for name, value in loaded.run(feeds).items():
            assert np.abs(want[name] - value).max() <= 1e-4 * np.ptp(value) + 1e-6, f"seed {seed}, {name}: too far"
        got = arrived(rng, loaded, feeds, byte)
        for name, value in want.items():
            assert got[name].tobytes() == value.tobytes(), f"seed {seed}, {name}"
    loaded.unload()


def at_once(loaded: aspen_mp.Model, feeds: dict[str, Array]) -> dict[str, Array]:
    """The same request with all rows in one piece, which runs whole."""
    with loaded.begin({name: x.shape for name, x in feeds.items()}) as request:
        for name, x in feeds.items():
            request.write(name, x)
        return request.result(WATCHDOG_S)


def arrived(rng: np.random.Generator, loaded: aspen_mp.Model, feeds: dict[str, Array], byte: int) -> dict[str, Array]:
    """The result of a request whose inputs come in pieces. Readers of its rows see the same."""
    with loaded.begin({name: x.shape for name, x in feeds.items()}) as request:
        spoil(request, byte)
        parts: dict[str, list[tuple[int, Array]]] = {one.name: [] for one in loaded.outputs}
        readers = [threading.Thread(target=lambda name=name: parts[name].extend(request.rows(name))) for name in parts]
        for reader in readers:
            reader.start()
        write(rng, request, feeds, wait=True)
        got = request.result(WATCHDOG_S)
        for reader in readers:
            reader.join(WATCHDOG_S)
        assert not request._at_end, "a band failed"
        assert not request._elsewhere
    for name, found in parts.items():
        same_rows(found, got[name])
    return got


def same_rows(parts: list[tuple[int, Array]], whole: Array) -> None:
    """The parts come one behind the other, and are the output."""
    if len(parts) == 1:
        assert parts[0][0] == 0
        assert parts[0][1].tobytes() == whole.tobytes()
        return
    axis = next(k for k in range(whole.ndim) if parts[0][1].shape[k] != whole.shape[k])
    assert [first for first, _ in parts] == np.cumsum([0, *(part.shape[axis] for _, part in parts[:-1])]).tolist()
    assert np.concatenate([part for _, part in parts], axis).tobytes() == whole.tobytes()


@pytest.mark.parametrize("part", range(4))
def test_pieces_have_the_bits_of_whole_requests(runtime: aspen_mp.Runtime, part: int) -> None:
    for seed in range(part, NETS, 4):
        check(runtime, seed)


def test_indices_that_have_not_arrived_are_not_looked_up(runtime: aspen_mp.Runtime) -> None:
    """Memory of missing rows holds indices that are out of range. No band fails."""
    rng = np.random.default_rng(5)
    nodes = [helper.make_node("Gather", ["table", "i"], ["g"]), helper.make_node("Relu", ["g"], ["y"])]
    loaded = runtime.load(model(nodes, [info("table", F32, [50, 6]), info("i", I64, [200])], [info("y", F32, [200, 6])]))
    for _ in range(10):
        feeds = {"table": rng.standard_normal((50, 6)).astype(np.float32), "i": rng.integers(-50, 50, 200)}
        got = arrived(rng, loaded, feeds, HUGE)
        assert got["y"].tobytes() == np.maximum(feeds["table"][feeds["i"]], 0).tobytes()
    loaded.unload()


def test_workers_die_between_and_within_bands() -> None:
    """Kills make bands begin again, and faults make them run whole, over inputs that are not there."""
    with aspen_mp.Runtime(workers=2) as runtime:
        requests_with_deaths(runtime)


def requests_with_deaths(runtime: aspen_mp.Runtime) -> None:
    rng = np.random.default_rng(2)
    net = Net(rng)
    net.shape[2:] = [96, 64]
    net.channels, weights = net.shape[1], []
    for _ in range(4):
        weights = net.draw(24, net.channels, 3, 3), net.draw(24)
        net.x, net.channels = net.add("Conv", net.x, *weights, pads=[1] * 4), 24
    loaded = runtime.load(net.model())
    early = 0
    feeds = {"x": rng.standard_normal(net.shape).astype(np.float32)}
    want = at_once(loaded, feeds)
    for k in range(KILLS):
        with loaded.begin() as request:
            spoil(request, NAN)
            for first in range(0, 96, 8):
                request.write("x", feeds["x"][:, :, first : first + 8])
                there = [w["pid"] for w in runtime.workers if w["pid"]]
                if there and rng.random() < 0.3:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(rng.choice(there)), (signal.SIGKILL, signal.SIGSEGV)[k % 2])
                early += bool(request._bands)
            got = request.result(WATCHDOG_S)
        assert all(got[name].tobytes() == value.tobytes() for name, value in want.items())
    assert early, "no band ended before the last rows"
    loaded.unload()
