"""A network over three spatial axes with all that such networks are made of: onnxruntime's results in any legal order, the same bits for
any tiling, and one layout from its input to its output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from test_plans_agree import check, planned

from aspen_mp.shm.tables import KERNEL_BY_CODE


class Net:
    """Nodes one after the other, with random weights."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[TensorProto] = []

    def constant(self, value: np.ndarray[Any, Any]) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(value, name))
        return name

    def __call__(self, op: str, *inputs: str, **attrs: Any) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], f"{op}{len(self.nodes)}", **attrs))
        return name

    def conv(self, x: str, inputs: int, outputs: int, kernel: Sequence[int], groups: int = 1, op: str = "Conv", **attrs: Any) -> str:
        shape = (outputs, inputs // groups, *kernel) if op == "Conv" else (inputs, outputs // groups, *kernel)
        scale = (np.prod(kernel) * inputs // groups) ** -0.5
        w, b = (self.constant((self.rng.standard_normal(s) * scale).astype(np.float32)) for s in (shape, (outputs,)))
        return self(op, x, w, b, group=groups, **attrs)

    def norm(self, x: str, channels: int) -> str:
        values = [self.rng.uniform(0.5, 1.5, channels).astype(np.float32) for _ in range(4)]
        return self("BatchNormalization", x, *(self.constant(v) for v in values))


def network(batch: int) -> onnx.ModelProto:
    net = Net()
    same = {"pads": [1] * 6}
    stem = net("Relu", net.norm(net.conv("x", 2, 24, (3, 5, 5), pads=[1, 2, 2, 1, 2, 2], strides=[1, 2, 2]), 24))
    wide = net("Relu", net.conv(stem, 24, 40, (3, 3, 3), **same))
    wide = net("Relu", net("Add", net.norm(net.conv(wide, 40, 24, (3, 3, 3), **same), 24), stem))
    flat = net.conv(net("Relu", net.conv(wide, 24, 33, (1, 3, 3), pads=[0, 1, 1, 0, 1, 1])), 33, 24, (3, 1, 1), pads=[1, 0, 0, 1, 0, 0])
    deep = net("Sigmoid", net.conv(net("Add", flat, wide), 24, 24, (3, 3, 3), groups=24, **same))
    low = net("MaxPool", deep, kernel_shape=[2, 3, 3], strides=[2, 2, 2], pads=[0, 1, 1, 0, 1, 1])
    low = net("Relu", net.conv(low, 24, 48, (3, 3, 3), groups=6, **same))
    low = net("AveragePool", low, kernel_shape=[3, 3, 3], pads=[1] * 6)
    up = net.conv(low, 48, 24, (2, 2, 2), op="ConvTranspose", strides=[2, 2, 2])
    both = net("Concat", up, wide, axis=1)
    big = net("Resize", both, "", net.constant(np.array([1, 1, 1, 2, 2], np.float32)), mode="linear")
    out = net.conv(net("Relu", net.conv(big, 48, 16, (3, 3, 3), dilations=[2, 1, 1], pads=[2, 1, 1, 2, 1, 1])), 16, 3, (1, 1, 1))
    mean = net("GlobalAveragePool", net.conv(both, 48, 10, (1, 1, 1), strides=[2, 2, 2]))
    infos = [helper.make_tensor_value_info(name, 1, None) for name in (out, mean)]
    graph = helper.make_graph(net.nodes, "volumes", [helper.make_tensor_value_info("x", 1, (batch, 2, 6, 24, 28))], infos, net.weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("batch", [1, 2])
def test_network(batch: int) -> None:
    check(network(batch), {"x": np.random.default_rng(1).standard_normal((batch, 2, 6, 24, 28)).astype(np.float32)})


def test_one_layout() -> None:
    """Nothing is copied but where a transposed convolution puts its images together, right where they are concatenated, and one output."""
    feeds = {"x": np.zeros((1, 2, 6, 24, 28), np.float32)}
    plan = planned(network(1).SerializeToString(), feeds, 2).plan
    assert [KERNEL_BY_CODE[int(code)].name for code in plan.ops["kernel"]].count("COPY") == 2
