"""Convolutions, pooling, and images made larger or smaller."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from aspen_mp.torch import sizes
from aspen_mp.torch.builder import HALVES, INT64, Builder, Value, static
from aspen_mp.torch.registry import Unsupported, aten


@aten("convolution.default")
def _convolution(
    b: Builder,
    x: Value,
    weight: Value,
    bias: Value | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Value:
    n = weight.rank - 2
    stride, padding, dilation, output_padding = (_each(v, n) for v in (stride, padding, dilation, output_padding))
    single = x.rank == n + 1
    if single:
        x = b.emit("Unsqueeze", x, b.ints([0]))
    common: dict[str, Any] = {"strides": stride, "dilations": dilation, "group": int(groups), "pads": [*padding, *padding]}
    if transposed:
        y = b.emit("ConvTranspose", x, weight, bias, output_padding=output_padding if any(output_padding) else None, **common)
    else:
        y = b.emit("Conv", x, weight, bias, **common)
    return b.emit("Squeeze", y, b.ints([0])) if single else y


def _each(values: Sequence[int] | int, n: int) -> list[int]:
    """A number for each dimension."""
    values = [values] if isinstance(values, int) else list(values)
    return static(values * n if len(values) == 1 else values, "a window")


# ---- pooling


def _batched(b: Builder, x: Value, n: int) -> tuple[Value, bool]:
    if x.rank == n + 1:
        return b.emit("Unsqueeze", x, b.ints([0]), shape=[1, *x.shape]), True
    return x, False


def _unbatched(b: Builder, y: Value, single: bool) -> Value:
    return b.emit("Squeeze", y, b.ints([0])) if single else y


def _over(x: Value, out: Sequence[Any], kernel: list[int], stride: list[int], padding: list[int], dilation: list[int]) -> list[int]:
    """How many elements the last windows reach over the padded end, so that there are as many windows as PyTorch has."""
    n = len(kernel)
    result = []
    for size, count, k, s, p, d in zip(x.shape[-n:], out[-n:], kernel, stride, padding, dilation, strict=True):
        size, count = sizes.plain(size), sizes.plain(count)  # noqa: PLW2901
        if not isinstance(size, int) or not isinstance(count, int):
            raise Unsupported("ceil_mode for a size that is not fixed")
        result.append(max((count - 1) * s + d * (k - 1) + 1 - size - 2 * p, 0))
    return result


def _max_pool(b: Builder, n: int, out: Any, x: Value, arguments: Sequence[Any], indices: bool) -> tuple[Value, Value | None]:
    kernel = _each(arguments[0], n)
    stride = _each(arguments[1], n) if len(arguments) > 1 and arguments[1] else kernel
    padding = _each(arguments[2] if len(arguments) > 2 else 0, n)
    dilation = _each(arguments[3] if len(arguments) > 3 else 1, n)
    ceil = len(arguments) > 4 and arguments[4]
    if indices:
        raise Unsupported("the places of maxima")
    x, single = _batched(b, x, n)
    over = _over(x, tuple(out.shape), kernel, stride, padding, dilation) if ceil else [0] * n
    ends = [p + o for p, o in zip(padding, over, strict=True)]
    y = b.emit("MaxPool", x, kernel_shape=kernel, strides=stride, pads=[*padding, *ends], dilations=dilation)
    return _unbatched(b, y, single), None


@aten("max_pool2d_with_indices.default", "max_pool3d_with_indices.default")
def _max_pool_with_indices(b: Builder, x: Value, *arguments: Any) -> tuple[Value, Value | None]:
    n = 3 if b.made_for("max_pool3d_with_indices") else 2
    return _max_pool(b, n, b.out[0], x, arguments, 1 in b.used)


@aten("avg_pool2d.default", "avg_pool3d.default")
def _avg_pool(
    b: Builder,
    x: Value,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] | int = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Value:
    n = 3 if b.made_for("avg_pool3d") else 2
    kernel = _each(kernel_size, n)
    steps, pads = (_each(stride, n) if stride else kernel), _each(padding, n)
    if divisor_override is not None:
        raise Unsupported("a divisor of its own")
    x, single = _batched(b, x, n)
    over = _over(x, b.shape, kernel, steps, pads, [1] * n) if ceil_mode else [0] * n
    if count_include_pad and any(pads) and any(over):  # windows count the padding, but not what lies behind it
        ends = [sizes.plain(s) + 2 * p for s, p in zip(x.shape[-n:], pads, strict=True)]
        x = b.emit("Pad", x, b.ints(pads * 2), b.constant(0, x.dtype), b.ints(range(x.rank - n, x.rank)), shape=[*x.shape[:-n], *ends])
        pads, count_include_pad = [0] * n, False
    count = int(count_include_pad and any(pads))
    y = b.emit(
        "AveragePool",
        x,
        kernel_shape=kernel,
        strides=steps,
        pads=[*pads, *[p + o for p, o in zip(pads, over, strict=True)]],
        count_include_pad=count,
    )
    return _unbatched(b, y, single)


@aten("_adaptive_avg_pool2d.default", "_adaptive_avg_pool3d.default")
def _adaptive_avg_pool(b: Builder, x: Value, output_size: Sequence[Any]) -> Value:
    n = len(output_size)
    wanted = static(output_size, "the size of a pool")
    if all(size == 1 for size in wanted):
        return b.emit("ReduceMean", x, b.ints(range(x.rank - n, x.rank)), keepdims=1)
    shape = static(x.shape[-n:], "adaptive pooling")
    if all(size % out == 0 for size, out in zip(shape, wanted, strict=True)):
        kernel = [size // out for size, out in zip(shape, wanted, strict=True)]
        x, single = _batched(b, x, n)
        return _unbatched(b, b.emit("AveragePool", x, kernel_shape=kernel, strides=kernel), single)
    for place, (size, out) in enumerate(zip(shape, wanted, strict=True)):
        axis = x.rank - n + place
        last = [k for k in range(x.rank) if k != axis] + [axis]
        matrix = b.constant(_averages(size, out), x.dtype)
        turned = b.emit("MatMul", b.transpose(x, last), matrix)
        back = [last.index(k) for k in range(x.rank)]
        x = b.transpose(turned, back)._replace(shape=(*x.shape[:axis], out, *x.shape[axis + 1 :]))
    return x


def _averages(size: int, out: int) -> np.ndarray[Any, Any]:
    """[size, out]: what each element counts in each mean."""
    weights = np.zeros((size, out))
    for k in range(out):
        begin, end = k * size // out, -(-(k + 1) * size // out)
        weights[begin:end, k] = 1.0 / (end - begin)
    return weights


@aten("adaptive_max_pool2d.default", "adaptive_max_pool3d.default")
def _adaptive_max_pool(b: Builder, x: Value, output_size: Sequence[Any]) -> tuple[Value, None]:
    n = len(output_size)
    if 1 in b.used:
        raise Unsupported("the places of maxima")
    wanted, shape = static(output_size, "the size of a pool"), static(x.shape[-n:], "adaptive pooling")
    if any(size % out for size, out in zip(shape, wanted, strict=True)):
        raise Unsupported("adaptive windows of unlike sizes")
    kernel = [size // out for size, out in zip(shape, wanted, strict=True)]
    x, single = _batched(b, x, n)
    return _unbatched(b, b.emit("MaxPool", x, kernel_shape=kernel, strides=kernel), single), None


# ---- sizes of images


def _resized(b: Builder, x: Value, n: int, mode: str, scales: Sequence[Any], **attrs: Any) -> Value:
    """Scales that were given decide; otherwise they follow from the sizes."""
    out = b.shape[-n:]
    if scales and all(scale is not None for scale in scales):
        exact = [sizes.plain(s) for s in x.shape[-n:]]
        fits = all(
            isinstance(s, int) and isinstance(sizes.plain(o), int) and s * f == sizes.plain(o)
            for s, f, o in zip(exact, scales, out, strict=True)
        )
        if not fits and not all(float(scale).is_integer() for scale in scales):
            raise Unsupported("a scale that is not the quotient of the sizes")
        if fits or not all(isinstance(sizes.plain(o), int) for o in out):
            factors = b.constant(np.array([1.0, 1.0, *map(float, scales)], np.float32), torch.float32)
            return b.emit("Resize", x, None, factors, mode=mode, **attrs)
    return b.emit("Resize", x, None, None, b.ints([*x.shape[:2], *out]), mode=mode, **attrs)


@aten("upsample_nearest1d.default", "upsample_nearest2d.default", "upsample_nearest3d.default")
def _nearest(b: Builder, x: Value, output_size: Sequence[Any], *scales: Any) -> Value:
    return _resized(b, x, len(output_size), "nearest", scales, coordinate_transformation_mode="asymmetric", nearest_mode="floor")


def _corners(align_corners: bool, mode: str) -> dict[str, Any]:
    return {"coordinate_transformation_mode": "align_corners" if align_corners else "half_pixel"}


@aten("_upsample_nearest_exact1d.default", "_upsample_nearest_exact2d.default")
def _nearest_exact(b: Builder, x: Value, output_size: Sequence[Any], *scales: Any) -> Value:
    centre = {"coordinate_transformation_mode": "half_pixel", "nearest_mode": "round_prefer_ceil"}
    return _resized(b, x, len(output_size), "nearest", scales, **centre)


@aten("upsample_linear1d.default", "upsample_bilinear2d.default", "upsample_trilinear3d.default")
def _linear(b: Builder, x: Value, output_size: Sequence[Any], align_corners: bool, *scales: Any) -> Value:
    return _resized(b, x, len(output_size), "linear", () if align_corners else scales, **_corners(align_corners, "linear"))


@aten("upsample_bicubic2d.default")
def _cubic(b: Builder, x: Value, output_size: Sequence[Any], align_corners: bool, *scales: Any) -> Value:
    return _resized(b, x, 2, "cubic", () if align_corners else scales, cubic_coeff_a=-0.75, **_corners(align_corners, "cubic"))


@aten("grid_sampler_2d.default")
def _grid_sample(b: Builder, x: Value, grid: Value, mode: int, padding: int, align_corners: bool) -> Value:
    if x.dtype in HALVES:
        raise Unsupported("halves as coordinates: PyTorch rounds them at each step, which may lead to another element")
    modes, paddings = ("linear", "nearest", "cubic"), ("zeros", "border", "reflection")
    return b.emit("GridSample", x, grid, mode=modes[mode], padding_mode=paddings[padding], align_corners=int(align_corners))


@aten("im2col.default")
def _im2col(b: Builder, x: Value, kernel: Sequence[int], dilation: Sequence[int], padding: Sequence[int], stride: Sequence[int]) -> Value:
    n, c, h, w = static(x.shape, "the image")
    (kh, kw), (dh, dw), (ph, pw), (sh, sw) = (_each(v, 2) for v in (kernel, dilation, padding, stride))
    if ph or pw:
        x = b.emit("Pad", x, b.ints([ph, pw, ph, pw]), b.constant(0, x.dtype), b.ints([2, 3]))
    rows, columns = (h + 2 * ph - dh * (kh - 1) - 1) // sh + 1, (w + 2 * pw - dw * (kw - 1) - 1) // sw + 1
    down = np.arange(kh)[:, None] * dh + np.arange(rows)[None] * sh
    across = np.arange(kw)[:, None] * dw + np.arange(columns)[None] * sw
    taken = b.emit("Gather", x, b.constant(down, INT64), axis=2)
    taken = b.emit("Gather", taken, b.constant(across, INT64), axis=4)
    return b.reshape(b.transpose(taken, [0, 1, 2, 4, 3, 5]), [n, c * kh * kw, rows * columns])
