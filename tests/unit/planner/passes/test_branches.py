"""Sums of convolutions of the same image: one convolution, with the same numbers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from net_tools import Net, check, ops

from aspen_mp.planner.ir.graph import Node


def convolutions(nodes: list[Node]) -> list[Node]:
    return [n for n in nodes if n.op in {"CONV", "WINO", "DWCONV", "PWDW"}]


def normalised(net: Net, x: str, channels: int) -> str:
    return net("BatchNormalization", x, *(net.weight(channels) for _ in range(3)), net.weight(channels, positive=True))


@pytest.mark.parametrize("stride", [1, 2])
def test_block_with_branches(stride: int) -> None:
    """RepVGG's: 3 x 3, 1 x 1 and, where the image keeps its size, the image itself, each normalised."""
    net = Net(x=(2, 24, 13, 11))
    y = normalised(net, net("Conv", "x", net.weight(24, 24, 3, 3), pads=[1] * 4, strides=[stride] * 2), 24)
    y = net("Add", y, normalised(net, net("Conv", "x", net.weight(24, 24, 1, 1), strides=[stride] * 2), 24))
    if stride == 1:
        y = net("Add", y, normalised(net, "x", 24))
    nodes = check(net, net("Relu", y))
    assert len(nodes) == len(convolutions(nodes)) == 1
    assert nodes[0].attrs["act"][0] == "RELU"
    weights, bias = nodes[0].inputs[1:3]
    assert weights is not None
    assert bias is not None
    assert weights.weight_key is not None
    assert bias.weight_key is not None


def test_mixer_of_tokens() -> None:
    """FastViT's: x + factor * (branches of each channel alone - normalisation), which is all linear."""
    net = Net(x=(1, 20, 9, 10))
    y = net("Conv", "x", net.weight(20, 1, 3, 3), net.weight(20), pads=[1] * 4, group=20)
    y = net("Add", net("Add", normalised(net, "x", 20), y), net("Conv", "x", net.weight(20, 1, 1, 1), net.weight(20), group=20))
    y = net("Mul", net("Sub", y, normalised(net, "x", 20)), net.weight(20, 1, 1))
    nodes = check(net, net("Add", "x", y))
    assert ops(nodes) == ["DWCONV"]
    assert nodes[0].inputs[3:] in ([], [None])


def test_a_residual_beside_many_products_stays() -> None:
    net = Net(x=(1, 8, 6, 6))
    (node,) = check(net, net("Add", "x", net("Conv", "x", net.weight(8, 8, 3, 3), pads=[1] * 4)))
    assert node.inputs[3] is not None


def test_windows_side_by_side_stay_apart() -> None:
    net = Net(x=(1, 8, 6, 6))
    flat = net("Conv", "x", net.weight(8, 8, 1, 3), pads=[0, 1, 0, 1])
    tall = net("Conv", "x", net.weight(8, 8, 3, 1), pads=[1, 0, 1, 0])
    assert len(convolutions(check(net, net("Add", flat, tall)))) == 2
    net = Net(x=(1, 8, 6, 6))
    square = net("Conv", "x", net.weight(8, 8, 3, 3), pads=[1] * 4)
    flat = net("Conv", "x", net.weight(8, 8, 1, 3), pads=[0, 1, 0, 1])
    tall = net("Conv", "x", net.weight(8, 8, 3, 1), pads=[1, 0, 1, 0])
    assert len(convolutions(check(net, net("Add", net("Add", square, flat), tall)))) == 1


@pytest.mark.parametrize("kept", ["reader", "output", "image", "dilation", "weights"])
def test_what_is_no_branch_stays(kept: str) -> None:
    net = Net(x=(1, 8, 6, 6), z=(1, 8, 6, 6), w=(8, 8, 3, 3))
    one = net("Conv", "x", net.weight(8, 8, 3, 3), pads=[1] * 4)
    apart = 2 if kept == "dilation" else 1
    weights = "w" if kept == "weights" else net.weight(8, 8, 3, 3)
    y = net("Add", one, net("Conv", "z" if kept == "image" else "x", weights, dilations=[apart] * 2, pads=[apart] * 4))
    outputs = [y, net("Sigmoid", one)] if kept == "reader" else [y, one] if kept == "output" else [y]
    assert len(convolutions(check(net, *outputs))) == 2


def test_unlike_strides_stay_apart() -> None:
    """Both convolutions see the same image, and give images of the same size."""
    net = Net(x=(1, 8, 3, 3))
    one = net("Conv", "x", net.weight(8, 8, 3, 3), strides=[2, 2])
    other = net("Conv", "x", net.weight(8, 8, 3, 3))
    assert len(convolutions(check(net, net("Add", one, other)))) == 2


@st.composite
def branches(draw: st.DrawFn) -> tuple[tuple[int, ...], int, list[dict[str, Any]], list[str]]:
    """Image, output channels, two to four convolutions whose outputs are of the same size, and what joins them."""
    axes = draw(st.integers(1, 3))
    groups = draw(st.lists(st.sampled_from([1, 2, 4, 8]), min_size=2, max_size=4))
    outputs = draw(st.sampled_from([8, 16]))
    stride = draw(st.lists(st.integers(1, 2), min_size=axes, max_size=axes))
    dilation = draw(st.lists(st.integers(1, 2), min_size=axes, max_size=axes))
    # Each window is part of one around the pixel that all are centred on, so that all have as many places in the image.
    most = draw(st.lists(st.integers(0, 2), min_size=axes, max_size=axes))
    image = [draw(st.integers(2 * m * d + 1, 9)) for m, d in zip(most, dilation, strict=True)]
    found = []
    for g in groups:
        reach = [(draw(st.integers(0, m)), draw(st.integers(0, m))) for m in most]
        attrs: dict[str, Any] = {"group": g, "strides": stride}
        attrs["kernel_shape"] = [a + 1 + b for a, b in reach]
        attrs["dilations"] = [d if a + b or draw(st.booleans()) else 1 for d, (a, b) in zip(dilation, reach, strict=True)]
        attrs["pads"] = [a * d for d, (a, _) in zip(dilation, reach, strict=True)] + [
            b * d for d, (_, b) in zip(dilation, reach, strict=True)
        ]
        found.append(attrs)
    return (2, 8, *image), outputs, found, [draw(st.sampled_from(["Add", "Sub"])) for _ in groups[1:]]


@settings(max_examples=150, deadline=None)
@given(branches(), st.booleans())
def test_the_same_numbers(drawn: tuple[tuple[int, ...], int, list[dict[str, Any]], list[str]], bias: bool) -> None:
    shape, outputs, attributes, joins = drawn
    net = Net(x=shape)
    convs = [
        net("Conv", "x", net.weight(outputs, 8 // a["group"], *a["kernel_shape"]), *([net.weight(outputs)] if bias and k != 1 else []), **a)
        for k, a in enumerate(attributes)
    ]
    y = convs[0]
    for join, conv in zip(joins, convs[1:], strict=True):
        y = net(join, y, conv)
    check(net, y)


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER", "VALID"])
def test_windows_that_lie_by_themselves(mode: str) -> None:
    net = Net(x=(1, 8, 7, 6))
    pads = {} if mode == "VALID" else {"auto_pad": mode}
    kernel = 1 if mode == "VALID" else 4
    one = net("Conv", "x", net.weight(8, 8, kernel, kernel), **pads)
    other = net("Conv", "x", net.weight(8, 8, 1, 1), auto_pad=mode)
    assert len(convolutions(check(net, net("Add", one, other)))) == 1


def test_weights_are_the_same_for_all_sizes_of_images() -> None:
    keys = set()
    for size in (6, 9):
        net = Net(x=(1, 8, size, size))
        one = net("Conv", "x", net.weight(8, 8, 3, 3), auto_pad="SAME_UPPER")
        (node,) = check(net, net("Add", one, net("Conv", "x", net.weight(8, 8, 1, 1))))
        assert node.inputs[1] is not None
        keys.add(node.inputs[1].weight_key)
    assert len(keys) == 1
    assert None not in keys
