"""A network whose images are normalised by groups of channels: onnxruntime's results in any legal order, the same bits for any tiling, and
one layout from its first convolution to its last."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper
from test_plans_agree import check, planned
from test_volumes_agree import Net

from aspen_mp.shm.tables import KERNEL_BY_CODE


class Images(Net):
    def group_norm(self, x: str, groups: int, channels: int, size: int) -> str:
        """As PyTorch writes it."""
        grouped = self("Reshape", x, self.constant(np.array([0, groups, -1])))
        neutral = [self.constant(f(groups, np.float32)) for f in (np.ones, np.zeros)]
        y = self("Reshape", self("InstanceNormalization", grouped, *neutral), self.constant(np.array([-1, channels, size, size])))
        scale, shift = (self.constant(self.rng.uniform(0.5, 1.5, (channels, 1, 1)).astype(np.float32)) for _ in range(2))
        return self("Add", self("Mul", y, scale), shift)


def network(batch: int) -> onnx.ModelProto:
    net = Images()
    x = net.conv("x", 3, 32, (3, 3), pads=[1] * 4)
    for size, inputs, outputs in ((30, 32, 48), (15, 48, 32)):
        y = net.group_norm(x, 8, inputs, size)
        y = net("Mul", y, net("Sigmoid", y))
        x = net.conv(y, inputs, outputs, (3, 3), pads=[1] * 4, strides=[2, 2])
    y = net("InstanceNormalization", x, *(net.constant(net.rng.uniform(0.5, 1.5, 32).astype(np.float32)) for _ in range(2)))
    x = net("Add", x, net.conv(net("Relu", y), 32, 32, (3, 3), pads=[1] * 4))
    out = net.conv(net.group_norm(x, 1, 32, 8), 32, 5, (1, 1))
    graph = helper.make_graph(
        net.nodes,
        "images",
        [helper.make_tensor_value_info("x", 1, (batch, 3, 30, 30))],
        [helper.make_tensor_value_info(out, 1, None)],
        net.weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("batch", [1, 3])
def test_network(batch: int) -> None:
    check(network(batch), {"x": np.random.default_rng(1).standard_normal((batch, 3, 30, 30)).astype(np.float32) + 2})


def test_one_layout() -> None:
    """Nothing is copied but the output."""
    plan = planned(network(1).SerializeToString(), {"x": np.zeros((1, 3, 30, 30), np.float32)}, 2).plan
    kernels = [KERNEL_BY_CODE[int(code)].name for code in plan.ops["kernel"]]
    assert kernels.count("STANDARDIZE") == 4
    assert "NORM" not in kernels
    assert kernels.count("COPY") <= 1
