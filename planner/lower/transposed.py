"""Transposed convolution, said as convolutions that have kernels."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from aspen_mp.planner.ir.graph import Node, Tensor
from aspen_mp.planner.lower.builder import F32, MAX_RANK, Builder, NoKernel, require_f32
from aspen_mp.planner.lower.elementwise import data, optional
from aspen_mp.planner.lower.movement import woven
from aspen_mp.planner.lower.products import Window, convolve, window
from aspen_mp.planner.lower.registry import rule


@rule("ConvTranspose")
def _conv_transpose(b: Builder, node: Node) -> Tensor:
    x, w, bias = data(node), data(node, 1), optional(node, 2)
    require_f32(x, w, bias)
    spatial, kernel = x.shape[2:], w.shape[2:]
    out_spatial = node.output.shape[2:]
    if len(spatial) not in {1, 2, 3} or x.size == 0 or not w.is_const:
        raise NoKernel(f"the weights are computed, or no kernel convolves over {len(spatial)} axes")
    strides, dilations, begin, _ = window(node, kernel, spatial)
    extra = list(node.attrs.get("output_padding") or [0] * len(spatial))
    if node.attrs.get("auto_pad", "NOTSET") != "NOTSET" or node.attrs.get("output_shape"):
        begin = _begin(node, spatial, kernel, strides, dilations, extra)
    if len(spatial) == 1:
        x, w = b.reshape(x, (*x.shape[:2], 1, *spatial)), b.reshape(w, (*w.shape[:2], 1, *kernel))
        strides, dilations, begin, out_spatial = [1, *strides], [1, *dilations], [0, *begin], (1, *out_spatial)
    groups = int(node.attrs.get("group", 1))
    inside = all(0 <= p < k for p, k in zip(begin, w.shape[2:], strict=True))
    apart = max(strides) > 1 and max(dilations) == 1 and inside and 2 * len(begin) + 2 <= MAX_RANK
    out = (_by_phases if apart else _by_zeros)(b, x, w, bias, out_spatial, Window(groups, strides, dilations, begin))
    return b.reshape(out, node.output.shape)


def _begin(
    node: Node, spatial: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int], extra: Sequence[int]
) -> list[int]:
    """Pads at the beginning where only the output's shape is given, or auto_pad."""
    begin = []
    for k in range(len(spatial)):
        out = node.output.shape[2 + k]
        total = strides[k] * (spatial[k] - 1) + extra[k] + (kernel[k] - 1) * dilations[k] + 1 - out
        if node.attrs.get("auto_pad", "NOTSET") == "VALID":
            begin.append(0)
        else:
            begin.append(total // 2 if node.attrs.get("auto_pad", "NOTSET") == "SAME_UPPER" else total - total // 2)
    return begin


def _by_zeros(b: Builder, x: Tensor, w: Tensor, bias: Tensor | None, out: Sequence[int], by: Window) -> Tensor:
    """A convolution with the kernel turned round over an input with stride - 1 zeros between its elements."""
    groups, strides, dilations, begin, _ = by
    n = len(begin)
    w = _turned(b, w, groups)
    lead = [(w.shape[2 + k] - 1) * dilations[k] - begin[k] for k in range(n)]
    size = [out[k] + (w.shape[2 + k] - 1) * dilations[k] for k in range(n)]
    pads = [0] * n
    if max(strides) == 1 and min(lead) >= 0:  # the kernel itself finds zeros around the image
        pads = lead
    else:
        x = _spread(b, x, strides, lead, size)
    return convolve(b, x, w, bias, (x.shape[0], w.shape[0], *out), Window(groups, [1] * n, dilations, pads))


def _by_phases(b: Builder, x: Tensor, w: Tensor, bias: Tensor | None, out: Sequence[int], by: Window) -> Tensor:
    """Pixel s q + r of an axis with stride s, counted from before the pads, is a sum. Its terms are the input at q - j with the weights at
    s j + r. All remainders r, as channels, are one convolution of stride 1. Its result is put together by moving it."""
    groups, strides, dilations, begin, _ = by
    n, c = x.shape[:2]
    per_group, phases, axes = w.shape[1], prod(strides), range(len(begin))
    taps = [-(-w.shape[2 + k] // strides[k]) for k in axes]
    first = [begin[k] // strides[k] for k in axes]
    count = [(begin[k] + out[k] - 1) // strides[k] - first[k] + 1 for k in axes]
    pads = [taps[k] - 1 - first[k] for k in axes]
    alone = groups == c and per_group == 1  # each channel has its own weights: as many channels as there are phases
    inner = 1 if alone else groups
    w = _weights_of_phases(b, w, inner, alone, strides, taps)
    if alone:
        x = b.reshape(b.expand(b.reshape(x, (n, 1, *x.shape[1:])), (n, phases, *x.shape[1:])), (n, phases * c, *x.shape[2:]))
    m = per_group * groups // inner  # output channels of a phase in a group of phases
    if bias is not None:
        bias = _bias_of_phases(b, bias, inner, phases, m)
    shape = (n, inner * phases * m, *count)
    y = convolve(b, x, w, bias, shape, Window(phases * c if alone else groups, [1] * len(axes), dilations, pads))
    if inner > 1:
        y = b.reshape(y, (n, inner, phases, m, prod(count)))
        y = b.transpose(y, (0, 2, 1, 3, 4))
    y = woven(b, b.reshape(y, (n, *strides, inner * m, *count)))
    start = [begin[k] - first[k] * strides[k] for k in axes]
    return b.slice(y, (0, 0, *start), (1,) * len(y.shape), (n, inner * m, *out))


def _weights_of_phases(b: Builder, w: Tensor, groups: int, alone: bool, strides: Sequence[int], taps: Sequence[int]) -> Tensor:
    """[C, M/G, kernel …] → [G phases … M/G, C/G, taps …], the taps reversed; where each channel is alone, [C, 1, kernel …] →
    [phases … C, 1, taps …]."""
    c, m, *kernel = w.shape
    axes = range(len(kernel))
    outputs, inputs = (c, 1) if alone else (m, c // groups)

    def move(value: npt.NDArray[Any]) -> npt.NDArray[Any]:
        wide = np.zeros((c, m, *[t * s for t, s in zip(taps, strides, strict=True)]), value.dtype)
        wide[(slice(None), slice(None), *[slice(k) for k in kernel])] = value
        split = wide.reshape(groups, c // groups, m, *[d for t, s in zip(taps, strides, strict=True) for d in (t, s)])
        split = np.flip(split, tuple(3 + 2 * k for k in axes))
        order = [2, 1] if not alone else [1, 2]
        split = split.transpose(0, *[4 + 2 * k for k in axes], *order, *[3 + 2 * k for k in axes])
        moved: npt.NDArray[Any] = split.reshape(shape)
        return moved

    shape = (groups * prod(strides) * outputs, inputs, *taps)
    return b.derived(w, f"transposed{groups}{alone}{list(strides)}", shape, move)


def _bias_of_phases(b: Builder, bias: Tensor, groups: int, phases: int, m: int) -> Tensor:
    """[G M/G] → [G phases M/G]"""
    if bias.is_const:
        shape = (groups * phases * m,)
        return b.derived(bias, f"phases{groups},{phases}", shape, lambda v: np.repeat(v.reshape(groups, 1, m), phases, 1).reshape(shape))
    return b.reshape(b.expand(b.reshape(bias, (groups, 1, m)), (groups, phases, m)), (groups * phases * m,))


def _turned(b: Builder, w: Tensor, groups: int) -> Tensor:
    """[C, M/G, kernel …] → [M, C/G, kernel …], all kernel axes reversed."""
    c, m, *kernel = w.shape

    def turn(value: npt.NDArray[Any]) -> npt.NDArray[Any]:
        split = np.flip(value.reshape(groups, c // groups, m, *kernel), tuple(range(3, 3 + len(kernel))))
        moved: npt.NDArray[Any] = np.swapaxes(split, 1, 2).reshape(groups * m, c // groups, *kernel)
        return moved

    return b.derived(w, f"turned{groups}", (groups * m, c // groups, *kernel), turn)


def _spread(b: Builder, x: Tensor, strides: Sequence[int], lead: Sequence[int], size: Sequence[int]) -> Tensor:
    """Zeros between and around the elements: each becomes the first of a block of `strides` zeros, then the image is padded or cropped."""
    n, c, *spatial = x.shape
    zero = b.constant(0.0, F32)
    if max(strides) > 1:
        blocks = b.reshape(x, (n, c, *[k for d in spatial for k in (d, 1)]))
        shape = (n, c, *[k for pair in zip(spatial, strides, strict=True) for k in pair])
        spread = b.emit("PAD", [blocks, zero], shape, F32, mode="CONSTANT", begin=(0,) * len(shape))
        x = b.reshape(spread, (n, c, *[d * s for d, s in zip(spatial, strides, strict=True)]))
    target = (n, c, *size)
    if x.shape == target and not any(lead):
        return x
    return b.emit("PAD", [x, zero], target, F32, mode="CONSTANT", begin=(0, 0, *lead))
