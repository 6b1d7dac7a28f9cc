"""A small network of pictures, and frames for it that differ little from the ones before."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, np.dtype[Any]]
SIDE = 48


def pictures(height: int | str = SIDE, width: int | str = SIDE, *, gain: bool = False) -> onnx.ModelProto:
    """Two convolutions: x is f32 [1, 3, height, width], y is f32 [1, 4, height, width]. `gain`: y is multiplied by an input f32 [1]."""
    rng = np.random.default_rng(0)
    stored = [
        numpy_helper.from_array((rng.standard_normal(shape) / 5).astype(np.float32), name)
        for name, shape in (("v", (8, 3, 3, 3)), ("w", (4, 8, 3, 3)))
    ]
    nodes = [helper.make_node("Conv", ["x", "v"], ["c"], pads=[1] * 4), helper.make_node("Relu", ["c"], ["r"])]
    nodes.append(helper.make_node("Conv", ["r", "w"], ["d" if gain else "y"], pads=[1] * 4))
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, height, width])]
    if gain:
        nodes.append(helper.make_node("Mul", ["d", "gain"], ["y"]))
        inputs.append(helper.make_tensor_value_info("gain", TensorProto.FLOAT, [1]))
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4, height, width])]
    graph = helper.make_graph(nodes, "pictures", inputs, outputs, stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def frames(count: int, height: int = SIDE, width: int = SIDE, seed: int = 0) -> list[Array]:
    """Pictures, of which each differs from the one before in a square, or not at all."""
    rng = np.random.default_rng(seed)
    found = [rng.standard_normal((1, 3, height, width)).astype(np.float32)]
    while len(found) < count:
        frame = found[-1].copy()
        if rng.random() < 0.8:
            top, left = rng.integers(0, height - 4), rng.integers(0, width - 4)
            frame[:, :, top : top + 4, left : left + 4] = rng.standard_normal((1, 3, 4, 4))
        found.append(frame)
    return found
