"""Small models for tests of the interface."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

F32 = TensorProto.FLOAT


def _model(nodes, inputs, outputs, initializers=(), name="m") -> onnx.ModelProto:
    graph = helper.make_graph(nodes, name, inputs, outputs, [numpy_helper.from_array(a, n) for n, a in initializers])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def mlp(batch: int | str = 4, seed: int = 0, width: int = 64) -> onnx.ModelProto:
    """relu(x @ w1 + b1) @ w2: x is [batch, 16], y is [batch, 8]."""
    rng = np.random.default_rng(seed)
    weights = {
        "w1": rng.standard_normal((16, width)).astype(np.float32),
        "b1": rng.standard_normal(width).astype(np.float32),
        "w2": rng.standard_normal((width, 8)).astype(np.float32),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["h"], "first"),
        helper.make_node("Add", ["h", "b1"], ["hb"], "bias"),
        helper.make_node("Relu", ["hb"], ["r"], "relu"),
        helper.make_node("MatMul", ["r", "w2"], ["y"], "second"),
    ]
    x = helper.make_tensor_value_info("x", F32, [batch, 16])
    y = helper.make_tensor_value_info("y", F32, [batch, 8])
    return _model(nodes, [x], [y], weights.items(), "mlp")


def projection(rows: int, terms: int, columns: int) -> onnx.ModelProto:
    """x @ w + b: x is f32 [rows, terms], y is [rows, columns]."""
    rng = np.random.default_rng(4)
    weights = {
        "w": (rng.standard_normal((terms, columns)) / np.sqrt(terms)).astype(np.float32),
        "b": rng.standard_normal(columns).astype(np.float32),
    }
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"], "product"), helper.make_node("Add", ["h", "b"], ["y"], "bias")]
    info = [helper.make_tensor_value_info(name, F32, shape) for name, shape in (("x", [rows, terms]), ("y", [rows, columns]))]
    return _model(nodes, info[:1], info[1:], weights.items(), "projection")


def mlp_reference(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    w = {t.name: numpy_helper.to_array(t).astype(np.float64) for t in model.graph.initializer}
    return np.maximum(x.astype(np.float64) @ w["w1"] + w["b1"], 0) @ w["w2"]


def two_inputs() -> onnx.ModelProto:
    """sum = a + b, scaled = a * 2; a is f32 [n, 3], b is f32 [3]."""
    nodes = [helper.make_node("Add", ["a", "b"], ["sum"], "add"), helper.make_node("Mul", ["a", "two"], ["scaled"], "scale")]
    inputs = [helper.make_tensor_value_info("a", F32, ["n", 3]), helper.make_tensor_value_info("b", F32, [3])]
    outputs = [helper.make_tensor_value_info("sum", F32, ["n", 3]), helper.make_tensor_value_info("scaled", F32, ["n", 3])]
    return _model(nodes, inputs, outputs, [("two", np.array(2, np.float32))], "two")


def conv_chain(layers: int = 8, channels: int = 32, size: int = 32) -> onnx.ModelProto:
    """`layers` 3×3 convolutions, so that a request takes some milliseconds: x and y are f32 [1, channels, size, size]."""
    rng = np.random.default_rng(1)
    nodes, weights, last = [], [], "x"
    for i in range(layers):
        weights.append((f"w{i}", (rng.standard_normal((channels, channels, 3, 3)) / np.sqrt(9 * channels)).astype(np.float32)))
        out = "y" if i == layers - 1 else f"t{i}"
        nodes.append(helper.make_node("Conv", [last, f"w{i}"], [out], f"conv{i}", pads=[1, 1, 1, 1]))
        last = out
    info = [helper.make_tensor_value_info(name, F32, [1, channels, size, size]) for name in ("x", "y")]
    return _model(nodes, info[:1], info[1:], weights, "chain")


def negative_variance() -> onnx.ModelProto:
    """A convolution and a BatchNormalization whose second channel has a negative variance: y is NaN there. x and y are f32 [1, 2, 4, 4]."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["h"], "conv"),
        helper.make_node("BatchNormalization", ["h", "one", "zero", "zero", "variance"], ["y"], "norm"),
    ]
    constants = {"one": [1, 1], "zero": [0, 0], "variance": [1, -1]}
    weights = [("w", np.ones((2, 2, 1, 1), np.float32)), *((name, np.array(a, np.float32)) for name, a in constants.items())]
    info = [helper.make_tensor_value_info(name, F32, [1, 2, 4, 4]) for name in ("x", "y")]
    return _model(nodes, info[:1], info[1:], weights, "norm")


def nonzero() -> onnx.ModelProto:
    """y = x[x != 0] * 2: the result's shape depends on the values of x, which is f32 [n]. Two stages: a product is worth a plan."""
    nodes = [
        helper.make_node("NonZero", ["x"], ["i"], "nonzero"),
        helper.make_node("Transpose", ["i"], ["it"], "transpose", perm=[1, 0]),
        helper.make_node("GatherND", ["x", "it"], ["v"], "gather"),
        helper.make_node("Reshape", ["v", "column"], ["c"], "column"),
        helper.make_node("MatMul", ["c", "two"], ["d"], "double"),
        helper.make_node("Reshape", ["d", "flat"], ["y"], "flat"),
    ]
    inputs = [helper.make_tensor_value_info("x", F32, ["n"])]
    outputs = [helper.make_tensor_value_info("y", F32, ["k"])]
    constants = [("two", np.array([[2]], np.float32)), ("column", np.array([-1, 1])), ("flat", np.array([-1]))]
    return _model(nodes, inputs, outputs, constants, "nonzero")


def reshape_by_input() -> onnx.ModelProto:
    """y = reshape(x, shape) + 1: `shape` is an input, so its value decides the plan."""
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["r"], "reshape"), helper.make_node("Add", ["r", "one"], ["y"], "add")]
    inputs = [helper.make_tensor_value_info("x", F32, ["n"]), helper.make_tensor_value_info("shape", TensorProto.INT64, [2])]
    outputs = [helper.make_tensor_value_info("y", F32, ["a", "b"])]
    return _model(nodes, inputs, outputs, [("one", np.array(1, np.float32))], "reshape")


def strings() -> onnx.ModelProto:
    """y = StringConcat(a, b), strings [n]: runs through the reference, with serialised values."""
    nodes = [helper.make_node("StringConcat", ["a", "b"], ["y"], "concat")]
    value = [helper.make_tensor_value_info(name, TensorProto.STRING, ["n"]) for name in ("a", "b", "y")]
    graph = helper.make_graph(nodes, "strings", value[:2], value[2:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def gather() -> onnx.ModelProto:
    """y = table[i]; table is f32 [4, 2] and constant: an index out of range fails at run time."""
    nodes = [helper.make_node("Gather", ["table", "i"], ["y"], "lookup")]
    inputs = [helper.make_tensor_value_info("i", TensorProto.INT64, [3])]
    outputs = [helper.make_tensor_value_info("y", F32, [3, 2])]
    return _model(nodes, inputs, outputs, [("table", np.arange(8, dtype=np.float32).reshape(4, 2))], "gather")


def loop() -> onnx.ModelProto:
    """y = a loop that adds 1 to 0 `n` times and stops when it reaches `limit`: a single opaque tile that takes as long as one likes."""
    body = helper.make_graph(
        [
            helper.make_node("Add", ["v", "one"], ["w"], "step"),
            helper.make_node("Less", ["w", "limit"], ["go"], "more"),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v", F32, []),
        ],
        [helper.make_tensor_value_info("go", TensorProto.BOOL, []), helper.make_tensor_value_info("w", F32, [])],
    )
    nodes = [helper.make_node("Loop", ["n", "yes", "zero"], ["y"], "count", body=body)]
    inputs = [helper.make_tensor_value_info("n", TensorProto.INT64, []), helper.make_tensor_value_info("limit", F32, [])]
    outputs = [helper.make_tensor_value_info("y", F32, [])]
    constants = [("yes", np.array(True)), ("zero", np.array(0, np.float32)), ("one", np.array(1, np.float32))]
    return _model(nodes, inputs, outputs, constants, "loop")


def with_defaults() -> onnx.ModelProto:
    """y = reshape(x, shape) * scale; x is f32 [n, 6]; scale (2 of f32 []) and shape ([-1, 3]) are initializers that are inputs too."""
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["r"], "fold"), helper.make_node("Mul", ["r", "scale"], ["y"], "scale")]
    inputs = [
        helper.make_tensor_value_info("x", F32, ["n", 6]),
        helper.make_tensor_value_info("scale", F32, []),
        helper.make_tensor_value_info("shape", TensorProto.INT64, [2]),
    ]
    outputs = [helper.make_tensor_value_info("y", F32, ["a", "b"])]
    return _model(nodes, inputs, outputs, [("scale", np.array(2, np.float32)), ("shape", np.array([-1, 3]))], "with_defaults")
