"""By which algorithm a convolution or a matrix product is computed.

The choice shows in the last bits of results, so it rests on built-in figures alone: never on a calibration, never on the number of workers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from aspen_mp.planner.cost import op_cost
from aspen_mp.planner.ir.graph import Shape
from aspen_mp.planner.job.options import Vectors
from aspen_mp.planner.ops.convolutions import winograd_blocks
from aspen_mp.planner.ops.packing import PANEL
from aspen_mp.planner.ops.packing.winograd import BLOCKS, blocks_of

WORTH = 0.12
"""A larger block takes more memory and rounds more: it must gain at least this."""
WORTH_AT_ALL = 0.05
"""So must the smallest, beside the direct way."""
WEIGHTS_BYTES_PER_NS = 13.0
"""How fast weights come from memory into products of few blocks: a core has so many outstanding cache misses."""
LEAST_CHANNELS = 12
"""Below, a block's products are too short to pay for anything."""
LEAST_OUTPUTS = 16
"""Below, most of a panel is empty."""
PHASE_NS = 0.6
"""An element of an image, moved to its phase; as much again where a row or column must be added first."""
IMAGE_FLOPS_PER_NS = 105.0
"""Multiply-adds of an image of few channels, the direct way: it is copied together first."""
IMAGE_OUT_NS = 0.05
"""An element of its output besides."""


def block_for(
    x: Shape,
    out: Shape,
    kernel: tuple[int, int] = (3, 3),
    strides: tuple[int, int] = (1, 1),
    bf16: bool = False,
    allowed: Callable[[int], bool] = lambda block: True,
) -> int:
    """The side of the blocks with which a convolution without groups and dilation is fastest, 0 where the direct way is. `bf16`: that way
    may multiply pairs of bf16. `allowed`: which blocks are accurate enough (`planner.accuracy`); it is asked for faster ones only.

    The transformed weights are larger, and read from memory once by every inference: where there are few pixels for each of them, memory
    decides. A core is thought to have its share of the memory's bandwidth, so the choice is good for any number of workers, as it must be
    the same for all.
    """
    channels, outputs = x[1], out[1]
    if strides[0] != strides[1] or channels < LEAST_CHANNELS or outputs < LEAST_OUTPUTS:
        return 0
    best, least = 0, _direct_ns(channels, out, prod(kernel), bf16 and bf16_pays(channels))
    for block in BLOCKS.get((kernel[0], kernel[1], strides[0]), ()):
        ns = _block_ns(channels, out, kernel, strides, block)
        if ns < (1 - (WORTH if best else WORTH_AT_ALL)) * least and allowed(block):
            best, least = block, ns
    return best


@dataclass(frozen=True, slots=True)
class Phases:
    """A convolution of stride 2 as one of stride 1 over the four phases of its input (even and odd rows and columns), each of which is a
    channel of its own. ``before``: zeros in front of the first row and column of weights, ``kernel`` and ``pads`` of the convolution over
    phases, ``block``: of its Winograd."""

    before: tuple[int, int]
    kernel: tuple[int, int]
    pads: tuple[int, int]
    block: int


def phases_for(
    x: Shape,
    out: Shape,
    kernel: tuple[int, int],
    strides: tuple[int, int],
    pads: tuple[int, int],
    allowed: Callable[[Phases], bool] = lambda phases: True,
) -> Phases | None:
    """The phases of a convolution of a few channels without groups and dilation, if that is faster than the direct way. With many channels
    blocks of stride 2 need nothing moved. `allowed`: whether they are accurate enough."""
    if strides != (2, 2) or x[1] >= LEAST_CHANNELS or out[1] < LEAST_OUTPUTS:
        return None
    before = (pads[0] % 2, pads[1] % 2)
    folded = ((kernel[0] + before[0] + 1) // 2, (kernel[1] + before[1] + 1) // 2)
    channels = 4 * x[1]
    inner = ((pads[0] + before[0]) // 2, (pads[1] + before[1]) // 2)
    block = block_for((x[0], channels, x[2], x[3]), out, folded, allowed=lambda side: allowed(Phases(before, folded, inner, side)))
    if not block:
        return None
    moves = 1 + (x[2] % 2 or x[3] % 2)
    there = _block_ns(channels, out, folded, (1, 1), block) + PHASE_NS * moves * prod(x)
    if there > (1 - WORTH_AT_ALL) * _image_ns(x[1], out, prod(kernel)):
        return None
    return Phases(before, folded, inner, block)


BF16_FLOPS_PER_NS = 190.0
"""Multiply-adds of rounded factors, the direct way."""
BF16_LEAST_CHANNELS = 16
"""Channels below which rounding an image takes longer than products of pairs gain."""


MOST_STACKED = 16
"""Channels up to which a convolution of single pixels and the depthwise one behind it are one kernel (`passes.stacks`), although it would
multiply pairs apart from it."""


def bf16_pays(channels: int) -> bool:
    """Whether a convolution whose factors may be rounded to bf16 multiplies pairs of them, where it is computed the direct way."""
    return channels >= BF16_LEAST_CHANNELS


class Least(NamedTuple):
    """What a product has at least for which Strassen's seven products of halves are faster than eight: rows, which share the making of
    right factors, from weights that come from memory; terms, too few of which do not pay for what comes before and after them; columns,
    which share that of left factors."""

    rows: int
    depth: int
    columns: int


STRASSEN: dict[Vectors, Least] = {"short": Least(64, 768, 768), "halved": Least(48, 512, 512), "whole": Least(64, 768, 768)}
"""By what vectors a core multiplies; as measured, with short and whole ones on Zen 5, with halved ones on Zen 4."""


def strassen_pays(rows: int, depth: int, columns: int, vectors: Vectors) -> bool:
    """Whether a product of constant weights is computed by Strassen's algorithm, one level deep: in 7/8 of the multiplications. More
    levels would take more time for sums than they save."""
    least = STRASSEN.get(vectors)
    return least is not None and rows >= least.rows and depth >= least.depth and depth % 2 == 0 and columns >= least.columns


def _products(channels: int, out: Shape, taps: int) -> float:
    """Operations of the direct way, with those of the columns that fill up the last panel."""
    return 2.0 * taps * prod(out) / out[1] * channels * -(-out[1] // PANEL) * PANEL


def _direct_ns(channels: int, out: Shape, taps: int, bf16: bool = False) -> float:
    arithmetic = _products(channels, out, taps) / (BF16_FLOPS_PER_NS if bf16 else op_cost.FLOPS_PER_NS) + 0.4 * prod(out)
    return max(arithmetic, _weights_ns(taps, channels, -(-out[1] // PANEL) * PANEL) / (2 if bf16 else 1))


def _image_ns(channels: int, out: Shape, taps: int) -> float:
    """The same for few channels."""
    return _products(channels, out, taps) / IMAGE_FLOPS_PER_NS + IMAGE_OUT_NS * prod(out)


def _block_ns(channels: int, out: Shape, kernel: tuple[int, int], strides: tuple[int, int], block: int) -> float:
    blocks = blocks_of(kernel, strides, block)
    arithmetic = float(op_cost.winograd_ns(blocks, winograd_blocks(out, blocks), channels, out[1]))
    return max(arithmetic, _weights_ns(blocks.weights, channels, -(-out[1] // PANEL) * PANEL))


def _weights_ns(planes: int, channels: int, outputs: int) -> float:
    return 4.0 * planes * channels * outputs / WEIGHTS_BYTES_PER_NS
