"""Requests that run while their bodies come: right results, bodies that turn out to be wrong, and when there are none.

Clients run the model between the pieces that they send. So a body takes long beside the model on every machine.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import serving_tools as tools
from hypothesis import given
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper, numpy_helper

import aspen_mp
from aspen_mp.serving import arriving
from aspen_mp.serving.arriving import Feed, _Form, _Rows
from aspen_mp.serving.channel import Served
from aspen_mp.serving.limits import Limits
from aspen_mp.serving.protocol import inference
from aspen_mp.serving.protocol.body import Body, Budget, Disconnected
from aspen_mp.serving.protocol.statuses import Refused
from aspen_mp.serving.repository.disk import Batching, Config
from aspen_mp.serving.sequences import Places
from aspen_mp.serving.shelf import Shelved
from aspen_mp.serving.telemetry.ledger import Field, Ledger
from aspen_mp.shm.errors import DeadlineMissed

Array = np.ndarray[Any, np.dtype[Any]]
PIECES = 24
LIMITS = Limits()
BATCHES = {"nchw": ["n", 3, "h", "w"], "nhwc": ["n", "h", "w", 3], "three": [3, "h", "w"]}


def convolutions(layout: str, *, gain: bool = False) -> ModelProto:
    """Two convolutions over pictures in a layout, of any size. `gain`: the result is multiplied by an input f32 [1]."""
    rng = np.random.default_rng(0)
    shapes = (("v", (16, 3, 3, 3)), ("w", (3, 16, 3, 3)))
    stored = [numpy_helper.from_array((rng.standard_normal(shape) / 5).astype(np.float32), name) for name, shape in shapes]
    stored.append(numpy_helper.from_array(np.array([0]), "axis"))
    first, last = {"nchw": ("Identity", "Identity"), "nhwc": ("Transpose", "Transpose"), "three": ("Unsqueeze", "Squeeze")}[layout]
    more = ["axis"] if layout == "three" else []
    there, back = ({"perm": [0, 3, 1, 2]}, {"perm": [0, 2, 3, 1]}) if layout == "nhwc" else ({}, {})
    nodes = [
        helper.make_node(first, ["x", *more], ["i"], **there),
        helper.make_node("Conv", ["i", "v"], ["c"], pads=[1] * 4),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Conv", ["r", "w"], ["o"], pads=[1] * 4),
        helper.make_node(last, ["o", *more], ["p" if gain else "y"], **back),
        *([helper.make_node("Mul", ["p", "gain"], ["y"])] if gain else []),
    ]
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, BATCHES[layout]) for name in "xy"]
    gains = [helper.make_tensor_value_info("gain", TensorProto.FLOAT, [1])] if gain else []
    graph = helper.make_graph(nodes, layout, [infos[0], *gains], infos[1:], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def drawn(shape: tuple[int, ...], seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def head_of(feeds: dict[str, Array], parameters: dict[str, Any] | None = None) -> bytes:
    inputs = [
        {"name": name, "shape": array.shape, "datatype": "FP32", "parameters": {"binary_data_size": array.nbytes}}
        for name, array in feeds.items()
    ]
    return json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True, **(parameters or {})}}).encode()


def cut(data: bytes, pieces: int = PIECES) -> list[bytes]:
    marks = np.linspace(0, len(data), pieces + 1).astype(int).tolist()
    return [data[a:b] for a, b in pairwise(marks)]


Between = Callable[[int], Awaitable[object]]


@dataclass
class Trial:
    """A version without a server. `feeds`: of all requests so far."""

    shelved: Shelved
    runtime: aspen_mp.Runtime
    feeds: list[Feed | None] = field(default_factory=list)

    async def ask(
        self, feeds: dict[str, Array], between: Between | None, *, tail: bytes | None = None, limits: Limits = LIMITS, **parameters: Any
    ) -> Array:
        """The output for a body. `between`: is awaited before each piece of its tensors; None: all is there at once. `tail`: its bytes,
        where they are not those of the feeds."""
        head = head_of(feeds, parameters)
        data = b"".join(array.tobytes() for array in feeds.values()) if tail is None else tail
        pieces = [head, *cut(data, 1 if between is None else PIECES)]
        number = -1

        async def receive() -> Any:
            nonlocal number
            number += 1
            if number and between is not None:
                await between(number)
            return {"type": "http.request", "body": pieces[number], "more_body": number + 1 < len(pieces)}

        shelved = self.shelved
        with Body(receive, {}, limits, Budget(limits.pending)) as body:
            call = await inference.read(body, len(head), shelved.model.inputs, rooms=shelved.rooms(), arrivals=shelved.arrivals)
            self.feeds.append(call.feed)
            results = await shelved.run(call)
            return np.array(results["y"])

    async def slow(self, feeds: dict[str, Array], **more: Any) -> Array:
        """`ask` of a client that runs the model between pieces."""
        return await self.ask(feeds, lambda _: self.shelved.model.run_async(feeds), **more)

    async def until_in_pieces(self, feeds: dict[str, Array], want: Array) -> None:
        """Slow requests with the right result, until one has run in pieces. On a busy machine its start may come too late."""
        before = self.in_pieces
        for _ in range(100):
            close_to(await self.slow(feeds), want)
            if self.in_pieces > before:
                return
        raise AssertionError("no request has run in pieces")

    async def prepared(self, feeds: dict[str, Array]) -> Array:
        """The result of an ordinary request. Then the plan for pieces is there, and how long the model takes is known."""
        want = await self.ask(feeds, None)
        await self.ask(feeds, None)  # the first one was planned, too
        if self.shelved.arrivals is not None:
            form = self.shelved.arrivals._form(feeds)
            form.plan = await asyncio.to_thread(self.shelved.model.prepare_arriving, form.shapes)
        return want

    @property
    def in_pieces(self) -> int:
        return self.shelved.counts._numbers[Field.PIECES]

    async def settled(self) -> None:
        """Nothing is in flight, and no place is taken."""
        deadline = asyncio.get_running_loop().time() + tools.WATCHDOG_S
        while self.shelved.model.in_flight:
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0)
        assert self.shelved.arrivals is None or self.shelved.arrivals.begun == 0


@pytest.fixture(scope="module")
def runtime() -> Iterator[aspen_mp.Runtime]:
    with aspen_mp.Runtime(workers=2) as found:
        yield found


Load = Callable[..., Trial]


@pytest.fixture
def load(runtime: aspen_mp.Runtime, monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    monkeypatch.setattr(arriving, "LEAST_NS", 0)  # the model may take less
    models = []

    def more(layout: str = "nchw", *, gain: bool = False, **config: Any) -> Trial:
        models.append(runtime.load(convolutions(layout, gain=gain)))
        served = Served(name="m", version=1, path="", stamp="", config=Config(**config))
        return Trial(Shelved(served, models[-1], "", Ledger().row("m", 1, in_batches=False), Places(LIMITS)), runtime)

    yield more
    for model in models:
        model.unload()


def run(work: Awaitable[Any]) -> Any:
    async def limited() -> Any:
        return await asyncio.wait_for(work, 2 * tools.WATCHDOG_S)

    return asyncio.run(limited())


X = drawn((1, 3, 320, 300))


def close_to(found: Array, want: Array) -> None:
    assert found.shape == want.shape
    np.testing.assert_allclose(found, want, rtol=1e-3, atol=1e-3)


# ---- results


def shapes(layout: str) -> list[tuple[int, ...]]:
    """Drawn shapes of 1 MiB or more."""
    rng = np.random.default_rng(len(layout))
    found = []
    for n in (1, 2):
        h, w = (int(side) for side in rng.integers(300, 360, 2))
        found.append({"nchw": (n, 3, h, w), "nhwc": (n, h, w, 3), "three": (3, h, w)}[layout])
    return found


@pytest.mark.parametrize("shape", [pytest.param((layout, shape), id=f"{layout}-{shape}") for layout in BATCHES for shape in shapes(layout)])
def test_a_slow_body_has_the_results_of_one_that_is_there(load: Load, shape: tuple[str, tuple[int, ...]]) -> None:
    trial, x = load(shape[0]), drawn(shape[1])

    async def work() -> None:
        want = await trial.prepared({"x": x})
        assert trial.in_pieces == 0
        await trial.until_in_pieces({"x": x}, want)
        await trial.settled()

    run(work())


@pytest.mark.parametrize("order", [("x", "gain"), ("gain", "x")])
def test_small_inputs_come_before_and_after(load: Load, order: tuple[str, ...]) -> None:
    trial = load(gain=True)
    given_ = {"x": X, "gain": np.array([3.0], np.float32)}
    feeds = {name: given_[name] for name in order}

    async def work() -> None:
        want = await trial.prepared(feeds)
        await trial.until_in_pieces(feeds, want)

    run(work())


def test_a_plan_that_is_not_there_is_not_waited_for(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = load()
    plan = trial.shelved.model.prepare_arriving
    planned = []
    monkeypatch.setattr(trial.shelved.model, "prepare_arriving", lambda shapes: planned.append(shapes) or plan(shapes))

    async def work() -> None:
        want = await trial.ask({"x": X}, None)
        close_to(await trial.slow({"x": X}), want)
        await trial.until_in_pieces({"x": X}, want)
        assert planned == [{"x": X.shape}]

    run(work())


def test_a_body_that_is_there_is_an_ordinary_request(load: Load) -> None:
    trial = load()

    async def work() -> None:
        await trial.prepared({"x": X})
        await trial.ask({"x": X}, None)
        feed = trial.feeds[-1]
        assert feed is not None
        assert feed._request is None
        assert trial.in_pieces == 0

    run(work())


@pytest.mark.parametrize("config", [{"pieces": False}, {"batching": Batching(max_batch=8, max_delay_ms=0.0)}])
def test_versions_without(load: Load, config: dict[str, Any]) -> None:
    trial = load(**config)

    async def work() -> None:
        want = await trial.prepared({"x": X})
        close_to(await trial.slow({"x": X}), want)
        assert set(trial.feeds) == {None}

    run(work())


def test_which_requests_are_watched(load: Load) -> None:
    arrivals = load().shelved.arrivals
    assert arrivals is not None

    async def watched(feeds: dict[str, Array]) -> bool:
        binary = {name: memoryview(array.reshape(-1).view(np.uint8)) for name, array in feeds.items()}
        return arrivals.feed(feeds, binary, None, None, 0) is not None

    large, small = drawn((1, 1 << 9, 1 << 9)), drawn((4, 4))
    assert run(watched({"x": large, "z": small}))
    assert not run(watched({"x": large, "z": large.copy()}))  # two large ones
    assert not run(watched({"x": small}))
    assert not run(watched({"x": drawn((1 << 16, 1, 2, 3, 1))}))  # few rows
    assert not run(watched({"x": large > 0, "z": small}))
    assert not run(watched({"x": large, "z": np.zeros(3, bool)}))


# ---- bodies that turn out to be wrong


def failing(trial: Trial, feeds: dict[str, Array], do: Callable[[], Awaitable[object]], at: int = PIECES - 2) -> Between:
    """Runs the model between pieces. Before the last ones, from `at` on, it does `do` as well."""

    async def between(k: int) -> None:
        if k >= at:
            await do()
        await trial.shelved.model.run_async(feeds)

    return between


async def raises(error: BaseException) -> None:
    raise error


def check_after(trial: Trial, feeds: dict[str, Array], work: Callable[[], Awaitable[object]], kind: type[BaseException]) -> BaseException:
    """The error of a request. It began to run, nothing of it is left, and later ones run."""
    raised: list[BaseException] = []

    async def whole() -> None:
        want = await trial.prepared(feeds)
        begun = []
        note = Feed.note

        def noted(self: Feed, come: int) -> None:
            note(self, come)
            begun.append(self)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Feed, "note", noted)
            with pytest.raises(kind) as found:
                await work()
        raised.append(found.value)
        assert begun[-1]._request is not None
        await trial.settled()
        assert trial.in_pieces == 0
        await trial.until_in_pieces(feeds, want)

    run(whole())
    return raised[0]


@pytest.mark.parametrize(("change", "text"), [(-4, "in the middle of a tensor"), (4, "bytes follow")])
def test_a_body_of_another_length(load: Load, change: int, text: str) -> None:
    trial, feeds = load(), {"x": X}
    tail = X.tobytes()[:change] if change < 0 else X.tobytes() + bytes(change)
    error = check_after(trial, feeds, lambda: trial.slow(feeds, tail=tail), Refused)
    assert isinstance(error, Refused)
    assert error.status == 400
    assert text in str(error)


def test_a_client_that_goes(load: Load) -> None:
    trial, feeds = load(), {"x": X}
    check_after(trial, feeds, lambda: trial.ask(feeds, failing(trial, feeds, lambda: raises(Disconnected()))), Disconnected)


def test_a_request_that_is_cancelled(load: Load) -> None:
    trial, feeds = load(), {"x": X}
    between = failing(trial, feeds, lambda: raises(asyncio.CancelledError()))
    check_after(trial, feeds, lambda: trial.ask(feeds, between), asyncio.CancelledError)


def test_a_body_that_stops(load: Load) -> None:
    trial, feeds = load(), {"x": X}
    limits = Limits(slow_s=1.0, rate=1)  # too slow once nothing comes for a second
    between = failing(trial, feeds, lambda: asyncio.Event().wait())
    error = check_after(trial, feeds, lambda: trial.ask(feeds, between, limits=limits), Refused)
    assert isinstance(error, Refused)
    assert error.status == 408


def test_an_ordinary_request_follows_one_that_fails(load: Load) -> None:
    """Whatever happens to a request before its body is whole, the array that was read is run."""
    trial, feeds = load(), {"x": X}

    async def fail() -> None:
        (request,) = found
        request.cancel()

    found: list[aspen_mp.ArrivingRequest] = []
    begin = trial.shelved.model.begin

    def noted(*args: Any, **more: Any) -> aspen_mp.ArrivingRequest:
        found.append(begin(*args, **more))
        return found[-1]

    async def work() -> None:
        want = await trial.prepared(feeds)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(trial.shelved.model, "begin", noted)
            close_to(await trial.ask(feeds, failing(trial, feeds, fail)), want)
        assert trial.in_pieces == 0
        await trial.settled()

    run(work())


def test_a_deadline_counts_from_the_end_of_the_body(load: Load) -> None:
    trial, feeds = load(), {"x": X}
    check_after(trial, feeds, lambda: trial.slow(feeds, timeout=1), DeadlineMissed)  # a microsecond

    async def work() -> None:
        before = trial.in_pieces
        for _ in range(100):
            await trial.slow(feeds, timeout=int(tools.WATCHDOG_S * 1e6))
            if trial.in_pieces > before:
                return
        raise AssertionError("no request has run in pieces")

    run(work())


def test_one_body_for_each_instance(load: Load) -> None:
    """Others are ordinary requests: each in pieces has memory for all activations."""
    trial, feeds = load(instances=1), {"x": X}

    async def work() -> None:
        want = await trial.prepared(feeds)
        assert trial.shelved.arrivals is not None
        trial.shelved.arrivals.begun = trial.shelved.model.instances
        close_to(await trial.slow(feeds), want)
        assert trial.in_pieces == 0

    run(work())


# ---- decisions


@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.sampled_from([np.int8, np.float32]), st.integers(0, 7776 * 4))
def test_rows_are_whole_when_all_of_their_parts_are(shape: list[int], dtype: Any, come: int) -> None:
    array = np.zeros(shape, dtype)
    rows = _Rows("x", array)
    array.reshape(-1).view(np.uint8)[:come] = 255
    there = (array.view(np.uint8) == 255).reshape(*shape, -1)
    whole = there.all(axis=tuple(k for k in range(there.ndim) if k != rows.axis))
    assert rows.whole(come) == whole.sum()
    assert whole[: rows.whole(come)].all()
    assert np.shares_memory(rows.between(0, 1), array)


def slow_at(monkeypatch: pytest.MonkeyPatch, gaps: list[int], run_ns: int) -> list[bool]:
    """Return whether a body counts as slow at each of its equal pieces, which come after `gaps` of nanoseconds."""
    now = [0]
    monkeypatch.setattr(arriving, "clock", SimpleNamespace(monotonic_ns=lambda: now[0]))
    x = np.zeros((len(gaps), 4096, 64), np.float32).reshape(1, -1, 64)
    form = _Form({"x": x.shape})
    form.runs.append(run_ns)

    async def work() -> list[bool]:
        piece = memoryview(x.reshape(-1).view(np.uint8))
        feed = Feed(None, form, {"x": x}, {"x": piece}, _Rows("x", x), (None, "normal"), 0)  # type: ignore[arg-type]
        found = []
        for k, gap in enumerate(gaps):
            now[0] += gap
            feed._come = (k + 1) * x.nbytes // len(gaps)
            found.append(feed._is_slow())
        return found

    return run(work())


MS = 1_000_000


@pytest.mark.parametrize(
    ("gaps", "run_ms", "slow"),
    [
        ([0] * 20, 10, False),  # all is there
        ([0] * 5 + [500 * MS] + [0] * 14, 10, False),  # one pause says nothing
        ([10 * MS] * 20, 100, True),
        ([10 * MS] * 20, 1000, False),  # the model takes far longer
        ([MS // 10] * 20, 1, False),  # too short to be worth it
    ],
)
def test_which_bodies_are_slow(monkeypatch: pytest.MonkeyPatch, gaps: list[int], run_ms: int, slow: bool) -> None:
    found = slow_at(monkeypatch, gaps, run_ms * MS)
    assert any(found) == slow
    assert not found[-1]  # nothing is left


def test_pieces_that_are_no_faster_are_given_up_for_a_while() -> None:
    form = _Form({})
    form.runs.append(10)
    form.rests.extend([11] * arriving.TRIES)
    assert [form.pays() for _ in range(arriving.REST + 1)] == [False] * arriving.REST + [True]
    form.rests.extend([11, 11, 9])
    assert form.pays()


# ---- a server


def asked(address: str, model: str, head: bytes, pieces: list[bytes], between: Callable[[], object]) -> tuple[int, bytes]:
    """Status and body of the answer to a body in pieces. `between` is called before each but the first."""
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), tools.WATCHDOG_S) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        length = len(head) + sum(map(len, pieces))
        lines = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n"
        sock.sendall(f"{lines}Inference-Header-Content-Length: {len(head)}\r\n\r\n".encode() + head)
        for piece in pieces:
            between()
            sock.sendall(piece)
        said = b""
        while part := sock.recv(1 << 20):
            said += part
    start, _, body = said.partition(b"\r\n\r\n")
    return int(start.split()[1]), body


def _call_next(calls: Iterator[Callable[[], object]]) -> None:
    next(calls)()


def counted(client: tools.Client, model: str) -> int:
    _, _, text = client.ask("/metrics")
    found = re.search(rf'^aspen_mp_serve_pieces_total{{model="{model}",version="1"}} (\d+)$', text.decode(), re.MULTILINE)
    assert found is not None, text
    return int(found[1])


def test_bodies_over_sockets(tmp_path_factory: pytest.TempPathFactory) -> None:
    pytest.importorskip("prometheus_client")
    folder = tmp_path_factory.mktemp("models")
    tools.save(folder, "on", 1, convolutions("nhwc"))
    tools.save(folder, "off", 1, convolutions("nhwc"), "pieces = false\n")
    x = drawn((1, 350, 300, 3))
    head, data = head_of({"x": x}), x.tobytes()
    with tools.serving(folder, folder) as server, tools.client(server.address) as client:

        def ordinary(model: str) -> bytes:
            headers = {"inference-header-content-length": str(len(head))}
            status, _, body = client.ask(f"/v2/models/{model}/infer", head + data, headers, "POST")
            assert status == 200, body
            return bytes(body[-x.nbytes :])

        def slow(model: str) -> Array:
            status, body = asked(server.address, model, head, cut(data), lambda: ordinary(model))
            assert status == 200, body
            return np.frombuffer(body[-x.nbytes :], np.float32)

        def leave() -> None:
            raise ConnectionAbortedError

        def until_counted(more: int) -> None:
            for _ in range(100):
                close_to(slow("on"), wants["on"])
                if counted(client, "on") >= more:
                    return
            raise AssertionError("no request runs in pieces")

        wants = {model: np.frombuffer(ordinary(model), np.float32) for model in ("on", "off")}
        until_counted(1)  # the first ones have the plan made
        close_to(slow("off"), wants["off"])
        assert counted(client, "off") == 0
        before = counted(client, "on")
        for _ in range(4):  # more than there are places
            between = partial(_call_next, iter([*(lambda: ordinary("on") for _ in range(PIECES - 2)), leave]))
            with pytest.raises(ConnectionAbortedError):
                asked(server.address, "on", head, cut(data), between)
        until_counted(before + 1)
        _, _, said = client.ask("/v2/models/on/stats")
        assert said["model_stats"][0]["inference_stats"]["fail"]["count"] == 4
