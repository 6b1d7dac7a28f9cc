"""Requests whose inputs arrive in pieces, as users meet them: rows, errors, time limits, and what a lost writer leaves."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest
import small_models
from onnx import TensorProto, helper, numpy_helper
from process_tools import WATCHDOG_S, wait_until

import aspen_mp
from aspen_mp.client.requests.stage import Short, Stale
from aspen_mp.client.streams.arriving_request import ArrivingRequest
from aspen_mp.client.streams.arriving_tensors import ArrivingOutput
from aspen_mp.errors import DeadlineMissed, RequestCancelled, RequestError, RequestTimeout, RuntimeLost

F32 = TensorProto.FLOAT
ROWS, CHANNELS = 64, 4
Array = np.ndarray[Any, np.dtype[Any]]


@pytest.fixture(scope="module")
def runtime() -> Iterator[aspen_mp.Runtime]:
    with aspen_mp.Runtime(workers=2) as own:
        yield own


Load = Callable[[Any], aspen_mp.Model]


@pytest.fixture
def load(runtime: aspen_mp.Runtime) -> Iterator[Callable[[Any], aspen_mp.Model]]:
    """Loads models for a test."""
    loaded: list[aspen_mp.Model] = []

    def more(model: Any) -> aspen_mp.Model:
        loaded.append(runtime.load(model))
        return loaded[-1]

    yield more
    for model in loaded:
        model.unload()


@pytest.fixture
def chain(load: Load) -> aspen_mp.Model:
    """Convolutions over an image."""
    return load(small_models.conv_chain(3, CHANNELS, ROWS))


def image(model: aspen_mp.Model, seed: int = 0) -> Array:
    shape = tuple(int(d) for d in model.inputs[0].shape or ())
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def name_of(model: aspen_mp.Model) -> str:
    return model.inputs[0].name


def graph(nodes: Any, inputs: Any, outputs: Any) -> Any:
    made = helper.make_graph(nodes, "g", inputs, outputs)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def info(name: str, *shape: int) -> Any:
    return helper.make_tensor_value_info(name, F32, shape)


def idle(model: aspen_mp.Model) -> int:
    """Regions that wait for a request that keeps activations."""
    return sum(len(stage._idle) for node in model._tree.for_streams("rows")._roots.values() for stage in node.stages())


def write_four(request: ArrivingRequest, x: Array, k: int) -> None:
    request.write("x", x[:, :, 4 * k : 4 * k + 4], 4 * int(k))


def band_has_ended(request: ArrivingRequest) -> bool:
    return request._running is None


def test_first_rows_come_before_half_of_the_input(chain: aspen_mp.Model) -> None:
    x, name = image(chain), name_of(chain)
    with chain.begin() as request:
        request.write(name, x)
        want = request.result(WATCHDOG_S)["y"]
    with chain.begin() as request:
        for first in range(0, ROWS // 2, 8):
            request.write(name, x[:, :, first : first + 8])
        rows = request.rows()
        at, found = next(rows)
        assert at == 0
        assert found.tobytes() == want[:, :, : found.shape[2]].tobytes()
        assert not found.flags.writeable
        assert not request.future.done()
        request.write(name, x[:, :, ROWS // 2 :])
        for at, part in rows:
            assert part.tobytes() == want[:, :, at : at + part.shape[2]].tobytes()
        assert request.result(WATCHDOG_S)["y"].tobytes() == want.tobytes()
        assert not request.cancel()


def test_requests_beside_one_that_waits(chain: aspen_mp.Model) -> None:
    """A writer that never writes again costs others nothing. Its memory comes back."""
    x, name = image(chain), name_of(chain)
    want = chain.run(x)["y"]
    before = idle(chain)
    with chain.begin(timeout=1.0) as request:
        request.write(name, x[:, :, :20])
        for _ in range(20):
            assert chain.run(x)["y"].tobytes() == want.tobytes()
        with pytest.raises(RequestTimeout):
            request.future.result(WATCHDOG_S)
        with pytest.raises(RequestTimeout):
            request.write(name, x[:, :, 20:])
        with pytest.raises(RequestTimeout):
            list(request.rows("y"))
    wait_until(lambda: idle(chain) >= max(before, 1), "the region to come back")
    assert chain.in_flight == 0


def test_a_deadline_passes(chain: aspen_mp.Model) -> None:
    with chain.begin(deadline_ms=100, priority="high") as request, pytest.raises(DeadlineMissed):
        request.future.result(WATCHDOG_S)
    x = image(chain)
    with chain.begin(deadline_ms=1, on_late="run", priority="low") as request:
        request.write(name_of(chain), x)
        assert request.result(WATCHDOG_S)["y"].shape == chain.run(x)["y"].shape


def test_a_deadline_that_is_given_later(chain: aspen_mp.Model) -> None:
    x, name = image(chain), name_of(chain)
    with chain.begin() as request:
        request.write(name, x[:, :, :32])
        request.expire(WATCHDOG_S * 1e3)
        request.write(name, x[:, :, 32:])
        request.result(WATCHDOG_S)
    with chain.begin() as request:
        request.write(name, x[:, :, :32])
        request.expire(1e-3)
        with pytest.raises(DeadlineMissed):
            request.future.result(WATCHDOG_S)
    with chain.begin() as request, pytest.raises(ValueError, match="deadline_ms"):
        request.expire(0)


def test_plans_ahead(load: Load) -> None:
    """The first request finds its plan and its memory."""
    model = load(small_models.conv_chain(3, CHANNELS, ROWS))
    assert model.prepare_arriving()
    assert idle(model) == 1
    nodes = [helper.make_node("NonZero", ["x"], ["i"]), helper.make_node("Cast", ["i"], ["y"], to=F32)]
    assert not load(graph(nodes, [info("x", 4, 4)], [info("y", 2, "n")])).prepare_arriving()


def test_leaving_cancels(chain: aspen_mp.Model) -> None:
    x, name = image(chain), name_of(chain)
    with chain.begin() as request:
        request.write(name, x[:, :, :32])
        reader_saw: list[BaseException] = []

        def read() -> None:
            try:
                list(request.rows())
            except CancelledError as error:
                reader_saw.append(error)

        reader = threading.Thread(target=read)
        reader.start()
    reader.join(WATCHDOG_S)
    assert reader_saw
    assert request.future.cancelled()
    with pytest.raises(RequestCancelled):
        request.write(name, x[:, :, 32:])
    with pytest.raises(CancelledError):
        request.result()
    wait_until(lambda: chain.in_flight == 0, "the request to end")


def test_a_forgotten_request_ends(runtime: aspen_mp.Runtime, chain: aspen_mp.Model) -> None:
    request = chain.begin()
    request.write(name_of(chain), image(chain)[:, :, :40])
    wait_until(partial(band_has_ended, request), "the band to end")
    del request
    runtime.load(small_models.mlp("swept")).unload()
    wait_until(lambda: chain.in_flight == 0, "the request to be cancelled")


def test_a_forgotten_request_whose_band_has_failed_ends(runtime: aspen_mp.Runtime) -> None:
    """At once, without the garbage collector: its memory is that of all activations."""
    nodes = [helper.make_node("Gather", ["table", "i"], ["y"])]
    info = helper.make_tensor_value_info
    inputs, outputs = [info("i", TensorProto.INT64, [64, 8])], [info("y", TensorProto.FLOAT, [64, 8, 3])]
    table = numpy_helper.from_array(np.ones((5, 3), np.float32), "table")
    graph = helper.make_graph(nodes, "lookup", inputs, outputs, [table])
    model = runtime.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9))
    gc.disable()
    try:
        request = model.begin()
        request.write("i", np.full((32, 8), 9, np.int64))
        wait_until(partial(band_has_ended, request), "the band to end")
        last = weakref.ref(request)
        del request
        wait_until(lambda: last() is None, "the request to be forgotten")
        runtime.load(small_models.mlp("swept")).unload()
        wait_until(lambda: model.in_flight == 0, "the request to be cancelled")
    finally:
        gc.enable()
    model.unload()


@pytest.mark.parametrize(
    ("rows", "at", "axis", "says"),
    [
        (np.zeros((1, CHANNELS, 4, ROWS), np.float64), 0, None, "must be float32, not float64"),
        (np.zeros((1, CHANNELS, 4, ROWS - 1), np.float32), 0, None, r"must have shape \[1, 4, rows, 64\]"),
        (np.zeros((CHANNELS, 4, ROWS), np.float32), 0, None, "must have shape"),
        (np.zeros((1, CHANNELS, 4, ROWS), np.float32), ROWS - 3, None, "do not all exist"),
        (np.zeros((1, CHANNELS, 4, ROWS), np.float32), 6, None, "row 6 has been written before"),
        (np.zeros((1, CHANNELS, ROWS, 4), np.float32), 0, 3, "those of axis 2"),
    ],
)
def test_rows_that_do_not_fit(chain: aspen_mp.Model, rows: Array, at: int, axis: int | None, says: str) -> None:
    with chain.begin() as request:
        request.write(name_of(chain), np.zeros((1, CHANNELS, 8, ROWS), np.float32))
        with pytest.raises(RequestError, match=says):
            request.write(name_of(chain), rows, at, axis=axis)
        request.write(name_of(chain), np.zeros((1, CHANNELS, ROWS - 8, ROWS), np.float32))  # it goes on
        request.result(WATCHDOG_S)


def test_names_and_missing_rows(chain: aspen_mp.Model) -> None:
    with chain.begin() as request:
        with pytest.raises(RequestError, match="has no input 'z'"):
            request.write("z", np.zeros(3, np.float32))
        with pytest.raises(RequestError, match="not an output"):
            request.rows("z")
        request.write(name_of(chain), image(chain)[:, :, 8:24], 8)
        with pytest.raises(RequestError, match=r"lacks 48 of 64 rows \(axis 2\), the first at 0"):
            request.result()
    with pytest.raises(RequestError, match="has no output"):
        chain.begin(outputs=["z"])
    with pytest.raises(ValueError, match="at must be"), chain.begin() as request:
        request.write(name_of(chain), image(chain), -1)


def test_numbers_and_empty_inputs(load: Load) -> None:
    """Inputs without rows: one number is one row, and an empty input is complete from the start."""
    nodes = [helper.make_node("Mul", ["x", "s"], ["m"]), helper.make_node("Concat", ["m", "e"], ["y"], axis=0)]
    model = load(graph(nodes, [info("x", 40, 3), info("s"), info("e", 0, 3)], [info("y", 40, 3)]))
    x = np.arange(120, dtype=np.float32).reshape(40, 3)
    with model.begin() as request:
        request.write("x", x[20:], 20)
        request.write("s", 2.0)
        request.write("x", x[:20], 0)
        assert (request.result(WATCHDOG_S)["y"] == 2 * x).all()


def test_an_input_is_an_output(load: Load) -> None:
    model = load(graph([helper.make_node("Relu", ["x"], ["y"])], [info("x", 40, 3)], [info("y", 40, 3), info("x", 40, 3)]))
    x = np.arange(120, dtype=np.float32).reshape(40, 3) - 60
    with model.begin() as request:
        request.write("x", x)
        found = request.result(WATCHDOG_S)
        assert (found["x"] == x).all()
        assert (found["y"] == np.maximum(x, 0)).all()
        assert np.concatenate([rows for _, rows in request.rows("y")]).tobytes() == found["y"].tobytes()


def test_shapes_that_follow_from_data(load: Load) -> None:
    """A model of several stages runs when all rows are there."""
    nodes = [helper.make_node("NonZero", ["x"], ["i"]), helper.make_node("Cast", ["i"], ["y"], to=F32)]
    out = helper.make_tensor_value_info("y", F32, None)
    model = load(graph(nodes, [info("x", 30)], [out]))
    x = (np.arange(30) % 3 == 0).astype(np.float32)
    with model.begin() as request:
        request.write("x", x[10:], 10)
        request.write("x", x[:10], 0)
        assert request.result(WATCHDOG_S)["y"].tolist() == [np.flatnonzero(x).tolist()]
        assert [(first, rows.shape) for first, rows in request.rows()] == [(0, (1, 10))]


def test_open_shapes(load: Load) -> None:
    declared = helper.make_tensor_value_info("x", F32, ["n", 4])
    model = load(graph([helper.make_node("Relu", ["x"], ["y"])], [declared], [helper.make_tensor_value_info("y", F32, None)]))
    with pytest.raises(RequestError, match="no shape is given"):
        model.begin()
    with model.begin({"x": (50, 4)}) as request:
        request.write("x", np.ones((50, 4), np.float32))
        assert request.result(WATCHDOG_S)["y"].shape == (50, 4)


def test_the_runtime_closes() -> None:
    with aspen_mp.Runtime(workers=1) as own:
        model = own.load(small_models.conv_chain(3, CHANNELS, ROWS))
        request = model.begin()
        request.write(name_of(model), np.zeros((1, CHANNELS, 16, ROWS), np.float32))
    with pytest.raises(RuntimeLost):
        finish(request, np.zeros((1, CHANNELS, ROWS - 16, ROWS), np.float32))
    assert request.future.done()


def finish(request: ArrivingRequest, rows: Array) -> None:
    request.write("x", rows)
    request.result(WATCHDOG_S)


@pytest.mark.parametrize("kind", [Stale, RequestError, Short])
def test_a_band_fails(chain: aspen_mp.Model, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]) -> None:
    """The plan has gone, or a band met garbage that a fault of a worker has left. The request begins again; rows that were read stay."""
    x, name = image(chain), name_of(chain)
    with chain.begin() as request:
        request.write(name, x)
        want = request.result(WATCHDOG_S)["y"]
    take, errors = ArrivingOutput.take, [Short({}) if kind is Short else kind()]

    def failing(output: ArrivingOutput, axis: int, rows: int) -> tuple[int, int, bool]:
        if rows > 20 and errors:
            raise errors.pop()
        return take(output, axis, rows)

    monkeypatch.setattr(ArrivingOutput, "take", failing)
    with chain.begin() as request:
        rows = request.rows()
        for at in range(0, ROWS, 16):
            request.write(name, x[:, :, at : at + 16])
            wait_until(partial(band_has_ended, request), "the band to end")
            if not at:
                _, found = next(rows)
                assert found.tobytes() == want[:, :, : found.shape[2]].tobytes()
        got = request.result(WATCHDOG_S)["y"]
        assert not errors
        assert np.abs(got - want).max() <= 1e-4 * np.ptp(want)
        assert sum(part.shape[2] for _, part in rows) + found.shape[2] == ROWS
    wait_until(lambda: chain.in_flight == 0, "the request to end")


def test_many_writers(chain: aspen_mp.Model) -> None:
    """Rows come from several threads in any order."""
    x, name = image(chain), name_of(chain)
    with chain.begin() as request:
        request.write(name, x)
        want = request.result(WATCHDOG_S)["y"]
    for seed in range(10):
        order = np.random.default_rng(seed).permutation(ROWS // 4)
        with chain.begin() as request, ThreadPoolExecutor(4) as pool:
            list(pool.map(partial(write_four, request, x), order))
            assert request.result(WATCHDOG_S)["y"].tobytes() == want.tobytes()
