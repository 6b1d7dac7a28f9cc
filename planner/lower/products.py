"""Matrix products and convolutions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from aspen_mp.planner.cost.algorithms import Phases, block_for, phases_for
from aspen_mp.planner.ir.graph import Node, Shape, Tensor
from aspen_mp.planner.job import reasons
from aspen_mp.planner.job.reasons import Reason, Tried
from aspen_mp.planner.lower.builder import F32, F64, Builder, NoKernel, broadcast, one_float, planes_are_channels, require_f32
from aspen_mp.planner.lower.elementwise import data, optional
from aspen_mp.planner.lower.registry import rule
from aspen_mp.planner.ops.params import NO_ACT

_FEW_ROWS = 32  # products of fewer rows each are stacked


@rule("Gemm")
def _gemm(b: Builder, node: Node) -> Tensor:
    x, w, c = data(node), data(node, 1), optional(node, 2)
    dtype = one_float(x, w, c)
    x = b.transpose(x, (1, 0)) if node.attrs.get("transA", 0) else x
    w = b.transpose(w, (1, 0)) if node.attrs.get("transB", 0) else w
    beta = float(node.attrs.get("beta", 1.0))
    if c is not None and beta == 0.0:
        c = None
    if c is not None and beta != 1.0:
        c = (
            b.derived(c, f"*{beta}", c.shape, lambda v: v * v.dtype.type(beta))
            if c.is_const
            else b.binary("MUL", c, b.constant(beta, dtype))
        )
    return b.gemm(x, w, c, alpha=float(node.attrs.get("alpha", 1.0)))


@rule("MatMul")
def _matmul(b: Builder, node: Node) -> Tensor:
    return matmul(b, data(node), data(node, 1))


def matmul(b: Builder, x: Tensor, y: Tensor) -> Tensor:
    """numpy.matmul: vectors are rows on the left and columns on the right."""
    dtype = one_float(x, y)
    if x.size == 0 or y.size == 0:
        raise NoKernel("a tensor is empty")
    shape = broadcast(x.shape[:-2], y.shape[:-2]) + x.shape[-2:-1] * (len(x.shape) > 1) + y.shape[-1:] * (len(y.shape) > 1)
    x = b.reshape(x, (1, *x.shape)) if len(x.shape) == 1 else x
    y = b.reshape(y, (*y.shape, 1)) if len(y.shape) == 1 else y
    stackable = len(x.shape) > 2 and prod(y.shape[:-2]) == 1 and prod(x.shape[:-2]) > 1
    if stackable and (dtype == F64 or b.decide(lambda: int(x.shape[-2] < _FEW_ROWS))):
        x = b.reshape(x, (prod(x.shape[:-1]), x.shape[-1]))
        y = b.reshape(y, y.shape[-2:])
    return b.reshape(b.gemm(x, y), shape)


class Window(NamedTuple):
    """How a convolution goes over its input, by axis. `pads`: (front,) top and left. `exact`: of integers, so not by Winograd's algorithm,
    which rounds."""

    groups: int
    strides: Sequence[int]
    dilations: Sequence[int]
    pads: Sequence[int]
    exact: bool = False


def window(node: Node, kernel: Sequence[int], spatial: Sequence[int]) -> tuple[list[int], list[int], list[int], list[int]]:
    """Strides, dilations, pads at the beginning and at the end of a sliding window, auto_pad resolved."""
    n = len(kernel)
    strides = list(node.attrs.get("strides") or [1] * n)
    dilations = list(node.attrs.get("dilations") or [1] * n)
    pads = list(node.attrs.get("pads") or [0] * 2 * n)
    auto = node.attrs.get("auto_pad", "NOTSET")
    if len(strides) != n or len(dilations) != n or len(pads) != 2 * n:
        raise NoKernel("the attributes are for another number of axes")
    if auto == "VALID":
        return strides, dilations, [0] * n, [0] * n
    if auto in {"SAME_UPPER", "SAME_LOWER"}:
        begin, end = [], []
        for k in range(n):
            out = -(-spatial[k] // strides[k])
            total = max((out - 1) * strides[k] + (kernel[k] - 1) * dilations[k] + 1 - spatial[k], 0)
            small, large = total // 2, total - total // 2
            begin.append(small if auto == "SAME_UPPER" else large)
            end.append(large if auto == "SAME_UPPER" else small)
        return strides, dilations, begin, end
    return strides, dilations, pads[:n], pads[n:]


@rule("Conv")
def _conv(b: Builder, node: Node) -> Tensor:
    x, w, bias = data(node), data(node, 1), optional(node, 2)
    require_f32(x, w, bias)
    if x.size == 0:
        raise NoKernel("a tensor is empty")
    spatial, kernel = x.shape[2:], w.shape[2:]
    strides, dilations, begin, _ = window(node, kernel, spatial)
    if len(spatial) == 1:  # a row of an image
        x, w = b.reshape(x, (*x.shape[:2], 1, *spatial)), b.reshape(w, (*w.shape[:2], 1, *kernel))
        strides, dilations, begin = [1, *strides], [1, *dilations], [0, *begin]
        shape = (*node.output.shape[:2], 1, node.output.shape[2])
    elif len(spatial) in {2, 3}:
        shape = node.output.shape
    else:
        raise NoKernel(f"no kernel convolves over {len(spatial)} axes")
    out = convolve(b, x, w, bias, shape, Window(int(node.attrs.get("group", 1)), strides, dilations, begin))
    return b.reshape(out, node.output.shape)


Flattened = Callable[[Sequence[int]], list[int]]


def flat_images(
    x: Shape, out: Shape, kernel: Sequence[int], strides: Sequence[int], pads: Sequence[int]
) -> tuple[Shape, Shape, Flattened] | None:
    """How a window over three axes is one over two, if it does not look beyond an element on one of the last two. The rows of the new
    images of input and output are whole images, or those of all images one after the other. The function leaves of a value for each axis
    those of the rows and columns."""
    one = [k == s == 1 and p == 0 and x[2 + a] == out[2 + a] for a, (k, s, p) in enumerate(zip(kernel, strides, pads, strict=True))]
    if one[1] and one[2]:
        images = [(n, c, d, h * w) for n, c, d, h, w in (x, out)]
        return images[0], images[1], lambda values: [values[0], values[2]]
    if one[0] and one[1]:
        images = [(n, c, d * h, w) for n, c, d, h, w in (x, out)]
        return images[0], images[1], lambda values: [values[1], values[2]]
    return None


def convolve(b: Builder, x: Tensor, w: Tensor, bias: Tensor | None, shape: Shape, by: Window) -> Tensor:
    """The convolution of x [N, C, H, W] or [N, C, D, H, W] with w [OC, C / groups, (KD,) KH, KW] by the kernel that is fastest, for an
    output of `shape`."""
    if len(x.shape) == 5:
        return _convolve_volume(b, x, w, bias, shape, by)
    groups, strides, dilations, pads, exact = by
    kernel, step = (w.shape[2], w.shape[3]), (strides[0], strides[1])
    attrs: dict[str, Any] = {"groups": groups, "kernel": kernel, "strides": step, "dilations": tuple(dilations), "pads": tuple(pads)}
    direct = _only_direct(b, w, by)
    how = 0 if direct else b.decide(partial(_fastest, b, x, w, shape, kernel, step, pads))
    if isinstance(how, int) and how:
        return b.emit("WINO", [x, b.packed_winograd(w, how, step), bias], shape, F32, **attrs, act=NO_ACT, block=how)
    if isinstance(how, Phases):
        phases = how
        w = phases_of_weights(b, w, phases.before, phases.kernel)
        attrs |= {"kernel": phases.kernel, "strides": (1, 1), "pads": phases.pads}
        inputs = [phases_of_image(b, x), b.packed_winograd(w, phases.block, (1, 1)), bias]
        return b.emit("WINO", inputs, shape, F32, **attrs, act=NO_ACT, block=phases.block)
    depthwise = _is_depthwise(x, w, groups)
    attrs |= {"exact": True} if exact else {}
    return b.emit("DWCONV" if depthwise else "CONV", [x, packed(b, w, groups, depthwise), bias], shape, F32, **attrs, act=NO_ACT)


def _only_direct(b: Builder, w: Tensor, by: Window) -> str:
    """Why a convolution cannot run by Winograd's algorithm; "": it can."""
    rules = {
        "groups of channels share no products": by.groups != 1,
        "the window has gaps": tuple(by.dilations[-2:]) != (1, 1),
        "the weights are computed": not w.is_const,
        "sums of integers are exact": by.exact,
        "algorithms of fewer multiplications are switched off": not b.winograd,
    }
    direct = next((rule for rule, holds in rules.items() if holds), "")
    if direct:
        reasons.tell(lambda: Reason("algorithm", "direct sums", direct, tried=(Tried("Winograd", direct),)))
    return direct


def _fastest(
    b: Builder, x: Tensor, w: Tensor, shape: Shape, kernel: tuple[int, int], step: tuple[int, int], pads: Sequence[int]
) -> int | Phases:
    """How a convolution of images is computed."""
    block = block_for(x.shape, shape, kernel, step, b.bf16, partial(b.accurate, w, step), by_rows=b.by_rows)
    return block or phases_for(x.shape, shape, kernel, step, (pads[0], pads[1]), partial(_accurate_phases, b, w)) or 0


def _accurate_phases(b: Builder, w: Tensor, phases: Phases) -> bool:
    return b.accurate(phases_of_weights(b, w, phases.before, phases.kernel), (1, 1), phases.block)


MOST_REPEATED = 8
"""Channels of output that DWCONV makes of one of input, at most: with more, CONV fills its panels well enough."""


def _is_depthwise(x: Tensor, w: Tensor, groups: int) -> bool:
    """Whether each channel of output is made of one of input, and DWCONV is the kernel for that."""
    return groups == x.shape[1] > 1 and w.shape[0] <= MOST_REPEATED * groups


def _convolve_volume(b: Builder, x: Tensor, w: Tensor, bias: Tensor | None, shape: Shape, by: Window) -> Tensor:
    """Windows that are flat on two axes run over images of two; others have an axis of depth."""
    groups, strides, dilations, pads, exact = by
    flat = flat_images(x.shape, shape, w.shape[2:], strides, pads)
    if flat is not None:
        image, target, kept = flat
        small = b.reshape(w, (*w.shape[:2], *kept(w.shape[2:])))
        y = convolve(b, b.reshape(x, image), small, bias, target, Window(groups, kept(strides), kept(dilations), kept(pads), exact))
        return b.reshape(y, shape)
    kernel, step = (w.shape[3], w.shape[4]), (strides[1], strides[2])
    attrs: dict[str, Any] = {"groups": groups, "kernel": kernel, "strides": step, "dilations": tuple(dilations[1:])}
    attrs |= {"pads": tuple(pads[1:]), "depth": (w.shape[2], strides[0], dilations[0], pads[0]), "act": NO_ACT}
    direct = _only_direct(b, w, by)
    images = [(s[0] * s[2], s[1], *s[3:]) for s in (x.shape, shape)]
    images[0] = (images[0][0], w.shape[2] * x.shape[1], *images[0][2:])
    choose = partial(block_for, images[0], images[1], kernel, step, allowed=partial(b.accurate, w, step), by_rows=b.by_rows)
    block = 0 if direct else b.decide(choose)
    if isinstance(block, int) and block:
        return b.emit("WINO", [x, b.packed_winograd(w, block, step), bias], shape, F32, **attrs, block=block)
    depthwise = _is_depthwise(x, w, groups)
    return b.emit("DWCONV" if depthwise else "CONV", [x, packed(b, w, groups, depthwise), bias], shape, F32, **attrs)


def phases_of_image(b: Builder, x: Tensor) -> Tensor:
    """[N, C, H, W] → [N, 4 C, H / 2, W / 2], rounded up, channels last in memory: channel c becomes its even rows' even and odd columns,
    then its odd rows'."""
    n, c, h, w = x.shape
    rows, columns = -(-h // 2), -(-w // 2)
    if h % 2 or w % 2 or b.any_size:
        x = b.emit("PAD", [x, b.constant(0.0, F32)], (n, c, 2 * rows, 2 * columns), F32, mode="CONSTANT", begin=(0, 0, 0, 0))
    moved = b.copy(b.transpose(b.reshape(x, (n, c, rows, 2, columns, 2)), (0, 2, 4, 1, 3, 5)))
    return b.transpose(b.reshape(moved, (n, rows, columns, 4 * c)), (0, 3, 1, 2))


def phases_of_weights(b: Builder, w: Tensor, before: tuple[int, int], kernel: tuple[int, int]) -> Tensor:
    """[OC, C, KH, KW] → [OC, 4 C, *kernel], with `before` zeros before the first row and column."""
    oc, c, kh, kw = w.shape
    rows, columns = kernel

    def move(v: npt.NDArray[Any]) -> npt.NDArray[Any]:
        wide = np.zeros((oc, c, 2 * rows, 2 * columns), v.dtype)
        wide[:, :, before[0] : before[0] + kh, before[1] : before[1] + kw] = v
        return wide.reshape(oc, c, rows, 2, columns, 2).transpose(0, 1, 3, 5, 2, 4).reshape(oc, 4 * c, rows, columns)

    return b.derived(w, f"phases{before}{kernel}", (oc, 4 * c, rows, columns), move)


def packed(b: Builder, w: Tensor, groups: int, depthwise: bool) -> Tensor:
    """Weights as CONV or DWCONV wants them: packed once where they are constant, else padded and moved by kernels."""
    if w.is_const:
        return b.packed_depthwise(w) if depthwise else b.packed_conv(w, groups)
    oc, c, taps = w.shape[0], w.shape[1], prod(w.shape[2:])
    if depthwise:
        return b.transpose(b.reshape(w, (oc, taps)), (1, 0))
    if planes_are_channels(w, groups):
        c, taps = c * w.shape[2], taps // w.shape[2]
        w = b.reshape(b.transpose(w, (0, 2, 1, 3, 4)), (oc, c, *w.shape[3:]))
    n = oc // groups
    panels = -(-n // 32)
    w = b.reshape(w, (groups, n, c, taps))
    if panels * 32 != n:
        w = b.emit("PAD", [w, b.constant(0.0, F32)], (groups, panels * 32, c, taps), F32, mode="CONSTANT", begin=(0, 0, 0, 0))
    w = b.reshape(w, (groups, panels, 32, c, taps))
    return b.reshape(b.transpose(w, (0, 1, 4, 3, 2)), (groups, panels, taps * c, 32))


@rule("MaxPool")
def _max_pool(b: Builder, node: Node) -> Tensor:
    if len(node.outputs) > 1 and node.outputs[1].name:
        raise NoKernel("no kernel gives the indices of maxima")
    x = data(node)
    if x.dtype.name not in {"float32", "float64", "int8", "uint8"}:
        raise NoKernel(f"no kernel computes {x.dtype}")
    return _pool(b, node, x, "max", False)


@rule("AveragePool")
def _average_pool(b: Builder, node: Node) -> Tensor:
    require_f32(data(node))
    return _pool(b, node, data(node), "average", bool(node.attrs.get("count_include_pad", 0)))


@rule("LpPool")
def _lp_pool(b: Builder, node: Node) -> Tensor:
    """Averages of the powers, times the number of elements that each is of: windows at the edges have fewer."""
    x, p = data(node), int(node.attrs.get("p", 2))
    require_f32(x)
    n = len(x.shape) - 2
    if len(node.attrs["kernel_shape"]) != n:
        raise NoKernel("the attributes are for another number of axes")
    counts = np.ones((1, 1, *[1] * n), np.float32)
    strides, dilations, begin, _ = window(node, list(node.attrs["kernel_shape"]), x.shape[2:])
    for axis, size in enumerate(node.attrs["kernel_shape"]):
        taps = np.arange(node.output.shape[2 + axis])[:, None] * strides[axis] - begin[axis] + np.arange(size) * dilations[axis]
        inside = ((taps >= 0) & (taps < x.shape[2 + axis])).sum(axis=1)
        counts = counts * inside.astype(np.float32).reshape(-1, *[1] * (n - 1 - axis))
    if p < 1 or not counts.all():
        raise NoKernel("a window holds no element, or the norm is not known")
    powers = b.binary("MUL", x, x) if p == 2 else b.unary("ABS", x)
    if p > 2:
        powers = b.binary("POW", powers, b.constant(float(p), F32))
    sums = b.binary("MUL", _pool(b, node, powers, "average", False), b.constant(counts))
    if p == 1:
        return sums
    return b.unary("SQRT", sums) if p == 2 else b.binary("POW", sums, b.constant(1.0 / p, F32))


def _pool(b: Builder, node: Node, x: Tensor, mode: str, count_include_pad: bool) -> Tensor:
    spatial, kernel = x.shape[2:], list(node.attrs["kernel_shape"])
    strides, dilations, begin, end = window(node, kernel, spatial)
    axes = list(zip(kernel, strides, dilations, begin, end, strict=True))
    shape = node.output.shape
    options = {"mode": mode, "count_include_pad": count_include_pad}
    if len(spatial) == 1:
        x = b.reshape(x, (*x.shape[:2], 1, *spatial))
        out = _pool_images(b, x, (*shape[:2], 1, *shape[2:]), [(1, 1, 1, 0, 0), *axes], options)
    elif len(spatial) == 2:
        out = _pool_images(b, x, shape, axes, options)
    elif len(spatial) == 3:
        out = _pool_volume(b, x, shape, axes, options)
    else:
        raise NoKernel(f"no kernel pools over {len(spatial)} axes")
    return b.reshape(out, shape)


def _pool_images(b: Builder, x: Tensor, shape: Shape, axes: Sequence[tuple[int, ...]], options: dict[str, Any]) -> Tensor:
    """`axes`: kernel, stride, dilation, pads before and after, of rows and of columns."""
    kernel, strides, dilations, begin, end = zip(*axes, strict=True)
    return b.emit("POOL", [x], shape, x.dtype, kernel=kernel, strides=strides, dilations=dilations, pads=(*begin, *end), **options)


def _pool_volume(b: Builder, x: Tensor, shape: Shape, axes: Sequence[tuple[int, ...]], options: dict[str, Any]) -> Tensor:
    """Pools within each image, then over the remaining depth: maxima of maxima, and averages of averages. Averages may do so because every
    image has as many elements of a window as any other."""
    n, c, d, h, w = x.shape
    if any(axis[:4] != (1, 1, 1, 0) or axis[4] for axis in axes[1:]):
        images = b.reshape(b.transpose(x, (0, 2, 1, 3, 4)), (n * d, c, h, w))
        images = _pool_images(b, images, (n * d, c, *shape[3:]), axes[1:], options)
        x = b.transpose(b.reshape(images, (n, d, c, *shape[3:])), (0, 2, 1, 3, 4))
    if axes[0] == (1, 1, 1, 0, 0):
        return x
    pixels = b.reshape(x, (n, c, d, shape[3] * shape[4]))
    return b.reshape(_pool_images(b, pixels, (n, c, shape[2], shape[3] * shape[4]), [axes[0], (1, 1, 1, 0, 0)], options), shape)


@rule("GlobalAveragePool", "GlobalMaxPool")
def _global_pool(b: Builder, node: Node) -> Tensor:
    x = data(node)
    mode = "average" if node.op == "GlobalAveragePool" else "max"
    if len(x.shape) != 4 or x.dtype != F32:
        return b.reduce("MEAN" if mode == "average" else "MAX", x, range(2, len(x.shape)))
    ones = (1, 1)
    return b.emit(
        "POOL",
        [x],
        (*x.shape[:2], 1, 1),
        x.dtype,
        mode=mode,
        kernel=x.shape[2:],
        strides=ones,
        dilations=ones,
        pads=(0, 0, 0, 0),
        count_include_pad=False,
    )


@rule("GlobalLpPool")
def _global_lp_pool(b: Builder, node: Node) -> Tensor:
    x, p = data(node), float(node.attrs.get("p", 2))
    require_f32(x)
    axes = range(2, len(x.shape))
    if p not in {1.0, 2.0} or x.size == 0 or all(x.shape[a] == 1 for a in axes):
        raise NoKernel("no kernel has this order of norm, or norms of single elements")
    return b.reduce("L1" if p == 1 else "L2", x, axes)
