"""Choose the algorithm of a convolution or of a matrix product.

The choice shows in the last bits of results. So it rests on built-in figures alone, never on a calibration or the number of workers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import NamedTuple

from aspen_mp.planner.cost import op_cost
from aspen_mp.planner.ir.graph import Shape
from aspen_mp.planner.job import reasons
from aspen_mp.planner.job.options import Vectors
from aspen_mp.planner.job.reasons import Reason, Tried
from aspen_mp.planner.ops.convolutions import winograd_blocks
from aspen_mp.planner.ops.packing import PANEL
from aspen_mp.planner.ops.packing.winograd import BLOCKS, blocks_of

WORTH = 0.12
"""A larger block takes more memory and rounds more: it must gain at least this."""
WORTH_AT_ALL = 0.05
"""So must the smallest, beside the direct way."""
WEIGHTS_BYTES_PER_NS = 13.0
"""How fast weights come from memory into products of few blocks: a core has a limited number of outstanding cache misses."""
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


BLOCK_ROWS, LEAST_BLOCK = 48, 2
"""Where inputs arrive by rows: the least number of blocks that rows of an image make, and blocks that are small enough in any case."""
ANY_BLOCK = 1 << 30


def block_for(
    x: Shape,
    out: Shape,
    kernel: tuple[int, int] = (3, 3),
    strides: tuple[int, int] = (1, 1),
    bf16: bool = False,
    allowed: Callable[[int], bool] = lambda block: True,
    *,
    by_rows: bool = False,
) -> int:
    """The side of the blocks with which a convolution without groups and dilation is fastest, 0 where the direct way is. `bf16`: that way
    may multiply pairs of bf16. `allowed`: which blocks are accurate enough (`planner.cost.accuracy`); it is asked for faster ones only.
    `by_rows`: inputs arrive by rows. A block waits for all of its rows, so blocks are small.

    The transformed weights are larger, and read from memory once by every inference: where there are few pixels for each of them, memory
    decides. A core is taken to have its share of the memory's bandwidth. So the choice is good for any number of workers, and it must be
    the same for all.
    """
    found = _blocks(x, out, kernel, strides, bf16, allowed, max(LEAST_BLOCK, out[2] // BLOCK_ROWS) if by_rows else ANY_BLOCK)
    reasons.tell(found.reason)
    return found.block


@dataclass(slots=True)
class _Blocks:
    """The `block` of least time, 0 for the direct way; its `ns`; and the others that were `tried`."""

    block: int
    ns: float
    tried: list[Tried]

    def reason(self) -> Reason:
        rule = "least time" if self.tried else "no blocks for this window and these strides"
        return Reason("algorithm", _named(self.block), rule, self.ns * 1e-6, "one core", tuple(self.tried))


def _named(block: int) -> str:
    return f"Winograd in blocks of {block}×{block}" if block else "direct sums"


def _blocks(
    x: Shape,
    out: Shape,
    kernel: tuple[int, int],
    strides: tuple[int, int],
    bf16: bool,
    allowed: Callable[[int], bool],
    most: int = ANY_BLOCK,
) -> _Blocks:
    """`most`: rows of a block."""
    channels, outputs = x[1], out[1]
    found = _Blocks(0, _direct_ns(channels, out, prod(kernel), bf16 and not bf16_refused(channels, out[1], prod(kernel), strides)), [])
    if strides[0] != strides[1] or channels < LEAST_CHANNELS or outputs < LEAST_OUTPUTS:
        few = f"{channels} channels in, {outputs} out; it needs {LEAST_CHANNELS} and {LEAST_OUTPUTS}"
        found.tried.append(Tried("Winograd", "strides differ" if strides[0] != strides[1] else few))
        return found
    for block in BLOCKS.get((kernel[0], kernel[1], strides[0]), ()):
        ns, worth = _block_ns(channels, out, kernel, strides, block), WORTH if found.block else WORTH_AT_ALL
        if ns >= (1 - worth) * found.ns:
            found.tried.append(Tried(_named(block), f"it gains less than {worth:.0%}", ns * 1e-6))
        elif blocks_of(kernel, strides, block).sides[0] > most:
            found.tried.append(Tried(_named(block), "rows arrive one by one, and a block waits for all of its own", ns * 1e-6))
        elif not allowed(block):
            found.tried.append(Tried(_named(block), "its rounding error is beyond the accuracy asked for", ns * 1e-6))
        else:
            found.tried.append(Tried(_named(found.block), "it takes longer", found.ns * 1e-6))
            found.block, found.ns = block, ns
    return found


@dataclass(frozen=True, slots=True)
class Phases:
    """A convolution of stride 2 as one of stride 1 over the four phases of its input: even and odd rows and columns. Each phase is a
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
    fitting = partial(_allowed_phases, allowed, before, folded, inner)
    block = _blocks((x[0], channels, x[2], x[3]), out, folded, (1, 1), False, fitting).block
    if not block:
        return None
    moves = 1 + (x[2] % 2 or x[3] % 2)
    direct, there = _image_ns(x[1], out, prod(kernel)), _block_ns(channels, out, folded, (1, 1), block) + PHASE_NS * moves * prod(x)
    worth = there <= (1 - WORTH_AT_ALL) * direct
    reasons.tell(partial(_of_phases, worth, block, direct * 1e-6, there * 1e-6))
    return Phases(before, folded, inner, block) if worth else None


def _allowed_phases(
    allowed: Callable[[Phases], bool], before: tuple[int, int], kernel: tuple[int, int], pads: tuple[int, int], block: int
) -> bool:
    return allowed(Phases(before, kernel, pads, block))


def _of_phases(worth: bool, block: int, direct: float, there: float) -> Reason:
    phases = f"{_named(block)} over phases of the image"
    if worth:
        return Reason("algorithm", phases, "least time", there, "one core", (Tried(_named(0), "it takes longer", direct),))
    tried = (Tried(phases, f"it gains less than {WORTH_AT_ALL:.0%}", there),)
    return Reason("algorithm", _named(0), "least time", direct, "one core", tried)


BF16_FLOPS_PER_NS = 190.0
"""Multiply-adds of rounded factors, the direct way."""
BF16_LEAST_CHANNELS = 16
"""Channels below which rounding an image takes longer than products of pairs gain."""
BF16_LEAST_PRODUCTS, BF16_LEAST_STRIDED = 512, 768
"""Multiply-adds for a pixel or row of output, below which the same holds; with strides, which leave pixels to round one by one."""
BF16_LEAST_COLUMNS = 9
"""Columns of a product of matrices below which f32 has rows in its vectors (`workers/kernels/gemm/narrow.h`)."""
MOST_STACKED = BF16_LEAST_CHANNELS - 1
"""Channels up to which a convolution of single pixels and the depthwise one behind it are one kernel (`passes.stacks`). Apart, it
multiplies pairs of bf16, and what lies between is stored as bf16."""


def bf16_refused(channels: int, outputs: int, taps: int = 1, strides: tuple[int, int] = (1, 1)) -> str:
    """Why a convolution whose factors may be rounded to bf16 does not multiply pairs of them, where it is computed the direct way; "": it
    does. It depends on weights and strides alone: plans for several sizes of a model choose alike."""
    if channels < BF16_LEAST_CHANNELS:
        return f"{channels} channels; it needs {BF16_LEAST_CHANNELS}"
    return _few_products(channels * taps, outputs, BF16_LEAST_PRODUCTS if strides == (1, 1) else BF16_LEAST_STRIDED)


def bf16_product_refused(terms: int, columns: int) -> str:
    """The same of a product of matrices."""
    if columns < BF16_LEAST_COLUMNS:
        return f"{columns} columns; it needs {BF16_LEAST_COLUMNS}"
    return _few_products(terms, columns, BF16_LEAST_STRIDED)


def _few_products(terms: int, columns: int, least: int) -> str:
    filled = terms * -(-columns // (PANEL // 2)) * (PANEL // 2)
    return f"{filled} multiply-adds for a pixel or row; it needs {least}" if filled < least else ""


class Least(NamedTuple):
    """The least sizes of a product for which Strassen's seven products of halves are faster than eight. Rows share the making of right
    factors, from weights that come from memory. Terms have to pay for the work before and after them. Columns share the making of left
    factors."""

    rows: int
    depth: int
    columns: int


STRASSEN: dict[Vectors, Least] = {"short": Least(64, 768, 768), "halved": Least(48, 512, 512), "whole": Least(64, 768, 768)}
"""Keys are the vectors of a core. Short and whole ones were measured on Zen 5, halved ones on Zen 4."""


def strassen_refused(rows: int, depth: int, columns: int, vectors: Vectors) -> str:
    """Why a product of constant weights is not computed by Strassen's algorithm, one level deep, in 7/8 of the multiplications; "": it is.
    More levels would take more time for sums than they save."""
    least = STRASSEN.get(vectors)
    if least is None:
        return "it gains nothing with this machine's vectors"
    for what, value, bound in (("rows", rows, least.rows), ("terms", depth, least.depth), ("columns", columns, least.columns)):
        if value < bound:
            return f"{value} {what}; it needs {bound}"
    return "an odd number of terms" if depth % 2 else ""


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
