"""Small networks in floats to be quantised: convolutions with normalisation, products, a block of a transformer."""

from __future__ import annotations

import numpy as np
import onnx
import small_models
from onnx import TensorProto, helper, numpy_helper

F32 = TensorProto.FLOAT


def _built(name: str, nodes: list[onnx.NodeProto], shapes: dict[str, list], weights: dict[str, np.ndarray]) -> onnx.ModelProto:
    x, *outputs = [helper.make_tensor_value_info(key, F32, shape) for key, shape in shapes.items()]
    graph = helper.make_graph(nodes, name, [x], outputs, [numpy_helper.from_array(value, key) for key, value in weights.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def conv_net(seed: int = 0) -> onnx.ModelProto:
    """Two convolutions with BatchNormalization and ReLU, a mean and a product: x is f32 [1, 3, 16, 16], y is f32 [1, 10]."""
    rng = np.random.default_rng(seed)
    weights: dict[str, np.ndarray] = {}
    nodes, last, channels = [], "x", 3
    for k in range(2):
        weights[f"w{k}"] = (rng.standard_normal((8, channels, 3, 3)) / np.sqrt(9 * channels)).astype(np.float32)
        for name, value in zip(("scale", "shift", "mean", "variance"), (1.5, 0.1, 0.05, 0.8), strict=True):
            weights[f"{name}{k}"] = np.full(8, value, np.float32)
        norm = [f"c{k}", *(f"{name}{k}" for name in ("scale", "shift", "mean", "variance"))]
        nodes += [
            helper.make_node("Conv", [last, f"w{k}"], [f"c{k}"], f"conv{k}", pads=[1, 1, 1, 1]),
            helper.make_node("BatchNormalization", norm, [f"n{k}"], f"norm{k}"),
            helper.make_node("Relu", [f"n{k}"], [f"r{k}"], f"relu{k}"),
        ]
        last, channels = f"r{k}", 8
    weights["head"] = rng.standard_normal((8, 10)).astype(np.float32)
    nodes += [
        helper.make_node("GlobalAveragePool", [last], ["pooled"], "pool"),
        helper.make_node("Flatten", ["pooled"], ["flat"], "flatten"),
        helper.make_node("Gemm", ["flat", "head"], ["y"], "head"),
    ]
    return _built("conv_net", nodes, {"x": [1, 3, 16, 16], "y": [1, 10]}, weights)


def mlp() -> onnx.ModelProto:
    """Two products with a bias and ReLU: x is f32 [batch, 16], y is f32 [batch, 8]."""
    return small_models.mlp("batch", width=32)


def masked_attention(seed: int = 0) -> onnx.ModelProto:
    """Attention whose scores are masked by the most negative number, and a product: x is f32 [1, 6, 16], y is f32 [1, 6, 16].

    Rounded to 256 levels, the masked scores are all the same: "mask" and "softmax" have to stay in floats."""
    rng = np.random.default_rng(seed)
    weights = {name: (rng.standard_normal((16, 16)) / 4).astype(np.float32) for name in ("wq", "wk", "wv", "wo")}
    weights["bias"] = np.triu(np.full((6, 6), np.finfo(np.float32).min, np.float32), 1)
    nodes = [
        helper.make_node("MatMul", ["x", "wq"], ["q"], "query"),
        helper.make_node("MatMul", ["x", "wk"], ["k"], "key"),
        helper.make_node("MatMul", ["x", "wv"], ["v"], "value"),
        helper.make_node("Transpose", ["k"], ["kt"], "turned", perm=[0, 2, 1]),
        helper.make_node("MatMul", ["q", "kt"], ["scores"], "scores"),
        helper.make_node("Add", ["scores", "bias"], ["masked"], "mask"),
        helper.make_node("Softmax", ["masked"], ["p"], "softmax", axis=-1),
        helper.make_node("MatMul", ["p", "v"], ["mixed"], "mixed"),
        helper.make_node("MatMul", ["mixed", "wo"], ["o"], "output"),
        helper.make_node("Add", ["o", "x"], ["y"], "residual"),
    ]
    return _built("attention", nodes, {"x": [1, 6, 16], "y": [1, 6, 16]}, weights)


NETWORKS = {"conv_net": conv_net, "mlp": mlp, "masked_attention": masked_attention}


def samples(model: onnx.ModelProto, count: int = 6, seed: int = 0) -> list[dict[str, np.ndarray]]:
    """Normal values for the input x, with 4 rows where their number is open."""
    rng = np.random.default_rng(seed)
    dims = [d.dim_value or 4 for d in model.graph.input[0].type.tensor_type.shape.dim]
    return [{"x": rng.standard_normal(dims).astype(np.float32)} for _ in range(count)]


def rounded(model: onnx.ModelProto) -> set[str]:
    """Names of the nodes whose outputs QuantizeLinear rounds."""
    inputs = {node.input[0] for node in model.graph.node if node.op_type == "QuantizeLinear"}
    return {node.name for node in model.graph.node if inputs.intersection(node.output)}
