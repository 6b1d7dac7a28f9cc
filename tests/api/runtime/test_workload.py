"""Networks that run together: pipelines against their networks one by one, sources and their threads, what is refused."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import process_tools
import pytest
import small_models
from onnx import TensorProto, helper, numpy_helper

import aspen_mp
from aspen_mp.errors import ModelInvalidError, RequestError

Array = np.ndarray[Any, np.dtype[Any]]
X = np.ones((4, 16), np.float32)
WIDE = 6


def network(kind: str, rng: np.random.Generator, opset: int) -> tuple[onnx.ModelProto, Any]:
    """A network y = f(x) on rows of `WIDE` numbers, and f in numpy. All have names in common."""
    w = rng.integers(-2, 3, (WIDE, WIDE)).astype(np.float32)
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", WIDE]) for name in ("x", "y")]
    imports, functions = [helper.make_opsetid("", opset)], []
    if kind == "layer":
        nodes = [helper.make_node("MatMul", ["x", "w"], ["h"], "product"), helper.make_node("Relu", ["h"], ["y"], "relu")]
        what = lambda x: np.maximum(x @ w, 0)  # noqa: E731
    elif kind == "function":
        nodes = [helper.make_node("MatMul", ["x", "w"], ["h"], "product"), helper.make_node("own", ["h"], ["y"], "call", domain="mine")]
        op = str(rng.choice(["Neg", "Abs"]))
        body = [helper.make_node(op, ["a"], ["b"], "body")]
        functions = [helper.make_function("mine", "own", ["a"], ["b"], body, [helper.make_opsetid("", opset)])]
        imports.append(helper.make_opsetid("mine", 1))
        what = lambda x: (np.negative if op == "Neg" else np.abs)(x @ w)  # noqa: E731
    else:
        branches = {
            name: helper.make_graph(
                [helper.make_node("MatMul", ["x", "w"], ["h"], "product"), helper.make_node(op, ["h"], ["r"], "in_branch")],
                name,
                [],
                [helper.make_tensor_value_info("r", TensorProto.FLOAT, ["rows", WIDE])],
            )
            for name, op in (("then_branch", "Abs"), ("else_branch", "Neg"))
        }
        nodes = [
            helper.make_node("ReduceSum", ["x"], ["sum"], "sum", keepdims=0),
            helper.make_node("Greater", ["sum", "zero"], ["positive"], "compare"),
            helper.make_node("If", ["positive"], ["y"], "choose", **branches),
        ]
        what = lambda x: np.abs(x @ w) if x.sum() > 0 else -(x @ w)  # noqa: E731
    constants = [numpy_helper.from_array(w, "w"), numpy_helper.from_array(np.array(0, np.float32), "zero")]
    graph = helper.make_graph(nodes, kind, ends[:1], ends[1:], constants)
    return helper.make_model(graph, opset_imports=imports, functions=functions, ir_version=8), what


@pytest.mark.parametrize("seed", range(12))
def test_pipelines_give_what_their_networks_give(shared_runtime: aspen_mp.Runtime, tmp_path: Path, seed: int) -> None:
    """Drawn networks behind and beside each other, of several opsets, with functions of one name, from files and from bytes."""
    rng = np.random.default_rng(seed)
    workload = shared_runtime.workload()
    x = rng.integers(-3, 4, (int(rng.integers(1, 5)), WIDE)).astype(np.float32)
    values: dict[str, Array] = {}
    added: list[aspen_mp.client.workload.Network] = []
    read: dict[str, Array] = {}
    for k in range(int(rng.integers(2, 6))):
        model, what = network(str(rng.choice(["layer", "function", "branches"])), rng, int(rng.integers(13, 20)))
        source: Any = model
        if rng.random() < 0.5:
            source = tmp_path / f"model{k}.onnx"
            onnx.save(model, source, save_as_external_data=bool(rng.random() < 0.5), location=f"model{k}.bin", size_threshold=0)
        relation, other = str(rng.choice(["after", "beside"])), added[int(rng.integers(len(added)))] if added else None
        found = x if other is None else values[other.name] if relation == "after" else read[other.name]
        added.append(workload.add(source, name=f"n{k}", **({} if other is None else {relation: other})))
        read[f"n{k}"], values[f"n{k}"] = found, what(found.astype(np.float64))
    with workload:
        results = workload.run(added[0], {"x": x})
    assert results.keys() == {f"{name}.y" for name in values}
    for name, value in values.items():
        np.testing.assert_array_equal(results[f"{name}.y"], value.astype(np.float32), err_msg=name)


def test_several_inputs_and_outputs_by_name(shared_runtime: aspen_mp.Runtime) -> None:
    """Inputs that no other network gives are given by NETWORK.INPUT; `inputs` goes before names that are alike."""
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("a", "b", "s", "d")]
    nodes = [helper.make_node("Add", ["a", "b"], ["s"]), helper.make_node("Sub", ["a", "b"], ["d"])]
    model = helper.make_model(helper.make_graph(nodes, "g", ends[:2], ends[2:]), opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    a, b, c = (np.array(v, np.float32) for v in ([1, 2], [10, 20], [100, 200]))
    with shared_runtime.workload() as workload:
        first = workload.add(model, name="first")
        workload.add(model, name="second", beside=first, inputs={"a": "first.d"})
        workload.add(model, name="third", after=first, inputs={"b": "first.s"})
        results = workload.run(first, {"a": a, "b": b, "third.a": c})
    assert np.array_equal(results["second.s"], (a - b) + b)
    assert np.array_equal(results["third.d"], c - (a + b))


def test_sources_send_requests_until_their_feeds_end(shared_runtime: aspen_mp.Runtime) -> None:
    model = small_models.mlp()
    once = shared_runtime.load(model).run({"x": X})
    items = iter([{"x": X}] * 5)
    found: dict[str, list[Any]] = {"every": [], "function": []}
    with shared_runtime.workload(objective="throughput") as workload:
        workload.add(model, name="every", every_ms=1, feeds=[{"x": X}] * 7, on_result=found["every"].append)
        workload.add(model, name="function", feeds=lambda: next(items, None), on_result=found["function"].append)
        workload.start()
        assert workload.wait()
        with pytest.raises(RequestError, match="started already"):
            workload.start()
        every, function = workload.status()
    assert [len(results) for results in found.values()] == [7, 5]
    for results in (*found["every"], *found["function"]):
        assert results.keys() == once.keys()
        for name, value in once.items():
            assert np.array_equal(results[name], value)
    assert (every["networks"], every["every_ms"], every["requests"], every["results"]) == (["every"], 1.0, 7, 7)
    assert (function["requests"], function["results"], function["skipped"], function["late"], function["error"]) == (5, 5, 0, 0, None)
    assert function["p50_ms"] <= function["p99_ms"]


def test_stop_ends_sources_that_never_end(shared_runtime: aspen_mp.Runtime) -> None:
    came = threading.Event()
    workload = shared_runtime.workload()
    workload.add(small_models.mlp(), name="endless", every_ms=1, feeds=lambda: {"x": X}, on_result=lambda _: came.set())
    workload.add(small_models.mlp(), name="rare", every_ms=3_600_000, feeds=lambda: {"x": X})
    workload.start()
    assert came.wait(60)
    assert not workload.wait(0.001)
    workload.stop()
    workload.stop()
    endless, rare = workload.status()
    assert endless["requests"] == endless["results"] > 0
    assert rare["requests"] == 1


def test_a_result_may_stop_the_workload(shared_runtime: aspen_mp.Runtime) -> None:
    results: list[Any] = []

    def take(result: Any) -> None:
        results.append(result)
        if len(results) == 3:
            workload.stop()

    with shared_runtime.workload() as workload:
        workload.add(small_models.mlp(), name="endless", feeds=lambda: {"x": X}, on_result=take)
        workload.start()
        assert workload.wait(60)
    assert len(results) == 3


@pytest.mark.parametrize("where", ["feeds", "result", "request"])
def test_an_error_ends_its_pipeline_alone(shared_runtime: aspen_mp.Runtime, where: str) -> None:
    model, goes_on = small_models.mlp(), threading.Event()

    def fail(*_: Any) -> None:
        raise KeyError(where)

    feeds: Any = fail if where == "feeds" else [{"x": X if where == "result" else X[:, :3]}] * 3
    with shared_runtime.workload() as workload:
        workload.add(model, name="bad", feeds=feeds, on_result=fail if where == "result" else None)
        workload.add(model, name="good", feeds=lambda: {"x": X}, on_result=lambda _: goes_on.set())
        workload.start()
        for timeout in (None, 60.0, 0.0):
            with pytest.raises(RequestError if where == "request" else KeyError, match="'bad.x'" if where == "request" else where):
                workload.wait(timeout)
        goes_on.clear()
        assert goes_on.wait(60)
        bad, good = workload.status()
    assert bad["error"] is not None
    assert good["error"] is None


def test_a_result_cannot_wait_for_its_workload(shared_runtime: aspen_mp.Runtime) -> None:
    with shared_runtime.workload() as workload:
        workload.add(small_models.mlp(), name="own", feeds=[{"x": X}], on_result=lambda _: workload.wait())
        workload.start()
        with pytest.raises(RequestError, match="another thread"):
            workload.wait()


class Hanging:
    """A function of the user's that does not return from its call `after`, until it is `free`."""

    def __init__(self, after: int, hung: threading.Semaphore, free: threading.Event) -> None:
        self._left, self._hung, self._free = after, hung, free

    def __call__(self, *_: Any) -> dict[str, Array]:
        self._left -= 1
        if self._left < 0:
            self._hung.release()
            self._free.wait()
        return {"x": X}


@pytest.mark.parametrize("seed", range(6))
def test_functions_that_never_return(shared_runtime: aspen_mp.Runtime, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """A drawn number of pipelines, some of which hang in a drawn function. The workload ends, the others lose nothing, and nothing is
    accepted after that. Those that hang end when their functions return."""
    monkeypatch.setattr("aspen_mp.client.workload.USERS_S", 0.05)
    draw, model = random.Random(seed), small_models.mlp()
    hung, free = threading.Semaphore(0), threading.Event()
    hangs = ["feeds", "iterable", "result"]
    kinds = [*draw.choices(["goes on", *hangs], k=draw.randrange(1, 5)), draw.choice(hangs)]
    workload = shared_runtime.workload(objective=draw.choice(["latency", "throughput"]))
    for kind in kinds:
        function = Hanging(draw.randrange(4), hung, free)
        feeds: Any = {"feeds": function, "iterable": iter(function, None)}.get(kind, lambda: {"x": X})
        workload.add(model, name=f"n{len(workload._networks)}", feeds=feeds, on_result=function if kind == "result" else None)
    workload.start()
    for kind in kinds:
        assert kind == "goes on" or hung.acquire(timeout=60)
    ending = threading.Thread(target=draw.choice([workload.stop, lambda: workload.__exit__(None, None, None)]))
    ending.start()
    ending.join(60)
    assert not ending.is_alive()
    for kind, said in zip(kinds, workload.status(), strict=True):
        assert kind != "goes on" or said["requests"] == said["results"]
    source = next(iter(workload._networks.values()))
    for refused in (lambda: workload.run(source, {"x": X}), workload.start, workload.load, lambda: workload.add(model)):
        with pytest.raises(RequestError, match="stopped"):
            refused()
    free.set()
    for thread in workload._threads():
        thread.join(60)
        assert not thread.is_alive()
    assert [said["error"] for said in workload.status()] == [None] * len(kinds)


def test_what_misses_its_deadline_is_counted(shared_runtime: aspen_mp.Runtime) -> None:
    """A deadline that has passed before anything begins, and one that nothing can miss; the pipeline goes on."""
    model = small_models.mlp()
    with shared_runtime.workload() as workload:
        workload.add(model, name="never", feeds=[{"x": X}] * 4, deadline_ms=1e-6)
        workload.add(model, name="ever", feeds=[{"x": X}] * 4, deadline_ms=1e9, priority="high", share=2.0)
        workload.start()
        assert workload.wait()
        never, ever = workload.status()
    assert (never["requests"], never["results"], never["missed"], never["error"]) == (4, 0, 4, None)
    assert (ever["requests"], ever["results"], ever["missed"], ever["error"]) == (4, 4, 0, None)


def test_what_cannot_be_meant_is_refused(shared_runtime: aspen_mp.Runtime) -> None:
    model = small_models.mlp()
    with pytest.raises(ValueError, match="objective must be"):
        shared_runtime.workload(objective="speed")  # type: ignore[arg-type]
    workload, other = shared_runtime.workload(), shared_runtime.workload()
    with pytest.raises(RequestError, match="no source of the workload has feeds"):
        workload.start()
    with pytest.raises(RequestError, match="has no network"):
        workload.load()
    a, stranger = workload.add(model, name="a"), other.add(model, name="a")
    for arguments, message in (
        ({"name": "a"}, "has a network 'a' already"),
        ({"name": "a.b"}, "letters, digits and underscores"),
        ({"name": "b", "every_ms": 0}, "more than 0"),
        ({"name": "b", "after": stranger}, "of this workload"),
        ({"name": "b", "beside": "a"}, "of this workload"),
        ({"name": "b", "after": a, "every_ms": 5}, "belong to a network without after and beside"),
        ({"name": "b", "after": a, "feeds": []}, "belong to a network without after and beside"),
        ({"name": "b", "beside": a, "priority": "high"}, "belong to a network without after and beside"),
        ({"name": "b", "after": a, "beside": workload.add(model, name="c")}, "belongs to two pipelines"),
    ):
        with pytest.raises(ValueError, match=message):
            workload.add(model, **arguments)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="no source of this workload"):
        workload.run(stranger, {"x": X})
    workload.add(model, name="d", after=a, inputs={"x": "a.nothing"})
    with pytest.raises(ModelInvalidError, match=r"'a\.nothing', which is no"):
        workload.load()


def test_a_started_workload_is_scheduled() -> None:
    """From no schedule to one that is tried; what it says goes when the workload ends."""
    seen: set[str] = set()
    tried, enough = threading.Event(), threading.Event()
    with aspen_mp.Runtime(workers=2) as runtime:

        def look() -> None:
            if not tried.is_set():
                schedule = runtime.status()["schedule"]
                seen.add(schedule["phase"])
                if schedule["pairs"]:
                    tried.set()

        with runtime.workload(schedule=True) as workload:
            workload.add(small_models.mlp(), name="one", feeds=lambda: {"x": X}, share=2.0)
            workload.add(small_models.mlp(), name="other", feeds=lambda: None if enough.is_set() else {"x": X}, on_result=lambda _: look())
            workload.start()
            assert tried.wait(120), runtime.status()["schedule"]
            one, other = workload.status()
            schedule = one["schedule"]
            assert schedule == other["schedule"]
            assert schedule["version"] >= 1
            assert schedule["predicted_ms"] > 0
            assert schedule["naive"] >= schedule["value"] >= schedule["bound"] > 0
            assert len(schedule["models"]) == len(schedule["times"]) == 2
            assert schedule["measured_ms"] is not None
            enough.set()
            process_tools.wait_until(lambda: runtime.status()["schedule"]["phase"] == "alone", "the other one to be alone")
        assert {"waiting", "trial"} <= seen
        assert runtime.status()["schedule"] is None
        assert workload.status()[0]["schedule"] is None


def test_a_workload_has_no_schedule_unless_it_asks(shared_runtime: aspen_mp.Runtime) -> None:
    came = threading.Event()
    with shared_runtime.workload() as workload:
        workload.add(small_models.mlp(), name="endless", feeds=lambda: {"x": X}, on_result=lambda _: came.set())
        workload.start()
        assert came.wait(60)
        assert workload.status()[0]["schedule"] is None
        assert shared_runtime.status()["schedule"] is None
