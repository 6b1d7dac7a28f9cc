"""Convolutions of stride 2 over a few channels, computed over the phases of their input."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from kernel_graphs import run_model
from net_tools import Net, lowered

from aspen_mp.planner import api
from aspen_mp.planner.cost import algorithms
from aspen_mp.planner.cost.algorithms import phases_for


@pytest.mark.parametrize(
    ("channels", "outputs", "kernel", "image", "worth"),
    [
        (3, 64, 7, 224, True),  # ResNet
        (3, 64, 5, 224, True),
        (3, 64, 3, 224, False),  # SqueezeNet: few terms are soon summed
        (1, 64, 7, 224, False),  # four phases only
        (3, 32, 3, 299, False),  # Inception: a row and a column would have to be added first
        (3, 8, 7, 224, False),  # most of a panel would be zeros
        (3, 64, 1, 224, False),  # nothing to save
        (16, 64, 7, 224, False),  # channels enough without
    ],
)
def test_where_it_is_worth_it(channels: int, outputs: int, kernel: int, image: int, worth: bool) -> None:
    pad, size = kernel // 2, -(-image // 2)
    found = phases_for((1, channels, image, image), (1, outputs, size, size), (kernel, kernel), (2, 2), (pad, pad))
    assert (found is not None) == worth


def test_other_strides_have_no_phases() -> None:
    assert phases_for((1, 3, 224, 224), (1, 64, 224, 224), (7, 7), (1, 1), (3, 3)) is None
    assert phases_for((1, 3, 224, 224), (1, 64, 112, 224), (7, 7), (2, 1), (3, 3)) is None


@pytest.mark.parametrize("size", [(23, 18), (16, 31), (9, 9)])
@pytest.mark.parametrize(
    ("kernel", "pads"),
    [
        ((7, 7), (3, 3, 3, 3)),
        ((7, 7), (2, 3, 3, 2)),
        ((8, 8), (3, 3, 4, 4)),
        ((3, 3), (1, 1, 1, 1)),
        ((3, 3), (0, 0, 0, 0)),
        ((5, 5), (2, 2, 1, 1)),
        ((4, 4), (1, 1, 1, 1)),
        ((5, 6), (1, 2, 2, 2)),
    ],
)
def test_agrees_with_the_direct_way(
    monkeypatch: pytest.MonkeyPatch, kernel: tuple[int, int], pads: tuple[int, ...], size: tuple[int, int]
) -> None:
    for way in ("_direct_ns", "_image_ns"):
        monkeypatch.setattr(algorithms, way, lambda *_: 1e18)  # whatever it costs
    net = Net(x=(2, 3, *size))
    attrs = {"strides": [2, 2], "pads": list(pads), "kernel_shape": list(kernel)}
    model = net.model(net("Relu", net("Conv", "x", net.weight(40, 3, *kernel), net.weight(40), **attrs)))
    feeds = {"x": net.rng.standard_normal((2, 3, *size)).astype(np.float32)}
    assert [node.op for node in lowered(model, feeds).nodes if node.op in {"CONV", "WINO"}] == ["WINO"]
    expected = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)[0]
    (got,) = run_model(api.load(model), feeds)
    np.testing.assert_allclose(got, expected, rtol=0, atol=3e-5 * np.abs(expected).max())
