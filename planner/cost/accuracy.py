"""How much error an algorithm of fewer multiplications adds, and how much it may.

Errors are estimated against those of the direct way, for a layer's real weights. The *factor* of a layer is the root mean square of its
rounding error by an algorithm, over that of the direct sums. If no layer's factor is above a bound, neither is the network's. The effect of
a layer's error on the output depends on the layers behind it, which are the same. So a bound for the network is a bound for each layer
(`LEVELS`), whatever the network makes of small differences. Where direct sums alone come close to `LARGEST_ERROR`, the bound is tighter.

In the model of rounding every operation rounds by an independent relative error, and values have mean zero. Neighbouring pixels are more or
less alike; their correlation is called *likeness* here. Transforms amplify noise most. "strict" bounds the factor for noise, too, "default"
for inputs like activations. The factor depends on the weights alone: not on the machine, not on how the work is cut.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from math import prod, sqrt
from typing import Final

import numpy as np
import numpy.typing as npt

from aspen_mp.planner.ir.graph import Graph, Tensor
from aspen_mp.planner.job.options import Accuracy
from aspen_mp.planner.ops.packing.winograd import Axis, axes
from aspen_mp.shm.tables import NUMBERS

LEVELS: Final[dict[Accuracy, float]] = {"strict": 1.5, "default": 4.0, "fast": float("inf")}
"""The largest factor of a layer."""
LARGEST_ERROR = 5e-5
"""The error that "default" aims to stay below, as a share of a network's largest output."""
LIKENESS: Final[dict[Accuracy, tuple[float, ...]]] = {"strict": (0.0, 0.5, 0.9), "default": (0.5, 0.9), "fast": ()}
"""The likeness of inputs for which a level bounds the factor: noise, activations, smooth pictures. The worst of them counts."""
STRASSEN = 1.75
"""The factor of Strassen's seven products: in two of four quadrants the terms of an element have three times the variance."""
PART = NUMBERS["WINO_PART"]
"""Terms of a product that WINO sums at a time."""
ROUNDING = 0.42 * 2.0**-24
"""Root mean square of the relative error of one rounding to f32: uniform within half a unit, mantissas logarithmic."""
MARGIN: Final = 1.2
"""How far a layer's factor typically is above its estimate where inputs have a mean, as behind a Relu, which the estimate leaves out."""
MOST_ROWS = 64
"""Output channels of a layer that the estimate looks at, evenly spread."""

Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """The weights of a convolution, [OC, C, KH, KW] or [OC, C, KD, KH, KW], as the estimate needs them. `gram` [taps, taps] is the mean
    over output channels of the sum of w w' over channels and planes; `channels` counts these."""

    gram: Matrix
    channels: int
    kernel: tuple[int, int]


def layer_of(w: npt.NDArray[np.float32]) -> Layer:
    """Return the layer of these weights. Where those are not finite or all zero, as if they were noise."""
    rows = w[:: -(-w.shape[0] // MOST_ROWS)]
    taps = w.shape[-2] * w.shape[-1]
    flat = rows.reshape(-1, taps).astype(np.float64)
    gram = flat.T @ flat / rows.shape[0]
    if not (np.isfinite(gram).all() and np.trace(gram) > 0):
        gram = np.eye(taps)
    return Layer(gram / np.trace(gram), prod(w.shape[1:-2]), (w.shape[-2], w.shape[-1]))


@dataclass(frozen=True, slots=True)
class Budget:
    """The error that the layers of a network may add: `most` bounds their factors for inputs of each `likeness`."""

    most: float
    likeness: tuple[float, ...]

    def allows(self, layer: Layer, strides: tuple[int, int], block: int) -> bool:
        """Whether a convolution may run in blocks of `block` by Winograd's algorithm."""
        return all(MARGIN * block_factor(layer, strides, block, likeness) <= self.most for likeness in self.likeness)

    @property
    def allows_strassen(self) -> bool:
        """Whether products may be computed by Strassen's algorithm."""
        return self.most >= STRASSEN


UNLIMITED = Budget(LEVELS["fast"], LIKENESS["fast"])


@lru_cache(maxsize=4096)
def block_factor(layer: Layer, strides: tuple[int, int], block: int, likeness: float = 0.0) -> float:
    """The factor of a convolution in blocks by Winograd's algorithm, for inputs of this likeness."""
    rows, columns = axes(layer.kernel, strides, block)
    g = np.kron(rows.matrices()[1], columns.matrices()[1])
    weights = np.einsum("ik,kl,il->i", g, layer.gram, g)  # of each product, squared
    back = np.outer(_back(rows), _back(columns)).reshape(-1)  # how a product's error reaches an output, on average
    terms = layer.channels
    sums = (min(terms, PART) + -(-terms // PART)) / 2 + (rows.side + columns.side) / 2 + 1
    (energy_r, noise_r), (energy_c, noise_c) = _forth(rows, likeness), _forth(columns, likeness)
    energy = np.outer(energy_r, energy_c).reshape(-1)
    rounded = (np.outer(noise_r, (columns.matrices()[2] ** 2).sum(0)) + np.outer(energy_r, noise_c)).reshape(-1)
    return sqrt(float((back * weights * (sums * energy + rounded)).sum()) / _direct(layer, likeness))


def direct_error(terms: int) -> float:
    """The relative error of a direct sum of `terms` terms, root mean square: each of its partial sums is rounded."""
    return ROUNDING * sqrt(terms / 2)


def bound(level: Accuracy, terms: Iterable[int]) -> float:
    """The largest factor that a layer of a network may have. `terms`: of the sums of its layers, all of them. Their direct errors add up
    like noise; where four times that would be beyond `LARGEST_ERROR` the bound is lower, but not below that of "strict"."""
    if level != "default":
        return LEVELS[level]
    error = sqrt(sum(direct_error(t) ** 2 for t in terms))
    return max(LEVELS["strict"], min(LEVELS["default"], LARGEST_ERROR / max(error, ROUNDING)))


def budget_of(graph: Graph, level: Accuracy) -> Budget:
    """The budget of the layers of an ONNX-level graph."""
    most = bound(level, (t for node in graph.nodes if (t := _terms(node.op, node.inputs))))
    return Budget(most, LIKENESS[level])


def _terms(op: str, inputs: list[Tensor | None]) -> int:
    """Terms of an output element, where it is a sum of products with constant weights; else 0."""
    w = inputs[1] if len(inputs) > 1 else None
    if w is None or not w.is_const:
        return 0
    if op == "Conv":
        return prod(w.shape[1:])
    return w.shape[-2] if op in {"MatMul", "Gemm"} and len(w.shape) > 1 else 0


def _direct(layer: Layer, likeness: float) -> float:
    """Variance of the direct way's error: of every partial sum, tap by tap."""
    likely = (1 - likeness) * np.eye(len(layer.gram)) + likeness
    partial = np.cumsum(np.cumsum(layer.gram * likely, 0), 1).diagonal()
    return float(layer.channels * partial.sum() - layer.channels * partial[-1] / 2)


@lru_cache
def _forth(axis: Axis, likeness: float) -> tuple[Matrix, Matrix]:
    """For each product of an axis, the mean square of the input transformed, and the variance that rounding adds to it."""
    b = axis.matrices()[2]
    likely = (1 - likeness) * np.eye(axis.side) + likeness
    energy = np.einsum("ki,kl,li->i", b, likely, b)
    noise = np.zeros(axis.side)
    for i in range(axis.side):
        used = np.flatnonzero(b[:, i])[::-1]  # the kernel adds from the highest power down
        for count in range(2, len(used) + 1):
            some = used[:count]
            noise[i] += b[some, i] @ likely[np.ix_(some, some)] @ b[some, i]
    return np.maximum(energy, 0.0), noise


@lru_cache
def _back(axis: Axis) -> Matrix:
    """For each product of an axis, the mean over the outputs of a block of its squared coefficient."""
    squares: Matrix = (axis.matrices()[0] ** 2).mean(1)
    return squares
