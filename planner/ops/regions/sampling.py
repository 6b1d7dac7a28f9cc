"""Images that are read between their pixels."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from aspen_mp.planner.ir.graph import Node, Shape
from aspen_mp.planner.ops.regions.boxes import Boxes, Region, Rule, whole
from aspen_mp.planner.ops.regions.indexing import extremes

_EXACT = 1 << 20
"""Positions on shorter axes, and halves of them, are exact in single precision."""


def _resize(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    a, target = node.attrs, node.output.shape
    lo, hi = lo.copy(), hi.copy()
    for axis, dim in enumerate(shape):
        scale = a["scales"][axis]
        if scale == 1.0 and dim == target[axis]:
            continue
        # The kernel's arithmetic may round differently from this one, nearest elements are found in single precision: unless the scale is
        # a power of two, stay on the safe side.
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


def _gridsample(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    """Points are read anywhere; each has its own place in the grid."""
    if i == 0:
        return _image(shape, lo, hi)
    out_lo, out_hi = whole(shape, len(lo))
    for axis in range(len(shape) - 1):
        out_lo[:, axis], out_hi[:, axis] = lo[:, axis + (axis > 0)], hi[:, axis + (axis > 0)]
    return out_lo, out_hi


def _roialign(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    """Which image a region is of is read; where that is known the images between the first and the last one, else all."""
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


def _deform(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
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


RULES: dict[str, Rule] = {
    "RESIZE": _resize,
    "GRIDSAMPLE": _gridsample,
    "ROIALIGN": _roialign,
    "DEFORM": _deform,
}
