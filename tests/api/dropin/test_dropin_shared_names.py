"""Constants that share a name: the last Constant node counts, else the last initializer, as in onnxruntime. Whatever else gives a name
twice is refused by both."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import GraphProto, TensorProto, helper, numpy_helper

import aspen_mp
from aspen_mp.compat import onnxruntime as compat
from aspen_mp.shm.errors import ModelInvalidError

X = np.array([10, 20], np.float32)
WAYS = ("value", "value_floats", "sparse_value")
OTHERS = ("node", "other shape", "other type")


def constant(rng: np.random.Generator, way: str) -> Any:
    """A Constant node that gives c, two numbers."""
    values = rng.integers(1, 50, 2).astype(np.float32)
    if way == "value":
        return helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(values))
    if way == "value_floats":
        return helper.make_node("Constant", [], ["c"], value_floats=values.tolist())
    indices = helper.make_tensor("", TensorProto.INT64, [1], [int(rng.integers(2))])
    sparse = helper.make_sparse_tensor(helper.make_tensor("", TensorProto.FLOAT, [1], values[:1]), indices, [2])
    return helper.make_node("Constant", [], ["c"], sparse_value=sparse)


def other(kind: str) -> Any:
    """A node that gives c and cannot share the name."""
    if kind == "node":
        return helper.make_node("Neg", ["x"], ["c"])
    value = np.ones((1, 2), np.float32) if kind == "other shape" else np.ones(2, np.float64)
    return helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(value))


def drawn(rng: np.random.Generator, constants: list[Any], initializers: int, declared: bool) -> GraphProto:
    """A graph that adds c to x as often as there are constants; these stand anywhere."""
    nodes, name = [], "x"
    for k in range(len(constants) + 1):
        nodes.append(helper.make_node("Add", [name, "c"], [f"t{k}"]))
        name = f"t{k}"
    for node in constants:
        nodes.insert(int(rng.integers(len(nodes) + 1)), node)
    nodes.append(helper.make_node("Identity", [name], ["y"]))
    ends = {end: helper.make_tensor_value_info(end, TensorProto.FLOAT, [2]) for end in "xcy"}
    inits = [numpy_helper.from_array(rng.integers(1, 50, 2).astype(np.float32), "c") for _ in range(initializers)]
    return helper.make_graph(nodes, "g", [ends["x"], ends["c"]] if declared else [ends["x"]], [ends["y"]], inits)


def run(module: Any, graph: GraphProto, ir_version: int, **more: Any) -> list[Any]:
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=ir_version)
    session = module.InferenceSession(model.SerializeToString(), **more)
    default = session.run(None, {"x": X})[0]
    names = [value.name for value in session.get_overridable_initializers()]
    given = session.run(None, {"x": X, "c": X})[0] if names else default
    return [names, default.tolist(), given.tolist()]


@pytest.fixture(autouse=True)
def _quiet() -> None:
    onnxruntime.set_default_logger_severity(4)


@pytest.mark.parametrize("seed", range(24))
def test_the_last_counts(seed: int, shared_runtime: aspen_mp.Runtime) -> None:
    rng = np.random.default_rng(seed)
    ways = [str(rng.choice(WAYS)) for _ in range(rng.integers(0, 4))]
    once = ["value" if way == "sparse_value" and way in ways[:k] else way for k, way in enumerate(ways)]  # onnxruntime takes one
    constants = [constant(rng, way) for way in once]
    initializers, declared = int(rng.integers(0 if constants else 1, 3)), bool(rng.integers(2))
    graph, ir_version = drawn(rng, constants, initializers, declared), int(rng.choice([3, 8] if declared or not initializers else [8]))
    assert run(compat, graph, ir_version, runtime=shared_runtime) == run(onnxruntime, graph, ir_version)


@pytest.mark.parametrize("kind", OTHERS)
@pytest.mark.parametrize("seed", range(4))
def test_what_cannot_share_a_name(seed: int, kind: str, shared_runtime: aspen_mp.Runtime) -> None:
    rng = np.random.default_rng([seed, len(kind)])
    constants = [constant(rng, "value"), other(kind)] if seed & 1 else [other(kind), *([other(kind)] if kind == "node" else [])]
    graph = drawn(rng, constants, 1 - (seed & 1), False)
    with pytest.raises(ModelInvalidError, match="'c'"):
        run(compat, graph, 8, runtime=shared_runtime)
    with pytest.raises(Exception, match="ONNXRuntimeError"):
        run(onnxruntime, graph, 8)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_one_warning_names_them(count: int, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    """onnxruntime warns, too. The planner process writes to the program's standard error."""
    rng = np.random.default_rng(count)
    model = helper.make_model(drawn(rng, [constant(rng, "value") for _ in range(count)], 0, False), ir_version=8)
    with aspen_mp.Runtime(workers=1) as runtime:
        loaded = runtime.load(model)
        for _ in range(3):
            loaded.run({"x": X})
    said = capfd.readouterr().err.count("constants share a name: 'c'. The last Constant node")
    assert said == (count > 1)
    assert not caplog.records
