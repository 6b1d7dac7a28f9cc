"""Winograd's minimal filtering F(m x m, 3 x 3): transformed weights, and which convolutions gain by it.

The transform of the weights belongs to the points of interpolation that ``workers/kernels/winograd.c`` has built into its transforms of
input and output; both follow from the same construction (Toom-Cook with a point at infinity).
"""

from __future__ import annotations

from functools import lru_cache
from math import prod

import numpy as np
import numpy.typing as npt

from aspen_mp.planner import cost
from aspen_mp.planner.ir import Shape

PANEL = 32
POINTS = {2: (0.0, 1.0, -1.0), 4: (0.0, 0.625, -0.625, 1.5, -1.5), 6: (0.0, 0.5, -0.5, 1.0, -1.0, 2.0, -2.0)}
"""Finite points of interpolation for each block side m."""

WORTH = 0.12
"""A larger block takes more memory and rounds more: it must gain at least this."""
LEAST_CHANNELS = 16
"""Below, a block's products are too short to pay for anything."""

Matrix = npt.NDArray[np.float64]


@lru_cache
def matrices(m: int) -> tuple[Matrix, Matrix, Matrix]:
    """A [n, m], G [n, 3], B [n, n] for blocks of m outputs, n = m + 2: ``y = A' ((G w) * (B' d))`` is the correlation of d (n values) with
    w (3 values). Multiplying out the products of Lagrange interpolation at `POINTS`; the last row belongs to infinity."""
    points = POINTS[m]
    n = m + 2
    a, g, b = np.zeros((n, m)), np.zeros((n, 3)), np.zeros((n, n))
    for i, p in enumerate(points):
        others = [q for q in points if q != p]
        a[i] = [p**k for k in range(m)]
        g[i] = np.array([p**k for k in range(3)]) / prod(p - q for q in others)
        b[: n - 1, i] = np.poly(others)[::-1]
    a[-1, -1] = g[-1, -1] = 1.0
    b[:, -1] = np.poly(points)[::-1]
    return a, g, b


def block_for(x: Shape, out: Shape) -> int:
    """The side of the blocks with which a 3 x 3 convolution of stride 1 is fastest, 0 where the direct way is.

    The transformed weights are larger, and read from memory once by every inference: where there are few pixels for each of them, memory
    decides. A core is thought to have its share of the memory's bandwidth, so the choice is good for any number of workers, as it must be
    the same for all.
    """
    channels, outputs = x[1], out[1]
    if channels < LEAST_CHANNELS or outputs < LEAST_CHANNELS:
        return 0
    padded = -(-outputs // PANEL) * PANEL
    elements = prod(out)
    direct = 18.0 * elements / outputs * channels * padded / cost.FLOPS_PER_NS + 0.4 * elements
    best, least = 0, max(direct, _weights_ns(9, channels, padded))
    for block in sorted(POINTS):
        arithmetic = cost.winograd_ns(block, cost.winograd_blocks(out, block), channels, outputs)
        ns = max(arithmetic, _weights_ns((block + 2) ** 2, channels, padded))
        if ns < (1 - WORTH * (best > 0)) * least:
            best, least = block, ns
    return best


def _weights_ns(planes: int, channels: int, outputs: int) -> float:
    return 4.0 * planes * channels * outputs / cost.COLD_BYTES_PER_NS


def packed_shape(w: Shape, m: int) -> Shape:
    """Of the transformed weights of [OC, C, 3, 3]: [ceil(OC / 32), n * n, C, 32]."""
    return -(-w[0] // PANEL), (m + 2) ** 2, w[1], PANEL


def pack(m: int, w: npt.NDArray[np.float32], out: npt.NDArray[np.float32]) -> None:
    """Writes the transformed weights of `w` [OC, C, 3, 3] into `out` (see `packed_shape`), zero-padded. Computed in float64, a panel at a
    time, and rounded once."""
    g = matrices(m)[1]
    both = np.kron(g, g)  # [n * n, 9]
    channels = w.shape[1]
    for panel in range(out.shape[0]):
        part = w[panel * PANEL : (panel + 1) * PANEL].astype(np.float64)
        width = part.shape[0]
        moved = np.ascontiguousarray(part.reshape(width, channels, 9).transpose(2, 1, 0)).reshape(9, channels * width)
        out[panel, :, :, :width] = (both @ moved).reshape(-1, channels, width)
        out[panel, :, :, width:] = 0
