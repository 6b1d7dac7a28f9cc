"""Winograd's minimal filtering: its geometry and its transformed weights.

A block of outputs is computed from a patch of input by fewer products than it has terms, along each axis for itself. The transform of the
weights belongs to points of interpolation. ``workers/kernels/conv/winograd_lines.h`` has these built into the transforms of input and
output. All follow from the same construction (Toom-Cook with a point at infinity).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np
import numpy.typing as npt

from aspen_mp.planner.ir.graph import Shape
from aspen_mp.planner.ops.packing import PANEL

POINTS = {
    3: (0.0, 1.0),
    4: (0.0, 1.0, -1.0),
    5: (0.0, 0.75, -0.75, 2.0),
    6: (0.0, 0.625, -0.625, 1.5, -1.5),
    8: (0.0, 0.5, -0.5, 1.0, -1.0, 2.0, -2.0),
    10: (0.0, 0.4375, -0.4375, 0.8125, -0.8125, 1.25, -1.25, 2.25, -2.25),
    12: (0.0, 0.375, -0.375, 0.6875, -0.6875, 1.0, -1.0, 1.5, -1.5, 2.75, -2.75),
}
"""Finite points of interpolation for each number of products along an axis."""

BLOCKS: dict[tuple[int, int, int], tuple[int, ...]] = {
    (3, 3, 1): (2, 3, 4, 6),
    (3, 3, 2): (2, 3, 4),
    (2, 2, 1): (3, 5),
    (4, 4, 1): (3, 5),
    (5, 5, 1): (2, 4),
    (1, 3, 1): (4,),
    (3, 1, 1): (4,),
    (1, 5, 1): (4,),
    (5, 1, 1): (4,),
    (1, 7, 1): (4, 6),
    (7, 1, 1): (4, 6),
}
"""Sides of blocks that the kernel knows, by the rows, the columns and the stride of a convolution."""

Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis of a convolution: taps, stride, and outputs of a block, 1 where there is one tap only."""

    kernel: int
    stride: int
    block: int

    @property
    def side(self) -> int:
        """Inputs that a block sees, and products it takes."""
        if self.kernel == 1:
            return 1
        return 2 * self.block + 1 if self.stride == 2 else self.block + self.kernel - 1

    @property
    def weights(self) -> int:
        """Different weights among those of the products."""
        return self.block + 2 if self.stride == 2 else self.side

    def matrices(self) -> tuple[Matrix, Matrix, Matrix]:
        """A [side, block], G [side, kernel], B [side, side]. ``y = A' ((G w) * (B' d))`` is the correlation of d (side values) with w
        (kernel values) at the axis' stride. Rows of G beyond `weights` repeat the last."""
        if self.kernel == 1:
            one = np.ones((1, 1))
            return one, one, one
        if self.stride == 1:
            return matrices(self.block, self.kernel)
        m, n = self.block, self.side  # even inputs with taps 0 and 2, odd inputs with tap 1
        even_a, even_g, even_b = matrices(m, 2)
        a, g, b = np.zeros((n, m)), np.zeros((n, 3)), np.zeros((n, n))
        a[: m + 1], a[m + 1 :] = even_a, np.eye(m)
        g[: m + 1, ::2], g[m + 1 :, 1] = even_g, 1.0
        b[::2, : m + 1], b[1::2, m + 1 :] = even_b, np.eye(m)
        return a, g, b


def axes(kernel: Sequence[int], strides: Sequence[int], block: int) -> tuple[Axis, Axis]:
    """Rows and columns of a convolution that runs in blocks of `block`."""
    rows, columns = (Axis(k, s, block if k > 1 else 1) for k, s in zip(kernel, strides, strict=True))
    return rows, columns


@dataclass(frozen=True, slots=True)
class Blocks:
    """Blocks of a WINO, by rows and columns. ``sides``: outputs, ``steps``: input from one block to the next, ``patch``: input of a block.
    `products`: of a block. `weights`: those with weights of their own. `transforms`: axes along which there is something to transform."""

    sides: tuple[int, int]
    steps: tuple[int, int]
    patch: tuple[int, int]
    products: int
    weights: int
    transforms: int


@lru_cache
def blocks_of(kernel: tuple[int, int], strides: tuple[int, int], block: int) -> Blocks:
    """Those of a convolution that runs in blocks of `block`."""
    rows, columns = axes(kernel, strides, block)
    return Blocks(
        (rows.block, columns.block),
        (rows.block * strides[0], columns.block * strides[1]),
        (rows.side, columns.side),
        rows.side * columns.side,
        rows.weights * columns.weights,
        2 - (1 in kernel),
    )


@lru_cache
def matrices(m: int, taps: int) -> tuple[Matrix, Matrix, Matrix]:
    """A [n, m], G [n, taps], B [n, n] for blocks of m outputs at stride 1, n = m + taps - 1. Multiplying out the products of Lagrange
    interpolation at `POINTS`; the last row belongs to infinity."""
    n = m + taps - 1
    points = POINTS[n]
    a, g, b = np.zeros((n, m)), np.zeros((n, taps)), np.zeros((n, n))
    for i, p in enumerate(points):
        others = [q for q in points if q != p]
        a[i] = [p**k for k in range(m)]
        g[i] = np.array([p**k for k in range(taps)]) / prod(p - q for q in others)
        b[: n - 1, i] = np.poly(others)[::-1]
    a[-1, -1] = g[-1, -1] = 1.0
    b[:, -1] = np.poly(points)[::-1]
    return a, g, b


def packed_shape(w: Shape, m: int, strides: Sequence[int] = (1, 1)) -> Shape:
    """The shape of the transformed weights. For [OC, C, KH, KW] it is [ceil(OC / 32), weights of rows * weights of columns, C, 32]. For
    [OC, C, KD, KH, KW] it has KD * C in place of C."""
    rows, columns = axes(w[-2:], strides, m)
    return -(-w[0] // PANEL), rows.weights * columns.weights, prod(w[2:-2]) * w[1], PANEL


def pack(m: int, w: npt.NDArray[np.float32], out: npt.NDArray[np.float32], strides: Sequence[int] = (1, 1)) -> None:
    """Writes the transformed weights of `w` [OC, C, KH, KW] or [OC, C, KD, KH, KW] into `out` (see `packed_shape`), zero-padded. Computed
    in float64, a panel at a time, and rounded once."""
    if w.ndim == 5:
        w = np.moveaxis(w, 2, 1).reshape(w.shape[0], w.shape[2] * w.shape[1], *w.shape[3:])
    rows, columns = axes(w.shape[2:], strides, m)
    both = np.kron(rows.matrices()[1][: rows.weights], columns.matrices()[1][: columns.weights])  # [weights, KH * KW]
    channels, taps = w.shape[1], w.shape[2] * w.shape[3]
    for panel in range(out.shape[0]):
        part = w[panel * PANEL : (panel + 1) * PANEL].astype(np.float64)
        width = part.shape[0]
        moved = np.ascontiguousarray(part.reshape(width, channels, taps).transpose(2, 1, 0)).reshape(taps, channels * width)
        out[panel, :, :, :width] = (both @ moved).reshape(-1, channels, width)
        out[panel, :, :, width:] = 0
