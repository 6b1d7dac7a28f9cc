"""Images that are read between their pixels."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from math import isfinite, prod
from typing import Any

import numpy as np
import numpy.typing as npt

from aspen_mp.planner.ir.graph import Node, Shape
from aspen_mp.planner.ops.boxes import Boxes, Region, extremes, whole
from aspen_mp.planner.ops.call import F32, I64, LIMIT, Arg, Call, all_f32, in_range, need, ranked, shaped
from aspen_mp.planner.ops.convolutions import GROUPS, WINDOW, window
from aspen_mp.planner.ops.params import Param, bits, choice, integer, real, reserved
from aspen_mp.planner.ops.spec import Cost, Input, Layout, OpSpec, each, last_of

GRID_MODES = {"linear": 0, "nearest": 1, "cubic": 2}
GRID_PADDINGS = {"zeros": 0, "border": 1, "reflection": 2}
ROI_MODES = {"avg": 0, "max": 1}
RESIZE_MODES = {"nearest": 0, "linear": 1, "cubic": 2}
RESIZE_COORDINATES = {"half_pixel": 0, "asymmetric": 1, "align_corners": 2, "pytorch_half_pixel": 3, "half_pixel_symmetric": 4}
RESIZE_COORDINATES |= {"align_fractional_corners": 5}
"""ONNX's names; the last one is align_corners with a length that is the product of the old one and the scale, before it is rounded."""
RESIZE_NEAREST = {"round_prefer_floor": 0, "round_prefer_ceil": 1, "floor": 2, "ceil": 3}


def roi_scratch(shape: Sequence[int], image: Sequence[int], mode: str, ratio: int) -> int:
    """Bytes that ROIALIGN takes for lists of pixels of an output [R, C, OH, OW] of images [N, C, H, W]."""
    total = 64
    for cells, pixels in zip(shape[2:], image[2:], strict=True):
        room = min(2 * ratio or pixels, pixels) if mode == "avg" else 2 * (ratio or 2 * (pixels + 3))
        total += cells * room * 16 + -(-cells * 5 // 64) * 64
    return total


GRID_TAPS = {"nearest": 1, "linear": 2, "cubic": 4}
FEW_NS = (3.0, 0.5, 0.3)
POINT_NS, TAP_NS = 10.0, 0.7
"""A point of GRIDSAMPLE, each of its pixels; where channels are few (`FEW_NS`), and then each channel of these."""
SAMPLED_NS, SAMPLED_TAP_NS, ROI_TAP_NS = 0.15, 0.03, 0.07
"""A result that comes of several pixels, and each of them: of GRIDSAMPLE and of ROIALIGN."""
REGION = 14.0
"""Pixels along an axis of a region of ROIALIGN, about, in the images from which detectors take them."""
DEFORM_NS, PLACE_NS = 0.15, 20.0
"""An element that DEFORM writes, and a place where it reads."""


def _taps(node: Node) -> int:
    """Pixels that a point of GRIDSAMPLE reads."""
    return int(GRID_TAPS[node.attrs["mode"]] ** (len(node.output.shape) - 2))


def _grid_flops(node: Node) -> float:
    return 2.0 * node.output.size * _taps(node)


def _grid_ns(node: Node, ops: float) -> float:
    """By vectors of channels, or of points where channels are few."""
    channels, taps = node.output.shape[1], _taps(node)
    points = node.output.size / max(channels, 1)
    if channels < FEW_SAMPLED:
        point, tap, gathered = FEW_NS
        return points * (point + taps * tap) + node.output.size * taps * gathered
    return points * (POINT_NS + taps * TAP_NS) + node.output.size * (SAMPLED_NS + taps * SAMPLED_TAP_NS)


def _roi_taps(node: Node) -> float:
    """Pixels that a cell of ROIALIGN reads, for regions of the usual size. A maximum has four for each point."""
    taps = 1.0
    for cells in node.output.shape[2:]:
        side = REGION / cells
        ratio = node.attrs["ratio"] or max(np.ceil(side), 1.0)
        taps *= 2.0 * ratio if node.attrs["mode"] == "max" else min(2.0 * ratio, side * (1.0 - 1.0 / ratio) + 2.0)
    return float(taps)


def _roi_flops(node: Node) -> float:
    return 2.0 * node.output.size * _roi_taps(node)


def _roi_ns(node: Node, ops: float) -> float:
    channels = max(node.output.shape[1], 1)
    return node.output.size * (SAMPLED_NS + _roi_taps(node) * (ROI_TAP_NS + TAP_NS / channels))


def _deform_flops(node: Node) -> float:
    return 8.0 * node.output.size


def _deform_ns(node: Node, ops: float) -> float:
    x = node.inputs[0]
    runs = max(node.attrs["groups"], node.attrs["parts"]) / max(x.shape[1], 1) if x is not None else 1.0
    return node.output.size * (DEFORM_NS + runs * PLACE_NS)


FEW_SAMPLED = 8
"""Fewer channels than this do not make lines: vectors of pixels read them, in any layout."""

_EXACT = 1 << 20
"""Positions on shorter axes, and halves of them, are exact in single precision."""


def _resize_region(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    a, target = node.attrs, node.output.shape
    lo, hi = lo.copy(), hi.copy()
    for axis, dim in enumerate(shape):
        scale = a["scales"][axis]
        if scale == 1.0 and dim == target[axis]:
            continue
        # The kernel's arithmetic may round differently from this one; nearest elements are found in single precision. Unless the scale is a
        # power of two, stay on the safe side.
        long = max(dim, target[axis])
        exact = np.frexp(scale)[0] == 0.5 and not a["coordinate"].startswith("align") and long < _EXACT
        slack = 0.0 if exact else max(1e-4, 1e-6 * long)
        first = _source(lo[:, axis], scale, dim, target[axis], a["coordinate"]) - slack
        last = _source(hi[:, axis] - 1, scale, dim, target[axis], a["coordinate"]) + slack
        first, last = np.minimum(first, last), np.maximum(first, last)
        if a["mode"] == "nearest":
            low, high = _nearest(first, a["nearest"]), _nearest(last, a["nearest"])
        else:
            before, after = (0, 1) if a["mode"] == "linear" else (1, 2)
            low, high = np.floor(first) - before, np.floor(last) + after
        lo[:, axis] = np.clip(low, 0, dim - 1).astype(np.int64)
        hi[:, axis] = np.clip(high, 0, dim - 1).astype(np.int64) + 1
    return lo, hi


def _source(x: Boxes, scale: float, dim: int, target: int, coordinate: str) -> npt.NDArray[Any]:
    """Where output position x lies on the input axis (ONNX Resize, coordinate_transformation_mode)."""
    if coordinate == "asymmetric":
        return x / scale
    if coordinate == "align_corners":
        return np.zeros(len(x)) if target == 1 else x * (dim - 1) / (target - 1)
    if coordinate == "align_fractional_corners":
        width = scale * dim
        return np.zeros(len(x)) if width == 1 else x * (dim - 1) / (width - 1)
    if coordinate == "pytorch_half_pixel" and target == 1:
        return np.zeros(len(x))
    if coordinate == "half_pixel_symmetric":
        return dim / 2 * (1 - target / (scale * dim)) + (x + 0.5) / scale - 0.5
    return (x + 0.5) / scale - 0.5


def _nearest(x: npt.NDArray[Any], rounding: str) -> npt.NDArray[Any]:
    if rounding == "round_prefer_floor":
        return np.ceil(x - 0.5)
    if rounding == "round_prefer_ceil":
        return np.floor(x + 0.5)
    out: npt.NDArray[Any] = np.floor(x) if rounding == "floor" else np.ceil(x)
    return out


def _image(shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    """All pixels of the box's channels of its batch entries."""
    out_lo, out_hi = whole(shape, len(lo))
    out_lo[:, :2], out_hi[:, :2] = lo[:, :2], hi[:, :2]
    return out_lo, out_hi


def _gridsample_region(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    """Points are read anywhere; each has its own place in the grid."""
    if i == 0:
        return _image(shape, lo, hi)
    out_lo, out_hi = whole(shape, len(lo))
    for axis in range(len(shape) - 1):
        out_lo[:, axis], out_hi[:, axis] = lo[:, axis + (axis > 0)], hi[:, axis + (axis > 0)]
    return out_lo, out_hi


def _roialign_region(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    """The images of the regions: those between the first and the last one where `batches` is known, else all."""
    if i > 0:
        out_lo, out_hi = whole(shape, len(lo))
        out_lo[:, 0], out_hi[:, 0] = lo[:, 0], hi[:, 0]
        return out_lo, out_hi
    out_lo, out_hi = _image(shape, lo, hi)
    batches = node.inputs[2]
    assert batches is not None
    out_lo[:, 0], out_hi[:, 0] = 0, shape[0]
    if batches.data is not None:
        first, last = extremes(batches.data.astype(np.int64), lo[:, :1], hi[:, :1])
        out_lo[:, 0], out_hi[:, 0] = np.clip(first, 0, shape[0]), np.clip(last + 1, 0, shape[0])
    return out_lo, out_hi


def _deform_region(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    """Places are read anywhere; of offsets and mask what belongs to the pixels, for any channels."""
    out_lo, out_hi = whole(shape, len(lo))
    out_lo[:, 0], out_hi[:, 0] = lo[:, 0], hi[:, 0]
    if i > 0:
        out_lo[:, 2:], out_hi[:, 2:] = lo[:, 2:], hi[:, 2:]
        return out_lo, out_hi
    inner = shape[1] // node.attrs["groups"]
    a, b = lo[:, 1], hi[:, 1] - 1
    group = prod(node.attrs["kernel"]) * inner
    same = a // inner == b // inner  # channels of one tap
    ends = a // group == b // group  # several taps of a group have its first and last channel
    first, last = a // group * inner, b // group * inner
    from_tap = same | (~ends & (a % group >= group - inner))
    to_tap = same | (~ends & (b % group < inner))
    out_lo[:, 1] = first + np.where(from_tap, a % inner, 0)
    out_hi[:, 1] = last + np.where(to_tap, b % inner + 1, inner)
    return out_lo, out_hi


LONGEST_IMAGE = 1 << 30
"""This many pixels along an axis are too many for kernels that read images between their pixels."""
MOST_POINTS, MOST_LISTS = 1 << 10, 1 << 24
"""Most points of a cell of ROIALIGN along an axis; most bytes of its lists of pixels."""


def _resize_checks(call: Call) -> None:
    out, x = call.out, call.input(0)
    need(len(x.shape) == len(out.shape), "rank of input 0", len(x.shape), len(out.shape))
    need(x.dtype == out.dtype, "dtype of input 0", x.dtype, out.dtype)
    need(0 not in x.shape or 0 in out.shape, "shape of input 0", x.shape, "not empty")
    for k, n in ((0, 3), (1, 6), (2, 4)):
        in_range(call, k, "mode", 0, n)
    for k in range(len(out.shape)):
        scale = struct.unpack("<d", struct.pack("<q", call.params[4 + k]))[0]
        need(isfinite(scale) and scale > 0, "scale", scale, "positive and finite")


def _image_sides(arg: Arg, what: str) -> None:
    """Pixels are counted in single precision."""
    need(all(1 <= d < LONGEST_IMAGE for d in arg.shape[2:]), f"shape of {what}", arg.shape, f"axes of 1 … {LONGEST_IMAGE - 1} pixels")


def _gridsample_checks(call: Call) -> None:
    all_f32(call)
    out, x, grid = call.out, call.input(0), call.input(1)
    need(len(x.shape) in (4, 5), "rank of input 0", len(x.shape), "4 or 5")
    need(len(out.shape) == len(x.shape), "rank of the output", len(out.shape), len(x.shape))
    need(x.shape[:2] == out.shape[:2], "batch and channels of input 0", x.shape[:2], out.shape[:2])
    shaped(grid, (out.shape[0], *out.shape[2:], len(x.shape) - 2), "shape of input 1")
    _image_sides(x, "input 0")
    for k, name in enumerate(("mode", "padding")):
        in_range(call, k, name, 0, 3)
    in_range(call, 2, "align_corners", 0, 2)


def _roialign_checks(call: Call) -> None:
    out, x, rois, batches = call.out, call.input(0), call.input(1), call.input(2)
    for name, arg, dtype in (("the output", out, F32), ("input 0", x, F32), ("input 1", rois, F32), ("input 2", batches, I64)):
        need(arg.dtype == dtype, f"dtype of {name}", arg.dtype, dtype)
    ranked(out, 4, "the output")
    ranked(x, 4, "input 0")
    need(x.shape[1] == out.shape[1], "channels of input 0", x.shape[1], out.shape[1])
    shaped(rois, (out.shape[0], 4), "shape of input 1")
    shaped(batches, (out.shape[0],), "shape of input 2")
    _image_sides(x, "input 0")
    mode = in_range(call, 0, "mode", 0, 2)
    ratio = in_range(call, 1, "points of a cell", 0, MOST_POINTS + 1)
    scale = struct.unpack("<d", struct.pack("<q", call.params[2]))[0]
    need(isfinite(scale), "scale", scale, "finite")
    in_range(call, 3, "half_pixel", 0, 2)
    room = roi_scratch(out.shape, x.shape, "max" if mode else "avg", ratio)
    need(room <= MOST_LISTS, "lists of pixels", room, f"at most {MOST_LISTS} bytes")


def _deform_checks(call: Call) -> None:
    all_f32(call)
    out, x, offsets = call.out, call.input(0), call.input(1)
    ranked(out, 4, "the output")
    ranked(x, 4, "input 0")
    _image_sides(x, "input 0")
    groups, parts = in_range(call, 0, "groups", 1, LIMIT), in_range(call, 1, "parts", 1, LIMIT)
    kh, kw = window(call, 2, 2)
    need(x.shape[1] > 0 and x.shape[1] % groups == 0 and x.shape[1] % parts == 0, "groups", (groups, parts), f"divisors of {x.shape[1]}")
    shaped(out, (x.shape[0], kh * kw * x.shape[1], *out.shape[2:]), "shape of the output")
    shaped(offsets, (x.shape[0], 2 * parts * kh * kw, *out.shape[2:]), "shape of input 1")
    shaped(call.optional(2), (x.shape[0], parts * kh * kw, *out.shape[2:]), "shape of input 2")


def _roi_scratch(node: Node) -> int:
    x = node.inputs[0]
    assert x is not None
    return roi_scratch(node.output.shape, x.shape, node.attrs["mode"], node.attrs["ratio"])


IMAGE = Input("x", "[N, C, spatial axes]")
CHANNELS = last_of(1)
"""Where a point lies is found once for all channels."""

SPECS = (
    OpSpec(
        name="RESIZE",
        inputs=(Input("x"),),
        params=(
            choice("mode", RESIZE_MODES, "ONNX's"),
            choice("coordinate", RESIZE_COORDINATES, "see `RESIZE_COORDINATES`"),
            choice("nearest", RESIZE_NEAREST, "ONNX's"),
            real("cubic_coeff_a", "ONNX's"),
            Param("scales", "per axis", 8, lambda a: [bits(s) for s in a["scales"]] + [bits(1.0)] * (8 - len(a["scales"]))),
            integer("exclude_outside", "ONNX's"),
            reserved(7),
        ),
        region=_resize_region,
        checks=_resize_checks,
        layout=Layout.SPREADS,
        batch_rank=1,
        cost=Cost(element_ns=each(0.2)),
    ),
    OpSpec(
        name="GRIDSAMPLE",
        inputs=(IMAGE, Input("grid", "[N, spatial axes of the output, axes]: points, -1 and 1 are the ends of the image")),
        params=(
            choice("mode", GRID_MODES, "how pixels around a point are weighted"),
            choice("padding", GRID_PADDINGS, "what lies outside the image"),
            integer("align_corners", "whether ends are the middles of the outer pixels"),
        ),
        region=_gridsample_region,
        checks=_gridsample_checks,
        layout=Layout.LINES,
        read_again=2,
        whole_axes=CHANNELS,
        cost=Cost(_grid_flops, ns=_grid_ns),
    ),
    OpSpec(
        name="ROIALIGN",
        inputs=(IMAGE, Input("regions", "[R, left, top, right, bottom]"), Input("batches", "[R], i64: which image each is of")),
        params=(
            choice("mode", ROI_MODES, "mean or greatest of the points of a cell"),
            integer("ratio", "points of a cell along each axis; 0: as many as it spans pixels"),
            real("scale", "pixels of an image in one of the regions' numbers"),
            integer("half_pixel", "ONNX's"),
        ),
        region=_roialign_region,
        checks=_roialign_checks,
        layout=Layout.LINES,
        read_again=8,
        whole_axes=CHANNELS,
        by_value=True,
        cost=Cost(_roi_flops, ns=_roi_ns, scratch=_roi_scratch),
    ),
    OpSpec(
        name="DEFORM",
        inputs=(IMAGE, Input("offsets", "[N, 2 parts taps, OH, OW]"), Input("mask", "[N, parts taps, OH, OW]", True)),
        params=(GROUPS, integer("parts", "of the channels, which have offsets of their own"), *WINDOW),
        region=_deform_region,
        checks=_deform_checks,
        layout=Layout.LINES,
        read_again=8,
        whole_axes=CHANNELS,
        cost=Cost(_deform_flops, ns=_deform_ns),
    ),
)
