"""LSTM, GRU and RNN through the planner: what kernels serve, beside the operators in numpy; plans cut at random; what stays as it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as hs
from kernel_graphs import run_model
from onnx import helper
from plan_executor import PlanExecutor
from plan_requests import plan_request
from small_graphs import random_grids
from test_recurrent import GATES, NAMES, model, run, tensors

from aspen_mp.planner import api
from aspen_mp.planner.build import PlanOptions, build_plan
from aspen_mp.planner.frontends.binding.bind import Binding
from aspen_mp.planner.ir.graph import Graph
from aspen_mp.planner.job.options import AUTOMATIC
from aspen_mp.planner.lower import recurrent
from aspen_mp.planner.lower.builder import Builder
from aspen_mp.planner.lower.recurrent import MOST_ALONE, RUNS, Layer, runs
from aspen_mp.planner.plan.validate import validate
from aspen_mp.shm.tables import KERNEL_BY_CODE
from aspen_mp.workers import _kernels

CONSTANT = ("W", "R", "B", "lens")


def frozen(proto: onnx.ModelProto, feeds: dict[str, Any], names: tuple[str, ...] = CONSTANT) -> dict[str, Any]:
    """Makes these inputs initializers; the others."""
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(feeds[n], n) for n in names if n in feeds)
    for info in [i for i in proto.graph.input if i.name in names]:
        proto.graph.input.remove(info)
    return {n: x for n, x in feeds.items() if n not in names}


@hs.composite
def layers(draw: Any) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """(operator, inputs, attributes) that kernels serve."""
    op = draw(hs.sampled_from(sorted(GATES)))
    direction = draw(hs.sampled_from(["forward", "reverse", "bidirectional"]))
    directions = 1 + (direction == "bidirectional")
    sizes = [draw(hs.integers(1, most)) for most in (7, 8, 5, 40)]
    optional = draw(hs.sets(hs.sampled_from([n for n in NAMES[op][3:] if n not in ("lens", "P")])))
    feeds = tensors(op, *sizes, directions, draw(hs.integers(0, 1000)), optional)
    feeds = {n: x if n == "X" else x * np.float32(0.3) for n, x in feeds.items()}
    if draw(hs.booleans()):
        feeds["lens"] = np.full(sizes[1], sizes[0], np.int32)
    feeds = {n: feeds[n] for n in NAMES[op] if n in feeds}
    attributes: dict[str, Any] = {"direction": direction, "layout": draw(hs.sampled_from([0, 1]))}
    if op == "GRU":
        attributes["linear_before_reset"] = draw(hs.sampled_from([0, 1]))
    if op == "RNN" and draw(hs.booleans()):
        attributes["activations"] = [draw(hs.sampled_from(["Relu", "Tanh"]))] * directions
    if attributes["layout"]:
        feeds = {n: np.ascontiguousarray(x.swapaxes(0, 1)) if n in {"X", "h0", "c0"} else x for n, x in feeds.items()}
    return op, feeds, attributes


@pytest.mark.parametrize("way", ["as it is", "many runs", "steps alone"])
@given(layer=layers())
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_as_in_numpy(way: str, layer: tuple[str, dict[str, Any], dict[str, Any]]) -> None:
    op, feeds, attributes = layer
    proto = model(op, feeds, **attributes)
    want = run(proto, feeds)
    rest, counts = frozen(proto, feeds), {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recurrent, "RUN_NS", 1.0 if way == "many runs" else 1e5)
        patch.setattr(recurrent, "ALONE_BYTES", 0 if way == "steps alone" else 1 << 20)
        got = run_model(api.load(proto), rest, counts=counts)
    assert "OPAQUE" not in counts
    assert counts[op] >= 1
    for x, y in zip(got, want, strict=True):
        assert x.shape == y.shape
        np.testing.assert_allclose(x, y, rtol=0, atol=4e-6 * max(1.0, float(np.abs(y).max())))


def stack(op: str, steps: int, batch: int, size: int, hidden: int, deep: int = 2, seed: int = 0, **attributes: Any) -> onnx.ModelProto:
    """Layers one behind the other, as PyTorch exports them: Y is turned and reshaped between them; all states are outputs, too."""
    directions = 1 + (attributes.get("direction") == "bidirectional")
    nodes, initializers, outputs, x = [], [], [], "x"
    for k in range(deep):
        feeds = tensors(op, steps, batch, size if k == 0 else directions * hidden, hidden, directions, seed + k, {"B"})
        names = {n: f"{n}{k}" for n in ("W", "R", "B")}
        initializers += [onnx.numpy_helper.from_array(feeds[n] * np.float32(0.4), name) for n, name in names.items()]
        states = [f"h{k}", f"c{k}"] if op == "LSTM" else [f"h{k}"]
        nodes.append(helper.make_node(op, [x, *names.values()], [f"y{k}", *states], hidden_size=hidden, **attributes))
        nodes.append(helper.make_node("Transpose", [f"y{k}"], [f"t{k}"], perm=[0, 2, 1, 3]))
        initializers.append(onnx.numpy_helper.from_array(np.array([0, 0, -1]), f"s{k}"))
        nodes.append(helper.make_node("Reshape", [f"t{k}", f"s{k}"], [f"x{k}"]))
        x = f"x{k}"
        outputs += states
    infos = [helper.make_tensor_value_info(n, 1, None) for n in (x, *outputs)]
    graph = helper.make_graph(nodes, "stack", [helper.make_tensor_value_info("x", 1, (steps, batch, size))], infos, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def lowered(proto: onnx.ModelProto, shape: tuple[int, ...]) -> Graph:
    loaded = api.load(proto)
    stage = api.stages.derive(loaded, [{"x": Binding(np.dtype(np.float32), shape, None)}])
    return api.lowered(stage.graph, loaded, [v.name for v in stage.outputs], plan_request())


def executed(plan: Any, x: Any, seed: int) -> list[Any]:
    """The plan's outputs by the real kernels, its tiles in a random legal order."""
    executor = PlanExecutor(plan)

    def tile(t: int) -> None:
        row = executor.tiles[t]
        op = executor.ops[row["op"]]
        kernel = KERNEL_BY_CODE[int(op["kernel"])].name
        if kernel in ("JOIN", "END"):
            return
        first, count = int(op["operand"]), int(op["n_outputs"]) + int(op["n_inputs"])
        args = [executor.array(o) for o in executor.operands[first : first + count]]
        given = executor.params[int(op["param"]) : int(op["param"]) + int(op["n_params"])].tolist()
        rank = args[0].ndim
        assert _kernels.call(kernel, args, given, row["lo"].tolist()[:rank], row["hi"].tolist()[:rank]) == 0

    executor.tile = tile  # type: ignore[method-assign]
    return executor.run([x], "random", seed)


@pytest.mark.parametrize(("op", "attributes"), [("LSTM", {}), ("GRU", {}), ("GRU", {"linear_before_reset": 1}), ("RNN", {})])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("alone", [False, True])
def test_any_tiles_in_any_order(op: str, attributes: dict[str, int], direction: str, alone: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bits, and those of the whole nodes one after the other; tiles that cut steps, rows and units, also with cell states."""
    monkeypatch.setattr(recurrent, "RUN_NS", 1.0)
    monkeypatch.setattr(recurrent, "RUNS", 3)
    monkeypatch.setattr(recurrent, "ALONE_BYTES", 0 if alone else 1 << 20)
    proto = stack(op, 6, 3, 5, 37, direction=direction, **attributes)
    x = np.random.default_rng(1).standard_normal((6, 3, 5), dtype=np.float32)
    want = run_model(api.load(proto), {"x": x})
    graph = lowered(proto, x.shape)
    for seed in range(4):
        plan = build_plan(graph, workers=2, options=PlanOptions(grids=random_grids(seed) if seed else None))
        validate(plan.segment())
        for got, expected in zip(executed(plan, x, seed), want, strict=True):
            np.testing.assert_array_equal(got, expected)


def test_parts_of_y_lie_in_it() -> None:
    """Neither runs nor directions are copied, nor is what the next layer reads."""
    graph = lowered(stack("LSTM", 64, 4, 128, 256, direction="bidirectional"), (64, 4, 128))
    plan = build_plan(graph, workers=2)
    kernels = [KERNEL_BY_CODE[int(k)].name for k in plan.ops["kernel"]]
    assert kernels.count("LSTM") > 4
    states = 4 * 2  # of each layer and direction, which are put together
    assert kernels.count("COPY") <= states


@pytest.mark.parametrize("op", GATES)
def test_number_of_nodes_is_bounded(op: str) -> None:
    attrs = {"form": "reset first"} if op == "GRU" else {}
    for hidden in (8, 256, 512, 2048):
        for batch in (1, 64):
            for steps in (1, 2, MOST_ALONE, MOST_ALONE + 1, 5000):
                cuts = runs(Builder(), Layer(op, attrs, steps, batch, hidden))
                assert [a for a, _ in cuts] == [0, *(e for _, e in cuts[:-1])]
                assert cuts[-1][1] == steps
                assert len(cuts) * (1 + (op == "GRU")) <= MOST_ALONE
                assert len(cuts) <= RUNS or len(cuts) == steps


def test_large_weights_make_steps_nodes_whose_units_are_shared() -> None:
    graph = lowered(stack("LSTM", 5, 1, 16, 600, deep=1), (5, 1, 16))
    for workers, fewest in ((1, 1), (2, 2), (8, 4)):
        plan = build_plan(graph, workers=workers, planning=AUTOMATIC)
        ops = [k for k, code in enumerate(plan.ops["kernel"].tolist()) if KERNEL_BY_CODE[code].name == "LSTM"]
        assert len(ops) == 5
        assert all((plan.tiles["op"] == k).sum() >= fewest for k in ops)


@pytest.mark.parametrize(
    ("op", "changes", "attributes"),
    [
        ("LSTM", {"P"}, {}),
        ("LSTM", set(), {"clip": 0.5}),
        ("LSTM", set(), {"input_forget": 1}),
        ("GRU", {"lens"}, {}),
        ("GRU", set(), {"activations": ["HardSigmoid", "Tanh"]}),
        ("RNN", set(), {"activations": ["Relu", "Tanh"], "direction": "bidirectional"}),
    ],
)
def test_what_has_no_kernel_stays_as_it_was(op: str, changes: set[str], attributes: dict[str, Any]) -> None:
    feeds = tensors(op, 4, 2, 3, 5, 1 + ("direction" in attributes), 11, {"B", *changes})
    if "lens" in feeds:
        feeds["lens"] = np.array([4, 2], np.int32)
    proto = model(op, feeds, **attributes)
    want = run(proto, feeds)
    rest, counts = frozen(proto, feeds), {}
    got = run_model(api.load(proto), rest, counts=counts)
    assert counts.get("OPAQUE") == 1
    for x, y in zip(got, want, strict=True):
        np.testing.assert_array_equal(x, y)


def test_lengths_and_weights_that_are_fed() -> None:
    feeds = tensors("GRU", 3, 2, 4, 6, 1, 5, {"B"}) | {"lens": np.array([3, 3], np.int32)}
    feeds = {n: feeds[n] for n in NAMES["GRU"] if n in feeds}
    for names, opaque in ((("W", "R", "B"), 1), (("W", "B", "lens"), 1), (("R", "B", "lens"), 0)):
        proto = model("GRU", feeds)
        want = run(proto, feeds)
        rest, counts = frozen(proto, feeds, names), {}
        got = run_model(api.load(proto), rest, counts=counts)
        assert counts.get("OPAQUE", 0) == opaque
        for x, y in zip(got, want, strict=True):
            np.testing.assert_allclose(x, y, atol=2e-6)


@pytest.mark.parametrize(("op", "outputs"), [("LSTM", ["", "", "c"]), ("LSTM", ["y", "", "c"]), ("LSTM", ["y"]), ("GRU", ["", "h"])])
@pytest.mark.parametrize("constant", [False, True])
def test_outputs_that_are_left_out(op: str, outputs: list[str], constant: bool) -> None:
    feeds = tensors(op, 4, 2, 3, 3, 1, 9, {"B", "h0"})
    want = run(model(op, feeds), feeds)
    proto = model(op, feeds, outputs=outputs)
    rest, counts = frozen(proto, feeds, tuple(feeds) if constant else CONSTANT), {}
    got = run_model(api.load(proto), rest, counts=counts)
    assert counts[op] == 1
    for x, y in zip(got, [want[k] for k, name in enumerate(outputs) if name], strict=True):
        np.testing.assert_allclose(x, y, atol=1e-6)
