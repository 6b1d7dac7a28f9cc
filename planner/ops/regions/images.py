"""Windows that slide over images."""

from __future__ import annotations

import numpy as np

from aspen_mp.planner.ir.graph import Node, Shape
from aspen_mp.planner.ops.packing import winograd
from aspen_mp.planner.ops.params import depth
from aspen_mp.planner.ops.regions.boxes import Boxes, Region, Rule, broadcast, clipped, whole


def _window(lo: Boxes, hi: Boxes, kernel: int, stride: int, dilation: int, pad: int, dim: int) -> tuple[Boxes, Boxes]:
    """Input range of outputs [lo, hi) of a sliding window; the padding needs nothing."""
    first = lo * stride - pad
    last = (hi - 1) * stride - pad + (kernel - 1) * dilation
    return clipped(first, dim), clipped(last + 1, dim)


def windows(node: Node, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    """What the windows of boxes see along the axes of an image or a volume. Writes to `lo` and `hi`."""
    a = node.attrs
    first = len(shape) - 2
    axes = [(first + k, (a["kernel"][k], a["strides"][k], a["dilations"][k], a["pads"][k])) for k in range(2)]
    if len(shape) == 5:
        axes.append((2, depth(a)))
    for axis, window in axes:
        if window == (1, 1, window[2], 0) and node.output.shape[axis] == shape[axis]:
            continue  # each element sees itself
        lo[:, axis], hi[:, axis] = _window(lo[:, axis].copy(), hi[:, axis].copy(), *window, shape[axis])
    return lo, hi


def _qconv(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    if i == 1:
        out_lo, out_hi = whole(shape, len(lo))
        out_lo[:, 0], out_hi[:, 0] = lo[:, 1] // 32, (hi[:, 1] + 31) // 32
        return out_lo, out_hi
    if i == 0:
        lo, hi = lo.copy(), hi.copy()
        lo[:, 1], hi[:, 1] = 0, shape[1]
        return windows(node, shape, lo, hi)
    if i == 2:
        return lo[:, 1:2].copy(), hi[:, 1:2].copy()
    return whole(shape, len(lo)) if i == 5 else broadcast(shape, lo, hi)


def _conv(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    groups = node.attrs["groups"]
    if i == 0 and groups == 1:
        lo, hi = lo.copy(), hi.copy()
        lo[:, 1], hi[:, 1] = 0, shape[1]
        return windows(node, shape, lo, hi)
    if i in (2, 4, 5):
        return lo[:, 1:2].copy(), hi[:, 1:2].copy()
    if i not in (0, 1, 6, 7):
        return broadcast(shape, lo, hi)
    per_group = node.output.shape[1] // groups
    first, last = lo[:, 1] // per_group, (hi[:, 1] - 1) // per_group
    if i == 0:
        lo, hi = lo.copy(), hi.copy()
        channels = shape[1] // groups
        lo[:, 1], hi[:, 1] = first * channels, (last + 1) * channels
        return windows(node, shape, lo, hi)
    if i == 1:
        return _conv_weights(node, shape, lo, hi, first, last)
    channels = shape[0] // groups
    return (first * channels)[:, None], ((last + 1) * channels)[:, None]


def _bconv(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    return whole(shape, len(lo)) if i in (6, 7) else _qconv(node, 2 if i in (4, 5) else i, shape, lo, hi)


def _conv_weights(node: Node, shape: Shape, lo: Boxes, hi: Boxes, first: Boxes, last: Boxes) -> Region:
    out_lo, out_hi = whole(shape, len(lo))
    if node.op == "DWCONV":
        out_lo[:, 1], out_hi[:, 1] = lo[:, 1], hi[:, 1]
        return out_lo, out_hi
    out_lo[:, 0], out_hi[:, 0] = first, last + 1
    per_group = node.output.shape[1] // node.attrs["groups"]
    same = first == last
    out_lo[:, 1] = np.where(same, (lo[:, 1] - first * per_group) // 32, 0)
    out_hi[:, 1] = np.where(same, (hi[:, 1] - first * per_group + 31) // 32, shape[1])
    return out_lo, out_hi


def _wino(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    """As CONV, but every block that the box cuts is computed whole, as far as it lies in the image."""
    if i == 0:
        sides = winograd.blocks_of(node.attrs["kernel"], node.attrs["strides"], node.attrs["block"]).sides
        lo, hi = lo.copy(), hi.copy()
        for axis, block in zip((len(shape) - 2, len(shape) - 1), sides, strict=True):
            lo[:, axis] = lo[:, axis] // block * block
            hi[:, axis] = np.minimum(-(-hi[:, axis] // block) * block, node.output.shape[axis])
    elif i == 1:
        out_lo, out_hi = whole(shape, len(lo))
        out_lo[:, 0], out_hi[:, 0] = lo[:, 1] // 32, (hi[:, 1] + 31) // 32
        return out_lo, out_hi
    return _conv(node, i, shape, lo, hi)


def _pwdw(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    """All input channels of what the depthwise half's windows see; of weights and biases what belongs to the channels."""
    if i == 0:
        lo, hi = windows(node, shape, lo.copy(), hi.copy())
        lo[:, 1], hi[:, 1] = 0, shape[1]
        return lo, hi
    if i in (2, 4):
        return lo[:, 1:2].copy(), hi[:, 1:2].copy()
    out_lo, out_hi = whole(shape, len(lo))
    if i == 3:
        out_lo[:, 1], out_hi[:, 1] = lo[:, 1], hi[:, 1]
    else:
        out_lo[:, 1], out_hi[:, 1] = lo[:, 1] // 32, (hi[:, 1] + 31) // 32
    return out_lo, out_hi


def _pool(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    return windows(node, shape, lo.copy(), hi.copy())


RULES: dict[str, Rule] = {
    "QCONV": _qconv,
    "BCONV": _bconv,
    "CONV": _conv,
    "DWCONV": _conv,
    "PWDW": _pwdw,
    "WINO": _wino,
    "POOL": _pool,
}
