"""Streams whose every request finds another number of things: results, and what of the plans for all those numbers stays."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import aspen_mp
from aspen_mp.client.requests import stage_tree
from aspen_mp.control.models import eviction

N = helper.make_node
W = np.arange(6, dtype=np.float32).reshape(2, 3)


def found_things(repeat: int = 1) -> onnx.ModelProto:
    """Places [found, 2] of what is more than 0 in x [n, 8], times w; and each of them so many times in another output."""
    nodes = [
        N("Relu", ["x"], ["r"]),
        N("NonZero", ["r"], ["i"]),
        N("Transpose", ["i"], ["t"]),
        N("Cast", ["t"], ["p"], to=TensorProto.FLOAT),
        N("MatMul", ["p", "w"], ["y"]),
        N("NonZero", ["y"], ["j"]),
        N("Cast", ["j"], ["k"], to=TensorProto.FLOAT),
        N("Unsqueeze", ["k", "last"], ["u"]),
        N("Expand", ["u", "often"], ["z"]),
    ]
    constants = {"w": W, "last": np.array([2]), "often": np.array([1, 1, repeat])}
    graph = helper.make_graph(
        nodes,
        "found",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None), helper.make_tensor_value_info("z", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(v), n) for n, v in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def of(count: int) -> npt.NDArray[np.float32]:
    x = np.full(96, -1, np.float32)
    x[np.random.default_rng(count).permutation(96)[:count]] = 1
    return x.reshape(12, 8)


def agrees(results: dict[str, Any], x: npt.NDArray[np.float32], repeat: int = 1) -> None:
    y = np.argwhere(x > 0).astype(np.float32) @ W
    assert np.array_equal(results["y"], y)
    assert np.array_equal(results["z"], np.repeat(np.array(np.nonzero(y), np.float32)[:, :, None], repeat, 2))


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> Iterator[aspen_mp.Runtime]:
    """A runtime for a client that remembers few plans behind data."""
    monkeypatch.setattr(stage_tree, "MAX_BEHIND", 6)
    with aspen_mp.Runtime(workers=2) as own:
        yield own


def test_a_stream_of_numbers_that_are_new(shared_runtime: aspen_mp.Runtime) -> None:
    model = shared_runtime.load(found_things())
    counts = [*range(97), *range(96, -1, -3)]
    for count in counts:
        agrees(model.run({"x": of(count)}), of(count))
    (about,) = [m for m in shared_runtime.status()["models"] if m["id"] == model.number]
    assert len(about["plans"]) <= eviction.MAX_BEHIND + 1
    assert len(model._tree._behind) <= stage_tree.MAX_BEHIND
    model.unload()


def test_clients_forget_and_ask_again(few: aspen_mp.Runtime) -> None:
    model = few.load(found_things())
    for count in [*range(20), *range(20)]:
        agrees(model.run({"x": of(count)}), of(count))
    assert len(model._tree._behind) <= 6
    model.unload()


def test_many_at_once(few: aspen_mp.Runtime) -> None:
    """Requests of several threads run on stages that others make the client forget."""
    failed: list[BaseException] = []

    def walk(first: int) -> None:
        try:
            for k in range(24):
                x = of((first + 7 * k) % 40)
                agrees(model.run({"x": x}), x)
        except BaseException as error:
            failed.append(error)

    model = few.load(found_things())
    threads = [threading.Thread(target=walk, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    for x, results in zip(map(of, range(30)), model.map({"x": of(k)} for k in range(30)), strict=True):
        agrees(results, x)
    model.unload()


def test_how_large_a_result_is_is_learnt_once(shared_runtime: aspen_mp.Runtime) -> None:
    """A request whose result does not fit runs again with more room; those for other numbers have it at once."""
    model = shared_runtime.load(found_things(4096))
    agrees(model.run({"x": of(60)}), of(60), 4096)
    before = dict(model._tree._capacities)
    assert before["z"] >= 2 * 60 * 4096 * 4
    asked = shared_runtime.status()["models"]
    agrees(model.run({"x": of(59)}), of(59), 4096)
    (plans,) = [len(m["plans"]) for m in shared_runtime.status()["models"] if m["id"] == model.number]
    (were,) = [len(m["plans"]) for m in asked if m["id"] == model.number]
    assert plans - were <= 2  # the one for 59, and the first stage's with this much room
    model.unload()
