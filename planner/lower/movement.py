"""Operators that move elements: views wherever strides can say it, else copies, gathers, pads and resizes."""

from __future__ import annotations

from itertools import pairwise
from math import prod

import numpy as np

from aspen_mp.planner.ir.graph import Node, Tensor
from aspen_mp.planner.lower.builder import BOOL, F32, I64, MAX_RANK, Builder, NoKernel, axis_of, ints, require_f32
from aspen_mp.planner.lower.elementwise import data, optional
from aspen_mp.planner.lower.registry import rule
from aspen_mp.planner.ops.sampling import RESIZE_COORDINATES
from aspen_mp.workers.fallback.numpy_operators import FRACTIONAL_CORNERS, slices


@rule("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def _reshape(b: Builder, node: Node) -> Tensor:
    return b.reshape(data(node), node.output.shape)


@rule("Transpose")
def _transpose(b: Builder, node: Node) -> Tensor:
    x = data(node)
    return b.transpose(x, node.attrs.get("perm") or tuple(reversed(range(len(x.shape)))))


@rule("Expand")
def _expand(b: Builder, node: Node) -> Tensor:
    return b.expand(b.align(data(node), len(node.output.shape)), node.output.shape)


@rule("ConstantOfShape")
def _constant_of_shape(b: Builder, node: Node) -> Tensor:
    value = node.attrs.get("value")
    import onnx

    fill = np.zeros((), np.float32) if value is None else onnx.numpy_helper.to_array(value).reshape(())
    shape = node.output.shape
    return b.expand(b.constant(fill.reshape((1,) * len(shape))), shape)


@rule("Slice")
def _slice(b: Builder, node: Node) -> Tensor:
    x = data(node)
    if len(node.inputs) > 1:
        starts, ends = ints(node.inputs[1]), ints(node.inputs[2])
        axes, steps = (None if t is None else ints(t) for t in (optional(node, 3), optional(node, 4)))
    else:
        starts, ends, axes, steps = node.attrs["starts"], node.attrs["ends"], node.attrs.get("axes"), None
    spans = [s.indices(d) for s, d in zip(slices(x.shape, starts, ends, axes, steps), x.shape, strict=True)]
    return b.slice(x, [s[0] for s in spans], [s[2] for s in spans], node.output.shape)


@rule("Split")
def _split(b: Builder, node: Node) -> list[Tensor]:
    x = data(node)
    axis = axis_of(node.attrs.get("axis", 0), len(x.shape))
    at, out = 0, []
    given = optional(node, 1)
    sizes = ints(given) if given is not None else node.attrs.get("split")
    if sizes is None:
        n = len(node.outputs)
        step = -(-x.shape[axis] // n)
        sizes = [step] * (n - 1) + [x.shape[axis] - step * (n - 1)]
    for size in sizes:
        starts = [at if k == axis else 0 for k in range(len(x.shape))]
        shape = [size if k == axis else d for k, d in enumerate(x.shape)]
        out.append(b.slice(x, starts, [1] * len(shape), shape))
        at += size
    return out


@rule("Concat")
def _concat(b: Builder, node: Node) -> Tensor:
    parts = [data(node, k) for k in range(len(node.inputs))]
    return b.concat(parts, axis_of(node.attrs.get("axis", 1), len(node.output.shape)))


@rule("Tile")
def _tile(b: Builder, node: Node) -> Tensor:
    """Repeats are new axes of stride 0: [d] → [1, d] → [r, d] → [r * d]."""
    x = data(node)
    repeats = ints(node.inputs[1])
    before: list[int] = []
    after: list[int] = []
    for r, d in zip(repeats, x.shape, strict=True):
        if r == 1 or d == 1:
            before.append(d)
            after.append(r * d)
        else:
            before += [1, d]
            after += [r, d]
    if len(before) > MAX_RANK:
        for axis, r in enumerate(repeats):
            x = b.concat([x] * r, axis) if r > 1 else x
        return x
    return b.reshape(b.expand(b.reshape(x, before), after), node.output.shape)


@rule("Pad")
def _pad(b: Builder, node: Node) -> Tensor:
    x, rank = data(node), len(data(node).shape)
    mode = node.attrs.get("mode", "constant").upper()
    value: Tensor | None = None
    if node.source is not None and node.source.version < 11:
        pads = list(node.attrs.get("pads") or [])
        if node.attrs.get("value", 0.0):
            value = b.constant(np.asarray(node.attrs["value"]).astype(x.dtype))
    else:
        pads, value = ints(node.inputs[1]), optional(node, 2)
    axes = list(range(rank))
    if optional(node, 3) is not None:
        axes = [axis_of(a, rank) for a in ints(node.inputs[3])]
    if x.size == 0 or rank == 0 or len(pads) != 2 * len(axes):
        raise NoKernel("there is nothing to pad")
    begin, end = [0] * rank, [0] * rank
    for k, axis in enumerate(axes):
        begin[axis], end[axis] = pads[k], pads[k + len(axes)]
    if all(p <= 0 for p in pads):  # a crop
        return b.slice(x, [-p for p in begin], [1] * rank, node.output.shape)
    if mode != "CONSTANT" and min(pads) < 0:  # the rest after the crop is repeated
        left = [d + min(p, 0) + min(q, 0) for d, p, q in zip(x.shape, begin, end, strict=True)]
        x = b.slice(x, [max(-p, 0) for p in begin], [1] * rank, left)
        begin = [max(p, 0) for p in begin]
    value = None if value is None else b.reshape(value, ())
    return b.emit("PAD", [x, value], node.output.shape, x.dtype, mode=mode, begin=tuple(begin))


@rule("Gather")
def _gather(b: Builder, node: Node) -> Tensor:
    x, indices = data(node), data(node, 1)
    axis = axis_of(node.attrs.get("axis", 0), len(x.shape))
    dim = x.shape[axis]
    if indices.is_const and indices.data is not None and len(indices.shape) <= 1 and indices.size > 0 and not indices.placed:
        values = [int(v) for v in indices.data.reshape(-1)]
        values = [v + dim if v < 0 else v for v in values]
        steps = {second - first for first, second in pairwise(values)} or {1}
        if all(0 <= v < dim for v in values) and len(steps) == 1 and steps != {0}:  # evenly spaced: a slice
            starts = [values[0] if k == axis else 0 for k in range(len(x.shape))]
            strides = [min(steps) if k == axis else 1 for k in range(len(x.shape))]
            shape = [len(values) if k == axis else d for k, d in enumerate(x.shape)]
            return b.reshape(b.slice(x, starts, strides, shape), node.output.shape)
    return b.emit("GATHER", [x, indices], node.output.shape, x.dtype, axis=axis)


@rule("GatherElements")
def _gather_elements(b: Builder, node: Node) -> Tensor:
    x, indices = data(node), data(node, 1)
    return b.emit("GATHER_ELEMENTS", [x, indices], node.output.shape, x.dtype, axis=axis_of(node.attrs.get("axis", 0), len(x.shape)))


@rule("TopK")
def _topk(b: Builder, node: Node) -> list[Tensor]:
    x = data(node)
    if x.size == 0 or x.dtype.kind not in "iufV" or len(x.shape) == 0:
        raise NoKernel(f"there is nothing of {x.dtype} to choose from")
    axis = axis_of(node.attrs.get("axis", -1), len(x.shape))
    count = ints(node.inputs[1])[0] if len(node.inputs) > 1 else int(node.attrs["k"])
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
    where = b.emit("TOPK", [x], shape, I64, axis=axis, largest=bool(node.attrs.get("largest", 1)))
    return [b.emit("GATHER_ELEMENTS", [x, where], shape, x.dtype, axis=axis), where]


def _places(b: Builder, indices: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Indices [..., n] of tensors whose first n axes are `dims` as places [...] in a row of all their elements."""
    if indices.is_const and indices.data is not None:
        given = indices.data.astype(np.int64)
        given = np.where(given < 0, given + np.array(dims), given)
        if ((given >= 0) & (given < np.array(dims))).all():
            return b.constant(np.asarray(np.ravel_multi_index(tuple(np.moveaxis(given, -1, 0)), dims)), I64)
    return b.emit("INDEX", [indices], indices.shape[:-1], I64, dims=dims)


@rule("GatherND")
def _gather_nd(b: Builder, node: Node) -> Tensor:
    """Elements or slices of the data as a row of them all; a batch's begin behind those of the batch before."""
    x, indices, batch = data(node), data(node, 1), int(node.attrs.get("batch_dims", 0))
    count = indices.shape[-1]
    lead, dims, rest = x.shape[:batch], x.shape[batch : batch + count], x.shape[batch + count :]
    if x.size == 0 or indices.size == 0 or len(dims) != count:
        raise NoKernel("a tensor is empty")
    if not batch and _in_order(indices, dims):
        return b.reshape(x, node.output.shape)
    places = _places(b, indices, dims)
    if batch:
        first = np.arange(prod(lead)).reshape(*lead, *(1,) * (len(indices.shape) - 1 - batch)) * prod(dims)
        places = b.binary("ADD", places, b.constant(first, I64))
    return b.emit("GATHER", [b.reshape(x, (prod(lead) * prod(dims), *rest)), places], node.output.shape, x.dtype, axis=0)


def _in_order(indices: Tensor, dims: tuple[int, ...]) -> bool:
    """Whether constant indices name all elements of these axes, one after the other."""
    if not indices.is_const or prod(indices.shape[:-1]) != prod(dims):
        return False
    rows = indices.value().reshape(-1, len(dims))
    return bool(np.array_equal(rows, np.indices(dims).reshape(len(dims), -1).T))


@rule("ScatterND")
def _scatter_nd(b: Builder, node: Node) -> Tensor:
    x, indices, updates = data(node), data(node, 1), data(node, 2)
    count = indices.shape[-1]
    dims, rest = x.shape[:count], prod(x.shape[count:])
    if x.size == 0 or indices.size == 0 or updates.size == 0:
        raise NoKernel("a tensor is empty")
    rows = prod(indices.shape[:-1])
    places = b.expand(b.reshape(_places(b, indices, dims), (rows, 1)), (rows, rest))
    flat = b.reshape(x, (prod(dims), rest))
    return b.reshape(_scattered(b, node, flat, places, b.reshape(updates, (rows, rest)), 0), x.shape)


@rule("ScatterElements", "Scatter")
def _scatter_elements(b: Builder, node: Node) -> Tensor:
    x, indices, updates = data(node), data(node, 1), data(node, 2)
    if x.size == 0 or len(x.shape) == 0:
        raise NoKernel("a tensor is empty")
    if indices.size == 0:  # a level of a detector's pyramid that has no boxes
        return x
    return _scattered(b, node, x, indices, updates, axis_of(node.attrs.get("axis", 0), len(x.shape)))


def _scattered(b: Builder, node: Node, x: Tensor, indices: Tensor, updates: Tensor, axis: int) -> Tensor:
    how, dtype = node.attrs.get("reduction", "none"), x.dtype
    if how != "none" and dtype.kind not in "iu" and dtype.name not in {"float16", "bfloat16", "float32", "float64"}:
        raise NoKernel(f"no kernel computes {dtype}")
    if how != "none" and dtype.name in {"float16", "bfloat16"}:
        x, updates = b.cast(x, F32), b.cast(updates, F32)
    return b.cast(b.emit("SCATTER", [x, indices, updates], x.shape, x.dtype, axis=axis, reduction=how), dtype)


@rule("OneHot")
def _one_hot(b: Builder, node: Node) -> Tensor:
    """Indices beside a row of all classes, once as they are and once counted from the end."""
    indices, depth, values = data(node), ints(data(node, 1))[0], data(node, 2)
    rank = len(indices.shape) + 1
    axis = axis_of(node.attrs.get("axis", -1), rank)
    if indices.size == 0 or depth < 1:
        raise NoKernel("a tensor is empty")
    shape = (*indices.shape[:axis], 1, *indices.shape[axis:])
    which = b.reshape(b.cast(indices, I64), shape)
    classes = np.arange(depth).reshape(-1, *(1,) * (rank - 1 - axis))
    first, second = (b.binary("EQUAL", which, b.constant(c, I64), BOOL) for c in (classes, classes - depth))
    hot = b.binary("OR", first, second, BOOL)
    off, on = (b.reshape(b.slice(values, [k], [1], [1]), ()) for k in (0, 1))
    return b.ternary("WHERE", hot, on, off)


@rule("AffineGrid")
def _affine_grid(b: Builder, node: Node) -> Tensor:
    """The points of a grid over [-1, 1], last axis first and 1 behind them, times each matrix."""
    theta, spatial = data(node), ints(data(node, 1))[2:]
    require_f32(theta)
    axes = []
    for extent in spatial:
        if node.attrs.get("align_corners", 0):
            axes.append(np.linspace(-1, 1, extent) if extent > 1 else np.ones(extent))
        else:
            axes.append((np.arange(extent) * 2 + 1) / extent - 1)
    points = np.stack([*reversed(np.meshgrid(*axes, indexing="ij")), np.ones(spatial)], -1).reshape(1, -1, len(spatial) + 1)
    if points.size == 0 or theta.size == 0:
        raise NoKernel("a tensor is empty")
    return b.reshape(b.gemm(b.constant(points, F32), b.transpose(theta, (0, 2, 1))), node.output.shape)


@rule("DepthToSpace")
def _depth_to_space(b: Builder, node: Node) -> Tensor:
    x, r = data(node), int(node.attrs["blocksize"])
    n, c, h, w = x.shape
    if node.attrs.get("mode", "DCR") == "CRD":
        return woven(b, b.transpose(b.reshape(x, (n, c // r**2, r, r, h, w)), (0, 2, 3, 1, 4, 5)))
    return woven(b, b.reshape(x, (n, r, r, c // r**2, h, w)))


def woven(b: Builder, x: Tensor) -> Tensor:
    """[N, blocks …, C, lengths …] → [N, C, lengths times blocks …]: an element becomes a block of neighbours. Channels lie last in memory,
    as those who read them want them, unless the result is the graph's."""
    axes = (len(x.shape) - 2) // 2
    n, blocks, c, lengths = x.shape[0], x.shape[1 : 1 + axes], x.shape[1 + axes], x.shape[2 + axes :]
    moved = b.copy(b.transpose(x, (0, *[k for a in range(axes) for k in (2 + axes + a, 1 + a)], 1 + axes)))
    pixels = b.reshape(moved, (n, *[d * r for d, r in zip(lengths, blocks, strict=True)], c))
    return b.transpose(pixels, (0, axes + 1, *range(1, axes + 1)))


@rule("SpaceToDepth")
def _space_to_depth(b: Builder, node: Node) -> Tensor:
    x, r = data(node), int(node.attrs["blocksize"])
    n, c, h, w = x.shape
    split = b.reshape(x, (n, c, h // r, r, w // r, r))
    perm = (0, 1, 3, 5, 2, 4) if node.attrs.get("mode", "DCR") == "CRD" else (0, 3, 5, 1, 2, 4)
    return b.reshape(b.transpose(split, perm), (n, c * r * r, h // r, w // r))


@rule("Resize", "Upsample")
def _resize(b: Builder, node: Node) -> Tensor:
    return resize(b, node, data(node))


def resize(b: Builder, node: Node, x: Tensor) -> Tensor:
    """A Resize or Upsample of x, which stands for the node's first input."""
    a = node.attrs
    version = node.source.version if node.source is not None else 19
    mode = a.get("mode", "nearest")
    mode = "linear" if mode == "bilinear" else mode
    old = node.op == "Upsample" or version < 11
    coordinate = "asymmetric" if old else a.get("coordinate_transformation_mode", "half_pixel")
    nearest = "floor" if old else a.get("nearest_mode", "round_prefer_floor")
    if mode not in {"nearest", "linear", "cubic"} or coordinate not in RESIZE_COORDINATES or a.get("antialias", 0):
        raise NoKernel(f"no kernel has mode {mode} with coordinates {coordinate}")
    if x.size == 0:
        raise NoKernel("a tensor is empty")
    if mode != "nearest" and x.dtype.kind in "iu" and x.dtype.itemsize <= 4:  # what lies between integers is cut off
        return b.cast(resize(b, node, b.cast(x, F32)), x.dtype)
    if mode != "nearest" and x.dtype != np.float32:
        raise NoKernel(f"no kernel computes {x.dtype}")
    shape, scales = node.output.shape, resize_scales(node, x.shape, old)
    if coordinate == "align_corners" and version >= FRACTIONAL_CORNERS and optional(node, 3) is None:
        coordinate = "align_fractional_corners"
    if (
        shape == x.shape
        and not (b.any_size and node.attrs.get("scales") is None)  # at another size it may be resized
        and coordinate in {"half_pixel", "asymmetric", "half_pixel_symmetric", "align_corners", "align_fractional_corners"}
        and all(s == 1.0 for s in scales)
    ):
        return x
    options = {
        "mode": mode,
        "coordinate": coordinate,
        "cubic_coeff_a": float(a.get("cubic_coeff_a", -0.75)),
        "exclude_outside": bool(a.get("exclude_outside", 0)),
    }
    if old and mode == "nearest" and any(s < 1 for s in scales):
        # Before opset 11 nothing says which element is the nearest; other runtimes round up where axes become shorter.
        middle = tuple(after if s < 1 else before for s, before, after in zip(scales, x.shape, shape, strict=True))
        x = b.emit("RESIZE", [x], middle, x.dtype, nearest="ceil", scales=tuple(min(s, 1.0) for s in scales), **options)
        scales = tuple(max(s, 1.0) for s in scales)
        if middle == shape:
            return x
    return b.emit("RESIZE", [x], shape, x.dtype, nearest=nearest, scales=scales, **options)


def resize_scales(node: Node, source: tuple[int, ...], old: bool) -> tuple[float, ...]:
    """Scale per axis: as given, else output by input (sizes)."""
    given = node.attrs.get("scales")
    if given is None:
        tensor = optional(node, 1 if old else 2)
        if tensor is not None and tensor.size > 0:
            if not tensor.is_const:
                raise NoKernel("scales are not known before the model runs")
            given = tensor.value().reshape(-1)
    axes = [axis_of(k, len(source)) for k in node.attrs.get("axes") or range(len(source))]
    scales = [1.0] * len(source)
    if given is not None and len(given) == len(axes):
        for axis, scale in zip(axes, given, strict=True):
            scales[axis] = float(scale)
        return tuple(scales)
    policy = node.attrs.get("keep_aspect_ratio_policy", "stretch")
    sizes = optional(node, 3)
    if sizes is None:
        raise NoKernel("there are neither scales nor sizes")
    ratios = [size / source[axis] for axis, size in zip(axes, ints(sizes), strict=True)]
    if policy != "stretch":
        ratios = [min(ratios) if policy == "not_larger" else max(ratios)] * len(axes)
    for axis, ratio in zip(axes, ratios, strict=True):
        scales[axis] = ratio
    return tuple(scales)
