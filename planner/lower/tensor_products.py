"""Einsum and transposed convolution, said as products that have kernels."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
import numpy.typing as npt

from aspen_mp.planner.ir import Node, Tensor
from aspen_mp.planner.lower.builder import F32, Builder, NoKernel, require_f32
from aspen_mp.planner.lower.elementwise import data, optional
from aspen_mp.planner.lower.products import convolve, window
from aspen_mp.planner.lower.registry import rule


@rule("Einsum", widened=True)
def _einsum(b: Builder, node: Node) -> Tensor:
    """One or two operands without diagonals: transpose, sum, multiply matrices."""
    tensors = [data(node, k) for k in range(len(node.inputs))]
    require_f32(*tensors)
    terms, result = _indices(node.attrs["equation"].replace(" ", ""), [len(t.shape) for t in tensors])
    if len(tensors) > 2 or any(len(set(t)) != len(t) for t in (*terms, result)) or any(t.size == 0 for t in tensors):
        raise NoKernel("more than two operands, a diagonal, or nothing")
    sizes: dict[str, int] = {}
    for tensor, term in zip(tensors, terms, strict=True):
        for letter, dim in zip(term, tensor.shape, strict=True):
            if sizes.setdefault(letter, dim) != dim:
                raise NoKernel("broadcasting")
    if len(tensors) == 1:
        out, letters = _summed(b, tensors[0], terms[0], result)
        return b.transpose(out, [letters.index(c) for c in result])
    others = [set(terms[1]), set(terms[0])]
    x, left = _summed(b, tensors[0], terms[0], "".join(others[0]) + result)
    y, right = _summed(b, tensors[1], terms[1], "".join(others[1]) + result)
    batch = [c for c in left if c in right and c in result]
    inner = [c for c in left if c in right and c not in result]
    rows, columns = [c for c in left if c not in right], [c for c in right if c not in left]
    a = _matrix(b, x, left, (batch, rows, inner), sizes)
    c = _matrix(b, y, right, (batch, inner, columns), sizes)
    order = [*batch, *rows, *columns]
    out = b.reshape(b.gemm(a, c), [sizes[k] for k in order])
    return b.transpose(out, [order.index(k) for k in result])


def _indices(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """Letters of each operand and of the result; an ellipsis becomes capital Greek letters, aligned at the right."""
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise NoKernel("another number of operands")
    full = [chr(0x391 + k) for k in range(8)]
    widest = 0
    for k, term in enumerate(terms):
        if "..." in term:
            n = ranks[k] - len(term.replace("...", ""))
            widest = max(widest, n)
            terms[k] = term.replace("...", "".join(full[len(full) - n :]))
        if len(terms[k]) != ranks[k]:
            raise NoKernel("another rank")
    ellipsis = "".join(full[len(full) - widest :]) if widest else ""
    if not arrow:
        once = sorted(c for c in set("".join(terms)) if "".join(terms).count(c) == 1 and c not in full)
        return terms, ellipsis + "".join(once)
    return terms, right.replace("...", ellipsis)


def _summed(b: Builder, tensor: Tensor, term: str, wanted: str) -> tuple[Tensor, str]:
    """The tensor summed over the letters that nobody wants."""
    axes = [k for k, letter in enumerate(term) if letter not in wanted]
    if not axes:
        return tensor, term
    return b.reduce("SUM", tensor, axes, keepdims=False), "".join(c for c in term if c in wanted)


def _matrix(b: Builder, tensor: Tensor, letters: str, groups: Sequence[Sequence[str]], sizes: dict[str, int]) -> Tensor:
    """A tensor as a batch of matrices: one axis a group of letters, no batch axis where there is none."""
    moved = b.transpose(tensor, [letters.index(c) for group in groups for c in group])
    shape = [prod(sizes[c] for c in group) for group in groups]
    return b.reshape(moved, shape if groups[0] else shape[1:])


@rule("ConvTranspose", widened=True)
def _conv_transpose(b: Builder, node: Node) -> Tensor:
    """A convolution with the kernel turned round over an input with stride - 1 zeros between its elements."""
    x, w, bias = data(node), data(node, 1), optional(node, 2)
    require_f32(x, w, bias)
    spatial, kernel = x.shape[2:], w.shape[2:]
    out_spatial = node.output.shape[2:]
    if len(spatial) not in {1, 2} or x.size == 0 or not w.is_const:
        raise NoKernel(f"over {len(spatial)} axes, or weights that are computed")
    strides, dilations, begin, _ = window(node, kernel, spatial)
    extra = list(node.attrs.get("output_padding") or [0] * len(spatial))
    if node.attrs.get("auto_pad", "NOTSET") != "NOTSET" or node.attrs.get("output_shape"):
        begin = _begin(node, spatial, kernel, strides, dilations, extra)
    if len(spatial) == 1:
        x, w = b.reshape(x, (*x.shape[:2], 1, *spatial)), b.reshape(w, (*w.shape[:2], 1, *kernel))
        strides, dilations, begin, out_spatial = [1, *strides], [1, *dilations], [0, *begin], (1, *out_spatial)
    groups = int(node.attrs.get("group", 1))
    w = _turned(b, w, groups)
    lead = [(w.shape[2 + k] - 1) * dilations[k] - begin[k] for k in range(2)]
    size = [out_spatial[k] + (w.shape[2 + k] - 1) * dilations[k] for k in range(2)]
    x = _spread(b, x, strides, lead, size)
    shape = (x.shape[0], w.shape[0], *out_spatial)
    out = convolve(b, x, w, bias, shape, groups=groups, strides=(1, 1), dilations=dilations, pads=(0, 0))
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


def _turned(b: Builder, w: Tensor, groups: int) -> Tensor:
    """[C, M/G, KH, KW] → [M, C/G, KH, KW], both kernel axes reversed."""
    c, m, kh, kw = w.shape

    def turn(value: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        split = value.reshape(groups, c // groups, m, kh, kw)[..., ::-1, ::-1]
        return split.transpose(0, 2, 1, 3, 4).reshape(groups * m, c // groups, kh, kw)

    return b.derived(w, f"turned{groups}", (groups * m, c // groups, kh, kw), turn)


def _spread(b: Builder, x: Tensor, strides: Sequence[int], lead: Sequence[int], size: Sequence[int]) -> Tensor:
    """Zeros between and around the elements: each becomes the first of a block of `strides` zeros, then the image is padded or cropped."""
    n, c, h, w = x.shape
    zero = b.constant(0.0, F32)
    if max(strides) > 1:
        blocks = b.reshape(x, (n, c, h, 1, w, 1))
        shape = (n, c, h, strides[0], w, strides[1])
        x = b.reshape(b.emit("PAD", [blocks, zero], shape, F32, mode="CONSTANT", begin=(0,) * 6), (n, c, h * strides[0], w * strides[1]))
    target = (n, c, *size)
    if x.shape == target and not any(lead):
        return x
    return b.emit("PAD", [x, zero], target, F32, mode="CONSTANT", begin=(0, 0, *lead))
