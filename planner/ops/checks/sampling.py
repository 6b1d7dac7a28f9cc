"""Images that are read between their pixels."""

from __future__ import annotations

import struct
from math import isfinite

from aspen_mp.planner.ops.checks.call import F32, I64, LIMIT, Arg, Call, Rule, all_f32, in_range, need, ranked, shaped
from aspen_mp.planner.ops.checks.images import window
from aspen_mp.planner.ops.params import roi_scratch

LONGEST_IMAGE = 1 << 30
"""So many pixels along an axis are too many for those that read images between their pixels."""
MOST_POINTS, MOST_LISTS = 1 << 10, 1 << 24
"""Of a cell of ROIALIGN along an axis; bytes of its lists of pixels."""


def _resize(call: Call) -> None:
    out, x = call.out, call.input(0)
    need(len(x.shape) == len(out.shape), "rank of input 0", len(x.shape), len(out.shape))
    need(x.dtype == out.dtype, "dtype of input 0", x.dtype, out.dtype)
    need(0 not in x.shape or 0 in out.shape, "shape of input 0", x.shape, "not empty")
    for k, n in ((0, 3), (1, 6), (2, 4)):
        in_range(call, k, "mode", 0, n)
    for k in range(len(out.shape)):
        scale = struct.unpack("<d", struct.pack("<q", call.params[4 + k]))[0]
        need(isfinite(scale) and scale > 0, "scale", scale, "positive and finite")


def _image(arg: Arg, what: str) -> None:
    """Pixels are counted in single precision."""
    need(all(1 <= d < LONGEST_IMAGE for d in arg.shape[2:]), f"shape of {what}", arg.shape, f"axes of 1 … {LONGEST_IMAGE - 1} pixels")


def _gridsample(call: Call) -> None:
    all_f32(call)
    out, x, grid = call.out, call.input(0), call.input(1)
    need(len(x.shape) in (4, 5), "rank of input 0", len(x.shape), "4 or 5")
    need(len(out.shape) == len(x.shape), "rank of the output", len(out.shape), len(x.shape))
    need(x.shape[:2] == out.shape[:2], "batch and channels of input 0", x.shape[:2], out.shape[:2])
    shaped(grid, (out.shape[0], *out.shape[2:], len(x.shape) - 2), "shape of input 1")
    _image(x, "input 0")
    for k, name in enumerate(("mode", "padding")):
        in_range(call, k, name, 0, 3)
    in_range(call, 2, "align_corners", 0, 2)


def _roialign(call: Call) -> None:
    out, x, rois, batches = call.out, call.input(0), call.input(1), call.input(2)
    for name, arg, dtype in (("the output", out, F32), ("input 0", x, F32), ("input 1", rois, F32), ("input 2", batches, I64)):
        need(arg.dtype == dtype, f"dtype of {name}", arg.dtype, dtype)
    ranked(out, 4, "the output")
    ranked(x, 4, "input 0")
    need(x.shape[1] == out.shape[1], "channels of input 0", x.shape[1], out.shape[1])
    shaped(rois, (out.shape[0], 4), "shape of input 1")
    shaped(batches, (out.shape[0],), "shape of input 2")
    _image(x, "input 0")
    mode = in_range(call, 0, "mode", 0, 2)
    ratio = in_range(call, 1, "points of a cell", 0, MOST_POINTS + 1)
    scale = struct.unpack("<d", struct.pack("<q", call.params[2]))[0]
    need(isfinite(scale), "scale", scale, "finite")
    in_range(call, 3, "half_pixel", 0, 2)
    room = roi_scratch(out.shape, x.shape, "max" if mode else "avg", ratio)
    need(room <= MOST_LISTS, "lists of pixels", room, f"at most {MOST_LISTS} bytes")


def _deform(call: Call) -> None:
    all_f32(call)
    out, x, offsets = call.out, call.input(0), call.input(1)
    ranked(out, 4, "the output")
    ranked(x, 4, "input 0")
    _image(x, "input 0")
    groups, parts = in_range(call, 0, "groups", 1, LIMIT), in_range(call, 1, "parts", 1, LIMIT)
    kh, kw = window(call, 2, 2)
    need(x.shape[1] > 0 and x.shape[1] % groups == 0 and x.shape[1] % parts == 0, "groups", (groups, parts), f"divisors of {x.shape[1]}")
    shaped(out, (x.shape[0], kh * kw * x.shape[1], *out.shape[2:]), "shape of the output")
    shaped(offsets, (x.shape[0], 2 * parts * kh * kw, *out.shape[2:]), "shape of input 1")
    shaped(call.optional(2), (x.shape[0], parts * kh * kw, *out.shape[2:]), "shape of input 2")


RULES: dict[str, Rule] = {
    "RESIZE": _resize,
    "GRIDSAMPLE": _gridsample,
    "ROIALIGN": _roialign,
    "DEFORM": _deform,
}
