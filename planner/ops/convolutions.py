"""Windows that slide over images: convolutions and pooling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from aspen_mp.planner.ir.graph import Node, Shape
from aspen_mp.planner.ops.boxes import Boxes, Region, broadcast, clipped, whole
from aspen_mp.planner.ops.call import F32, LIMIT, Call, all_f32, has_function, in_range, is_f32, is_float, need, ranked, scaled, shaped
from aspen_mp.planner.ops.elementwise import activation_ns
from aspen_mp.planner.ops.packing import byte_taps, winograd
from aspen_mp.planner.ops.packing.winograd import BLOCKS, Blocks
from aspen_mp.planner.ops.params import NO_ACT, activation, choice, integer, integers, noted
from aspen_mp.planner.ops.products import (
    AMX,
    BYTES,
    BYTES_GROUP,
    IN_BYTES,
    LAST,
    RESIDUAL_NS,
    ZEROS,
    bf16_operands,
    bytes_and_scales,
    packed_bytes,
)
from aspen_mp.planner.ops.spec import Cost, Input, Kind, Layout, OpSpec, Seen, TileModel
from aspen_mp.shm.tables import NUMBERS

POOL_MODES = {"max": 0, "average": 1}


NO_DEPTH = (1, 1, 1, 0)


def depth(a: dict[str, Any]) -> tuple[int, int, int, int]:
    """The axis of depth of a convolution's window: kernel, stride, dilation, pad in front. That of an image is one deep."""
    found: tuple[int, int, int, int] = a.get("depth", NO_DEPTH)
    return found


def image_scratch(channels: int, box: tuple[int, int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> int:
    """Bytes that QCONV takes for rows and columns of output: the pixels that they read, a number for each pixel, a pointer for each tap."""
    pixels = prod((n - 1) * s + (k - 1) * d + 1 for n, k, s, d in zip(box, kernel, strides, dilations, strict=True))
    return pixels * -(-channels // BYTES_GROUP) * BYTES_GROUP + 4 * prod(box) + 8 * prod(kernel) + 192


def strip_scratch(width: int, kernel: Sequence[int], stride: int, dilation: int, parts: int) -> int:
    """Bytes that QDWCONV takes for `width` columns of output, at most. Each column that they read has four bytes for each channel of a
    panel and four rows of the window. Beside these are a copy of as many rows, and a pointer for each tap."""
    columns = (width - 1) * stride + (kernel[1] - 1) * dilation + 2
    groups = -(-kernel[0] // byte_taps.ROWS)
    return (groups + 1) * columns * 32 * byte_taps.ROWS + 8 * parts * groups * kernel[1] + 64


COPIED_NS = 0.02
"""An element of input that QCONV copies, each time it is read."""
ROUNDED_NS = 0.03
"""An element of input that BCONV rounds, each time it is read."""
DEPTHWISE_FLOPS_PER_NS = 90.0
"""DWCONV and the depthwise half of PWDW."""
SPREAD_NS = 0.2
"""The same of DWCONV, where a channel of input is moved to several lanes, each for one of output."""
WIDE_NS = 0.02
"""An element of the wide tensor between the halves of PWDW besides its multiply-adds."""
DEPTHWISE_OUT_NS = 0.03
"""An element of the output of PWDW or DWCONV besides its multiply-adds."""
QUAD_NS, LAID_NS, DEPTHWISE_BYTE_NS = 0.008, 0.03, 0.12
"""Times of an element of QDWCONV's output. The first is for four rows of a column of its window, the second for a row of the window and a
column of input."""
TAP_NS = 0.026
"""A tap of a window of POOL that shares nothing with its neighbours."""
AVERAGE_OF_NINE_NS = 0.13
"""An average of 3 x 3 one pixel apart, whose sums stay in registers."""
AVERAGE_NS = 0.07
"""Another average that shares sums: a vector that is loaded or stored, for each of its elements."""
HALF_PANEL = 16
"""Columns of a panel that PWDW computes together: it leaves out an empty half."""


def blocks_of(node: Node) -> Blocks:
    """Those of a WINO node."""
    return winograd.blocks_of(node.attrs["kernel"], node.attrs["strides"], node.attrs["block"])


def winograd_blocks(shape: Shape, blocks: Blocks) -> int:
    """Blocks of an output [N, C, H, W] or [N, C, D, H, W]."""
    return shape[0] * prod(shape[2:-2]) * -(-shape[-2] // blocks.sides[0]) * -(-shape[-1] // blocks.sides[1])


def planes(node: Node) -> float:
    """Images of its input that an image of a convolution's output is summed over, on average: those outside the volume are skipped."""
    a, (kernel, stride, dilation, pad) = node.inputs[0], depth(node.attrs)
    if a is None or kernel == 1 or len(node.output.shape) != 5:
        return 1.0
    taps = np.arange(node.output.shape[2])[:, None] * stride - pad + np.arange(kernel) * dilation
    return max(float(((taps >= 0) & (taps < a.shape[2])).sum(axis=1).mean()), 1.0)


def is_narrow(node: Node) -> bool:
    """Whether CONV puts several groups into a vector."""
    if node.op != "CONV" or len(node.inputs) > 6 or node.attrs["groups"] == 1 or node.inputs[0] is None:
        return False
    groups = int(node.attrs["groups"])
    return node.inputs[0].shape[1] == node.output.shape[1] and node.output.shape[1] // groups in (2, 4, 8)


def window_span(node: Node, axis: int) -> int:
    """Rows (0) or columns (1) of input that a window spans."""
    return int((node.attrs["kernel"][axis] - 1) * node.attrs["dilations"][axis] + 1)


def _conv_flops(node: Node) -> float:
    a = node.inputs[0]
    if a is None:
        return 0.0
    return float(2.0 * node.output.size * (a.shape[1] // node.attrs["groups"]) * planes(node) * int(prod(node.attrs["kernel"])))


def _one_group_flops(node: Node) -> float:
    """Operations of kernels without groups."""
    a = node.inputs[0]
    return 2.0 * node.output.size * a.shape[1] * int(prod(node.attrs["kernel"])) if a is not None else 0.0


def _winograd_flops(node: Node) -> float:
    a, blocks = node.inputs[0], blocks_of(node)
    products = winograd_blocks(node.output.shape, blocks) * blocks.products * node.output.shape[1]
    return 2.0 * products * planes(node) * a.shape[1] if a is not None else 0.0


def _depthwise_flops(node: Node) -> float:
    return 2.0 * node.output.size * planes(node) * int(prod(node.attrs["kernel"]))


def _depthwise_ns(node: Node, ops: float) -> float:
    a = node.inputs[0]
    spread = SPREAD_NS if a is not None and a.shape[1] < node.output.shape[1] else 0.0
    return ops / DEPTHWISE_FLOPS_PER_NS + node.output.size * (DEPTHWISE_OUT_NS + spread + activation_ns(node))


def _depthwise_bytes_ns(node: Node, ops: float) -> float:
    """Four rows of a window are multiplied together. They are laid side by side anew for each row of output."""
    a, (rows, columns) = node.inputs[0], node.attrs["kernel"]
    seen = a.shape[3] / max(node.output.shape[3], 1) if a is not None else 1.0
    spread = SPREAD_NS if a is not None and a.shape[1] < node.output.shape[1] else 0.0
    sums = -(-rows // byte_taps.ROWS) * columns * node.attrs["parts"] * QUAD_NS + rows * seen * LAID_NS
    residual = RESIDUAL_NS if node.inputs[3] is not None else 0.0
    return float(node.output.size * (sums + DEPTHWISE_BYTE_NS + spread + activation_ns(node) + residual))


def _stack_pixels(node: Node) -> int:
    a = node.inputs[0]
    return a.shape[0] * a.shape[2] * a.shape[3] if a is not None else 0


def _stack_flops(node: Node) -> float:
    a = node.inputs[0]
    pointwise = 2.0 * _stack_pixels(node) * node.output.shape[1] * a.shape[1] if a is not None else 0.0
    return pointwise + _depthwise_flops(node)


def _pool_flops(node: Node) -> float:
    return float(node.output.size * prod(node.attrs["kernel"]))


def _pool_ns(node: Node, taps: float) -> float:
    window = taps / max(node.output.size, 1) * TAP_NS if node.attrs["mode"] == "max" else _average_ns(node)
    return node.output.size * (window + activation_ns(node))


def _average_ns(node: Node) -> float:
    """An average: sums of columns, kept in a buffer, and across them, of which windows one pixel apart share half; or all taps."""
    kernel: tuple[int, ...] = tuple(node.attrs["kernel"])
    stride: int = node.attrs["strides"][1]
    if prod(node.output.shape[2:]) < 2:
        return TAP_NS * prod(kernel)
    halves = [0.5 if s == d == 1 else 1.0 for s, d in zip(node.attrs["strides"], node.attrs["dilations"], strict=True)]
    if kernel == (3, 3) and halves == [0.5, 0.5]:
        return AVERAGE_OF_NINE_NS
    moved = stride * (kernel[0] * halves[0] + 1) + kernel[1] * halves[1] + 1
    return float(min(AVERAGE_NS * moved, TAP_NS * prod(kernel)))


def _window(lo: Boxes, hi: Boxes, kernel: int, stride: int, dilation: int, pad: int, dim: int) -> tuple[Boxes, Boxes]:
    """Input range of outputs [lo, hi) of a sliding window; the padding needs nothing."""
    first = lo * stride - pad
    last = (hi - 1) * stride - pad + (kernel - 1) * dilation
    return clipped(first, dim), clipped(last + 1, dim)


def windows(node: Node, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    """The input of the windows of boxes along the axes of an image or a volume. Writes to `lo` and `hi`."""
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


def _qconv_region(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
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


def _qdwconv_region(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    if i != 0:
        return _qconv_region(node, i, shape, lo, hi)
    lo, hi = lo.copy(), hi.copy()
    repeats = node.output.shape[1] // shape[1]
    lo[:, 1], hi[:, 1] = lo[:, 1] // repeats, (hi[:, 1] - 1) // repeats + 1
    return windows(node, shape, lo, hi)


def _conv_region(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
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


def _bconv_region(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    return whole(shape, len(lo)) if i in (6, 7) else _qconv_region(node, 2 if i in (4, 5) else i, shape, lo, hi)


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


def _wino_region(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    """As CONV, but every block that the box cuts is computed whole, as far as it lies in the image."""
    if i == 0:
        sides = winograd.blocks_of(node.attrs["kernel"], node.attrs["strides"], node.attrs["block"]).sides
        lo, hi = lo.copy(), hi.copy()
        for axis, block in zip((len(shape) - 2, len(shape) - 1), sides, strict=True):
            lo[:, axis] = lo[:, axis] // block * block
            hi[:, axis] = np.minimum(-(-hi[:, axis] // block) * block, node.output.shape[axis])
    return _wino_values(node, i, shape, lo, hi)


def _wino_values(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    """As CONV: what the rest of a block adds is rounding errors."""
    if i == 1:
        out_lo, out_hi = whole(shape, len(lo))
        out_lo[:, 0], out_hi[:, 0] = lo[:, 1] // 32, (hi[:, 1] + 31) // 32
        return out_lo, out_hi
    return _conv_region(node, i, shape, lo, hi)


def _pwdw_region(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
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


def _pool_region(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    return windows(node, shape, lo.copy(), hi.copy()) if i == 0 else (lo[:, 1:2].copy(), hi[:, 1:2].copy())


WIDEST_WINDOW = 64
"""Rows and columns that a window of PWDW may span or move by: scratch memory holds all of them."""
MOST_COPIED = 1 << 34
"""Bytes of scratch memory that convolutions of bytes and BCONV take for an image, by far: numbers of bytes stay numbers."""
MOST_ROWS = NUMBERS["MAX_ROWS"]
"""Pixels of a line that BCONV takes together, and copies at least."""


def window(call: Call, first: int, pads: int) -> tuple[int, int]:
    """Sides of a window whose kernel, strides, dilations and `pads` paddings are the parameters from `first` on."""
    for k in range(6):
        in_range(call, first + k, ("kernel", "kernel", "stride", "stride", "dilation", "dilation")[k], 1, LIMIT)
    for k in range(pads):
        in_range(call, first + 6 + k, "pad", 0, LIMIT)
    return call.params[first], call.params[first + 1]


def _planes_of(call: Call, first: int) -> int:
    """Kernels of a convolution's window along the axis of depth, which images do not have. Output and input have the same rank."""
    out, x = call.out, call.input(0)
    need(len(out.shape) in (4, 5), "rank of the output", len(out.shape), "4 or 5")
    ranked(x, len(out.shape), "input 0")
    window = [in_range(call, first + k, ("kernel", "stride", "dilation", "pad")[k], k < 3, LIMIT) for k in range(4)]
    need(len(out.shape) == 5 or window == [1, 1, 1, 0], "depth of the window", window, [1, 1, 1, 0])
    return window[0]


def _bytes_checks(call: Call) -> tuple[int, int]:
    """Checks that convolutions of bytes share. Returns the sides of the window."""
    out, x = call.out, call.input(0)
    bytes_and_scales(call, 9)
    ranked(out, 4, "the output")
    ranked(x, 4, "input 0")
    sides = window(call, 1, 2)
    in_range(call, 12, "residual_last", 0, 2)
    need(x.shape[0] == out.shape[0], "batch of input 0", x.shape[0], out.shape[0])
    shaped(call.optional(2), out.shape[1:2], "shape of input 2")
    for i in (3, 4):
        shaped(call.optional(i), out.shape, f"shape of input {i}")
    zero = call.optional(5)
    need(zero is None or prod(zero.shape) == 1, "shape of input 5", zero and zero.shape, "one element")
    return sides


def _qconv_checks(call: Call) -> None:
    out, x = call.out, call.input(0)
    in_range(call, 0, "zeros", 0, 2)
    kh, kw = _bytes_checks(call)
    shaped(call.input(1), packed_bytes(x.shape[1], out.shape[1], kh * kw), "shape of input 1")
    copied = image_scratch(x.shape[1], (out.shape[2], out.shape[3]), (kh, kw), call.params[3:5], call.params[5:7])
    need(copied < MOST_COPIED, "window", copied, f"less than {MOST_COPIED}: a tile copies what it looks at")


def _qdwconv_checks(call: Call) -> None:
    out, x = call.out, call.input(0)
    parts = in_range(call, 0, "parts", 1, byte_taps.MOST_PARTS + 1)
    kernel = _bytes_checks(call)
    need(x.shape[1] > 0 and out.shape[1] % x.shape[1] == 0, "channels of input 0", x.shape[1], f"a part of {out.shape[1]}")
    shaped(call.input(1), byte_taps.packed_shape(out.shape[1], kernel, parts), "shape of input 1")
    copied = strip_scratch(out.shape[3], kernel, call.params[4], call.params[6], parts)
    need(copied < MOST_COPIED, "window", copied, f"less than {MOST_COPIED}: a tile copies what it looks at")


def _bconv_checks(call: Call) -> None:
    out, x = call.out, call.input(0)
    ranked(out, 4, "the output")
    ranked(x, 4, "input 0")
    kh, kw = window(call, 0, 2)
    has_function(call, 8)
    in_range(call, 11, "residual_last", 0, 2)
    has_function(call, 12)
    in_range(call, 15, "amx", 0, 2)
    need(x.shape[0] == out.shape[0], "batch of input 0", x.shape[0], out.shape[0])
    bf16_operands(call, x.shape[1], out.shape[1], kh * kw)
    shaped(call.optional(2), out.shape[1:2], "shape of input 2")
    shaped(call.optional(3), out.shape, "shape of input 3")
    scaled(call, 4, out.shape[1])
    scaled(call, 6, x.shape[1])
    copied = image_scratch(2 * x.shape[1], (1, MOST_ROWS), (kh, kw), call.params[2:4], call.params[4:6])
    need(copied < MOST_COPIED, "window", copied, f"less than {MOST_COPIED}: a tile copies what it looks at")


def _conv_checks(call: Call) -> None:
    all_f32(call)
    out, x, w = call.out, call.input(0), call.input(1)
    planes = _planes_of(call, 16)
    groups = in_range(call, 0, "groups", 1, LIMIT)
    kh, kw = window(call, 1, 2)
    has_function(call, 9)
    in_range(call, 12, "residual_last", 0, 2)
    need(x.shape[0] == out.shape[0], "batch of input 0", x.shape[0], out.shape[0])
    need(x.shape[1] % groups == 0 and out.shape[1] % groups == 0, "groups", groups, (x.shape[1], out.shape[1]))
    shaped(w, (groups, -(-(out.shape[1] // groups) // 32), planes * kh * kw * (x.shape[1] // groups), 32), "shape of input 1")
    need(w.dense, "strides of input 1", "not contiguous", "a packed weight")
    shaped(call.optional(2), out.shape[1:2], "shape of input 2")
    shaped(call.optional(3), out.shape, "shape of input 3")
    scaled(call, 4, out.shape[1])
    scaled(call, 6, x.shape[1])
    need(planes == 1 or call.optional(6) is None, "input 6", "present", "absent where the window is deep")
    has_function(call, 13)


def _wino_checks(call: Call) -> None:
    all_f32(call)
    out, x = call.out, call.input(0)
    planes = _planes_of(call, 17)
    for i, name in ((0, "groups"), (5, "dilation"), (6, "dilation")):
        in_range(call, i, name, 1, 2)
    kernel, strides, block = (call.params[1], call.params[2]), (call.params[3], call.params[4]), call.params[16]
    need(kernel in {b[:2] for b in BLOCKS}, "kernel", kernel, "one that runs in blocks")
    need(strides[0] == strides[1] and (*kernel, strides[0]) in BLOCKS, "stride", strides, "one that runs in blocks")
    for i in (7, 8):
        in_range(call, i, "pad", 0, LIMIT)
    has_function(call, 9)
    in_range(call, 12, "residual_last", 0, 2)
    need(block in BLOCKS[*kernel, strides[0]], "block", block, BLOCKS[*kernel, strides[0]])
    need(x.shape[0] == out.shape[0], "batch of input 0", x.shape[0], out.shape[0])
    w = call.input(1)
    shaped(w, (-(-out.shape[1] // 32), winograd.blocks_of(kernel, strides, block).weights, planes * x.shape[1], 32), "shape of input 1")
    need(w.dense, "strides of input 1", "not contiguous", "a packed weight")
    shaped(call.optional(2), out.shape[1:2], "shape of input 2")
    shaped(call.optional(3), out.shape, "shape of input 3")
    scaled(call, 4, out.shape[1])


def _dwconv_checks(call: Call) -> None:
    out, x, w = call.out, call.input(0), call.input(1)
    planes = _planes_of(call, 16)
    images = len(out.shape) == 4
    for arg, what in ((out, "the output"), (x, "input 0"), (call.optional(3), "input 3")):
        (is_float if images else is_f32)(arg, what)
    for i in (1, 2, 4, 5):
        is_f32(call.optional(i), f"input {i}")
    kh, kw = window(call, 1, 2)
    has_function(call, 9)
    in_range(call, 12, "residual_last", 0, 2)
    need(x.shape[0] == out.shape[0], "batch of input 0", x.shape[0], out.shape[0])
    need(x.shape[1] > 0 and out.shape[1] % x.shape[1] == 0, "channels of input 0", x.shape[1], f"a part of {out.shape[1]}")
    need(call.params[0] == x.shape[1], "groups", call.params[0], x.shape[1])
    shaped(w, (planes * kh * kw, out.shape[1]), "shape of input 1")
    need(w.dense, "strides of input 1", "not contiguous", "a packed weight")
    shaped(call.optional(2), out.shape[1:2], "shape of input 2")
    shaped(call.optional(3), out.shape, "shape of input 3")
    scaled(call, 4, out.shape[1])


def _pwdw_checks(call: Call) -> None:
    all_f32(call)
    out, x, w, d = call.out, call.input(0), call.input(1), call.input(3)
    ranked(out, 4, "the output")
    ranked(x, 4, "input 0")
    has_function(call, 0)
    kh, kw = window(call, 3, 2)
    has_function(call, 11)
    for k in range(2):
        span = max((call.params[3 + k] - 1) * call.params[7 + k] + 1, call.params[5 + k])
        need(span <= WIDEST_WINDOW, "window", span, f"at most {WIDEST_WINDOW}")
    need(x.shape[0] == out.shape[0], "batch of input 0", x.shape[0], out.shape[0])
    shaped(w, (1, -(-out.shape[1] // 32), x.shape[1], 32), "shape of input 1")
    shaped(d, (kh * kw, out.shape[1]), "shape of input 3")
    for i, arg in ((1, w), (3, d)):
        need(arg.dense, f"strides of input {i}", "not contiguous", "a packed weight")
    for i in (2, 4):
        shaped(call.optional(i), out.shape[1:2], f"shape of input {i}")


def shares_rows(node: Node) -> bool:
    """Whether POOL takes maxima of neighbouring windows together along rows, too (`workers/kernels/conv/pool/planes.h`)."""
    a, ones = node.attrs, (1, 1)
    side = a["kernel"][0]
    alike = tuple(a["kernel"]) in {(3, 3), (5, 5)} and tuple(a["strides"]) == ones and tuple(a["dilations"]) == ones
    return alike and a["pads"][1] == side // 2 and a["mode"] == "max" and bool(node.output.dtype == "float32")


def _pool_checks(call: Call) -> None:
    out, x = call.out, call.input(0)
    ranked(out, 4, "the output")
    ranked(x, 4, "input 0")
    in_range(call, 0, "mode", 0, 2)
    window(call, 1, 4)
    need(x.shape[:2] == out.shape[:2], "batch and channels of input 0", x.shape[:2], out.shape[:2])
    need(x.dtype == out.dtype, "dtype of input 0", x.dtype, out.dtype)
    has_function(call, 12)
    scaled(call, 1, out.shape[1])
    need(
        x.dtype == F32 or (call.params[12] == 0 and call.optional(1) is None), "dtype of input 0", x.dtype, "f32, with scale or activation"
    )


X = Input("x", "[N, C, (D,) H, W]")
WEIGHTS = Input("weights", "[groups, panels, taps * C / groups, 32]", packed=True)
BIAS, SCALE, SHIFT = Input("bias", "[OC]", True), Input("scale", "[OC], behind the activation", True), Input("shift", "[OC]", True)
RESIDUAL = Input("residual", "as the output", True, Seen.OUTPUT)
FACTOR, ZERO = Input("factor", "of the sums", True, Seen.OUTPUT), Input("zero", "of X, one of all", True)
PROLOGUE = (Input("in_scale", "[C]: X stands for in_act(X * in_scale + in_shift)", True), Input("in_shift", "[C]", True))
KERNEL, STRIDES, DILATIONS = (
    integers(name, 2, f"{what} of the window, rows and columns")
    for name, what in (("kernel", "taps"), ("strides", "steps"), ("dilations", "distances of taps"))
)
WINDOW = (KERNEL, STRIDES, DILATIONS, integers("pads", 2, "rows in front, columns in front"))
GROUPS = integer("groups", "of channels")
ACT = activation("act", "behind bias and residual: act(sums + bias + residual) * scale + shift")
IN_ACT = activation("in_act", "of the prologue", NO_ACT)
DEPTH = integers("depth", 4, "the window along the axis of depth: taps, step, distance, pad in front", NO_DEPTH)
_CONV = (GROUPS, *WINDOW, ACT, LAST, IN_ACT)

SPECS = (
    OpSpec(
        name="CONV",
        inputs=(X, WEIGHTS, BIAS, RESIDUAL, SCALE, SHIFT, *PROLOGUE),
        params=(*_CONV, DEPTH, noted("exact", "whether it is of integers, and not rounded to bf16")),
        region=_conv_region,
        checks=_conv_checks,
        kind=Kind.WINDOWED,
        layout=Layout.CHANNELS_LAST,
        gathers=16,
        batch_rank=1,
        cost=Cost(_conv_flops, tiles=TileModel.CONVOLUTION, residual_ns=RESIDUAL_NS, hides=True),
    ),
    OpSpec(
        name="QCONV",
        inputs=(
            replace(X, about="[N, C, H, W], bytes"),
            Input("weights", "see `packed_bytes`", packed=True),
            BIAS,
            RESIDUAL,
            FACTOR,
            ZERO,
        ),
        params=(ZEROS, *WINDOW, replace(ACT, about=BYTES), LAST, *IN_BYTES),
        region=_qconv_region,
        checks=_qconv_checks,
        kind=Kind.WINDOWED,
        layout=Layout.CHANNELS_LAST,
        batch_rank=1,
        cost=Cost(_one_group_flops, tiles=TileModel.CONVOLUTION, item=1, residual_ns=RESIDUAL_NS, input_ns=COPIED_NS, hides=True),
    ),
    OpSpec(
        name="QDWCONV",
        inputs=(
            replace(X, about="[N, C, H, W], bytes"),
            Input("weights", "see `byte_taps.packed_shape`", packed=True),
            BIAS,
            RESIDUAL,
            FACTOR,
            ZERO,
        ),
        params=(
            integer("parts", "bytes that a weight is the sum of"),
            *WINDOW,
            replace(ACT, about=BYTES),
            LAST,
            *IN_BYTES,
        ),
        region=_qdwconv_region,
        checks=_qdwconv_checks,
        kind=Kind.WINDOWED,
        layout=Layout.CHANNELS_LAST,
        batch_rank=1,
        cost=Cost(_depthwise_flops, ns=_depthwise_bytes_ns),
    ),
    OpSpec(
        name="BCONV",
        inputs=(
            replace(X, halves=True),
            Input("weights", "see `bf16.packed_shape`; what is multiplied is rounded to bf16", packed=True),
            BIAS,
            replace(RESIDUAL, halves=True),
            SCALE,
            SHIFT,
            *PROLOGUE,
        ),
        params=(*WINDOW, ACT, LAST, IN_ACT, AMX),
        region=_bconv_region,
        checks=_bconv_checks,
        kind=Kind.WINDOWED,
        layout=Layout.CHANNELS_LAST,
        batch_rank=1,
        halves=True,
        cost=Cost(_one_group_flops, tiles=TileModel.CONVOLUTION, item=2, residual_ns=RESIDUAL_NS, input_ns=ROUNDED_NS, hides=True),
    ),
    OpSpec(
        name="WINO",
        inputs=(X, Input("weights", "transformed by `packing.winograd`", packed=True), BIAS, RESIDUAL, SCALE, SHIFT),
        params=(*_CONV, integer("block", "side of a block of outputs, see `winograd.BLOCKS`"), DEPTH),
        region=_wino_region,
        values=_wino_values,
        checks=_wino_checks,
        kind=Kind.WINDOWED,
        layout=Layout.CHANNELS_LAST,
        batch_rank=1,
        cost=Cost(
            _winograd_flops,
            tiles=TileModel.WINOGRAD,
            residual_ns=0.06,
            hides=True,
            variant=lambda node: "{}x{}".format(*blocks_of(node).sides),
        ),
    ),
    OpSpec(
        name="DWCONV",
        inputs=(
            replace(X, halves=True),
            Input("weights", "[taps, OC]", packed=True),
            BIAS,
            replace(RESIDUAL, halves=True),
            SCALE,
            SHIFT,
        ),
        params=(replace(GROUPS, about="the channels of X, of which OC is a multiple"), *_CONV[1:], DEPTH),
        region=_conv_region,
        checks=_dwconv_checks,
        kind=Kind.WINDOWED,
        layout=Layout.CHANNELS_LAST,
        batch_rank=1,
        halves=True,
        cost=Cost(_depthwise_flops, ns=_depthwise_ns),
    ),
    OpSpec(
        name="PWDW",
        inputs=(
            X,
            Input("weights", "[1, panels, C, 32]", packed=True),
            Input("bias", "[E]", True),
            Input("depthwise", "[taps, E]", packed=True),
            Input("depthwise_bias", "[E]", True),
        ),
        params=(
            activation("in_act", "between the pointwise half and the depthwise one, whose window and activation the others are"),
            *WINDOW,
            replace(ACT, about="behind the depthwise bias"),
        ),
        region=_pwdw_region,
        checks=_pwdw_checks,
        kind=Kind.WINDOWED,
        layout=Layout.CHANNELS_LAST,
        batch_rank=1,
        cost=Cost(_stack_flops, tiles=TileModel.STACK, hides=True),
    ),
    OpSpec(
        name="POOL",
        inputs=(Input("x", "[N, C, H, W]"), Input("scale", "[C], behind the window", True), Input("shift", "[C]", True)),
        params=(
            choice("mode", POOL_MODES, "greatest of a window, or mean"),
            *WINDOW[:3],
            integers("pads", 4, "top, left, bottom, right"),
            integer("count_include_pad", "whether padding counts in a mean"),
            activation("act", "act(window * scale + shift)", NO_ACT),
        ),
        region=_pool_region,
        checks=_pool_checks,
        kind=Kind.WINDOWED,
        layout=Layout.CHANNELS_LAST,
        planar=shares_rows,
        batch_rank=1,
        cost=Cost(_pool_flops, ns=_pool_ns),
    ),
)
