"""Complaints of users about quantised networks elsewhere, as tests: they do not hold here.

- onnxruntime#12854: a quantised convolution is slower than that of floats.
- onnxruntime#12487: a sum of two quantised tensors stays apart.
- onnxruntime#24711: a convolution that takes in what stands around it gives other results.
- Sizes that change from request to request: `tests/models/ranges/test_quantised_sizes.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kernel_graphs import run_model
from net_tools import Net, lowered, ops
from quantised_layers import conv
from quantised_nets import Network, Quantiser, Style
from test_drawn_quantised import within
from test_quantization import alone
from test_stored_products import data, weight

from aspen_mp.planner import api
from aspen_mp.planner.cost import tile_cost

U8, I8 = np.uint8, np.int8


@pytest.mark.parametrize("size", [7, 14, 28, 56])
@pytest.mark.parametrize("channels", [32, 64, 256])
@pytest.mark.parametrize("kernel", [1, 3])
def test_integer_convolutions_are_predicted_to_be_faster(kernel: int, channels: int, size: int) -> None:
    """Than those of floats by any algorithm."""
    shape, w = (1, channels, size, size), np.ones((channels, channels, kernel, kernel))
    pads = {"pads": [kernel // 2] * 4}
    times = []
    for op, of_x, of_w, out in (("ConvInteger", U8, I8, np.int32), ("Conv", np.float32, np.float32, np.float32)):
        model = alone(op, {"x": (of_x, shape), "w": w.astype(of_w)}, {"y": out}, **pads)
        nodes = [n for n in lowered(model, {"x": np.ones(shape, of_x)}).nodes if not n.op.startswith("view.")]
        times.append(sum(tile_cost.whole_ns(node) for node in nodes))
        assert len(nodes) == 1
    assert times[0] < times[1]


def test_sums_of_quantised_tensors_are_part_of_a_convolution() -> None:
    net = Net(opset=21, x=(1, 32, 14, 14))
    x = data(net, "x")
    y = data(net, net("Relu", net("Conv", x, weight(net, 32, 32, 3, 3, axis=0), pads=[1] * 4)))
    y = data(net, net("Relu", net("Add", net("Conv", y, weight(net, 32, 32, 1, 1, axis=0)), x)))
    y = net("Conv", y, weight(net, 8, 32, 1, 1, axis=0))
    nodes = [n for n in lowered(net.model(y), {"x": np.ones(net.inputs["x"], np.float32)}).nodes if not n.op.startswith("view.")]
    assert ops(nodes).count("QCONV") == 3
    assert not {"BINARY", "UNARY", "CONV"} & set(ops(nodes))


@pytest.mark.parametrize("seed", range(16))
@pytest.mark.parametrize("kinds", [(U8,), (I8,)], ids=["u8", "i8"])
def test_convolutions_between_levels(kinds: Any, seed: int) -> None:
    """With biases, groups, windows and bounds of all kinds, and many channels."""
    net = Network(np.random.default_rng([seed, 24711]))
    b = Quantiser(net, Style(kinds=kinds, offsets=bool(seed % 2)))
    x = b.pair(net.feed(net.normal(1, int(net.choice([16, 33, 64])), 9, 8)))
    for _ in range(2):
        levels = b.fit(made := conv(b, x, []))
        x = b.dq(q := b.q(made, levels), levels)
    outputs = [q]
    within(net, outputs, run_model(api.load(net.model(outputs).SerializeToString()), net.feeds), f"seed {seed}")
