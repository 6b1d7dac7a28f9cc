"""Operators that read images between their pixels."""

from __future__ import annotations

import numpy as np

from aspen_mp.planner.ir.graph import Node, Tensor
from aspen_mp.planner.lower.builder import F32, I64, Builder, NoKernel, require_f32
from aspen_mp.planner.lower.elementwise import data, optional
from aspen_mp.planner.lower.products import packed, window
from aspen_mp.planner.lower.registry import rule
from aspen_mp.planner.ops.params import NO_ACT
from aspen_mp.planner.ops.sampling import GRID_MODES, GRID_PADDINGS, LONGEST_IMAGE, MOST_LISTS, ROI_MODES, roi_scratch

_OLD_MODES = {"bilinear": "linear", "bicubic": "cubic"}
"""Modes of GridSample before opset 20."""


def _require_image(x: Tensor) -> None:
    if x.size == 0:
        raise NoKernel("a tensor is empty")
    if max(x.shape[2:]) >= LONGEST_IMAGE:
        raise NoKernel(f"no kernel samples an image of {list(x.shape[2:])} pixels")


@rule("GridSample")
def _grid_sample(b: Builder, node: Node) -> Tensor:
    x, grid = data(node), data(node, 1)
    require_f32(x)
    if len(x.shape) not in {4, 5}:
        raise NoKernel(f"no kernel samples an image of {len(x.shape) - 2} axes")
    _require_image(x)
    mode = node.attrs.get("mode", "linear")
    mode, padding = _OLD_MODES.get(mode, mode), node.attrs.get("padding_mode", "zeros")
    if mode not in GRID_MODES or padding not in GRID_PADDINGS:
        raise NoKernel(f"no kernel has mode {mode} with padding {padding}")
    if grid.dtype == np.float64 and mode != "nearest":  # PyTorch's exporter makes doubles of numpy's scalars; between pixels nothing jumps
        grid = b.cast(grid, x.dtype)
    require_f32(grid)
    corners = bool(node.attrs.get("align_corners", 0))
    return b.emit("GRIDSAMPLE", [x, grid], node.output.shape, x.dtype, mode=mode, padding=padding, align_corners=corners)


@rule("RoiAlign")
def _roi_align(b: Builder, node: Node) -> Tensor:
    x, rois, batches = data(node), data(node, 1), data(node, 2)
    require_f32(x, rois)
    _require_image(x)
    a, version = node.attrs, node.source.version if node.source is not None else 16
    mode, ratio = a.get("mode", "avg"), int(a.get("sampling_ratio", 0))
    coordinates = a.get("coordinate_transformation_mode", "half_pixel") if version >= 16 else "output_half_pixel"
    if mode not in ROI_MODES or coordinates not in {"half_pixel", "output_half_pixel"}:
        raise NoKernel(f"no kernel has mode {mode} with coordinates {coordinates}")
    if roi_scratch(node.output.shape, x.shape, mode, ratio) > MOST_LISTS:
        raise NoKernel("the regions of interest have too many cells of too large an image")
    half, scale = coordinates == "half_pixel", float(a.get("spatial_scale", 1.0))
    options = {"mode": mode, "ratio": ratio, "scale": scale, "half_pixel": half}
    return b.emit("ROIALIGN", [x, rois, b.cast(batches, I64)], node.output.shape, x.dtype, **options)


@rule("DeformConv")
def _deform_conv(b: Builder, node: Node) -> Tensor:
    """Becomes the samples of all taps at each pixel as channels, and a convolution of single pixels."""
    x, w, offsets, bias, mask = data(node), data(node, 1), data(node, 2), optional(node, 3), optional(node, 4)
    require_f32(x, w, offsets, bias, mask)
    if len(x.shape) != 4:
        raise NoKernel(f"no kernel convolves over {len(x.shape) - 2} axes")
    _require_image(x)
    if node.output.size == 0 or w.size == 0:
        raise NoKernel("a tensor is empty")
    groups, parts = int(node.attrs.get("group", 1)), int(node.attrs.get("offset_group", 1))
    strides, dilations, begin, _ = window(node, w.shape[2:], x.shape[2:])
    n, out, taps = x.shape[0], node.output.shape[2:], w.shape[2] * w.shape[3]
    options = {"kernel": w.shape[2:], "strides": tuple(strides), "dilations": tuple(dilations), "pads": tuple(begin)}
    read = b.emit("DEFORM", [x, offsets, mask], (n, taps * x.shape[1], *out), F32, groups=groups, parts=parts, **options)
    one = {"kernel": (1, 1), "strides": (1, 1), "dilations": (1, 1), "pads": (0, 0), "act": NO_ACT}
    return b.emit("CONV", [read, packed(b, w, groups, False), bias], node.output.shape, F32, groups=groups, **one)
