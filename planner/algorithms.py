"""By which algorithm a convolution is computed.

The choice shows in the last bits of results, so it rests on built-in figures alone: never on a calibration, never on the number of workers.
"""

from __future__ import annotations

from math import prod

from aspen_mp.planner import cost
from aspen_mp.planner.ir import Shape
from aspen_mp.planner.winograd import BLOCKS, PANEL, blocks_of

WORTH = 0.12
"""A larger block takes more memory and rounds more: it must gain at least this."""
WORTH_AT_ALL = 0.05
"""So must the smallest, beside the direct way."""
WEIGHTS_BYTES_PER_NS = 13.0
"""How fast weights come from memory into products of few blocks: a core has so many outstanding cache misses."""
LEAST_CHANNELS = 16
"""Below, a block's products are too short to pay for anything."""


def block_for(x: Shape, out: Shape, kernel: tuple[int, int] = (3, 3), strides: tuple[int, int] = (1, 1)) -> int:
    """The side of the blocks with which a convolution without groups and dilation is fastest, 0 where the direct way is.

    The transformed weights are larger, and read from memory once by every inference: where there are few pixels for each of them, memory
    decides. A core is thought to have its share of the memory's bandwidth, so the choice is good for any number of workers, as it must be
    the same for all.
    """
    channels, outputs = x[1], out[1]
    if strides[0] != strides[1] or channels < LEAST_CHANNELS or outputs < LEAST_CHANNELS:
        return 0
    padded = -(-outputs // PANEL) * PANEL
    elements, taps = prod(out), prod(kernel)
    direct = 2.0 * taps * elements / outputs * channels * padded / cost.FLOPS_PER_NS + 0.4 * elements
    best, least = 0, max(direct, _weights_ns(taps, channels, padded))
    for block in BLOCKS.get((kernel[0], kernel[1], strides[0]), ()):
        blocks = blocks_of(kernel, strides, block)
        arithmetic = cost.winograd_ns(blocks, cost.winograd_blocks(out, blocks), channels, outputs)
        ns = max(arithmetic, _weights_ns(blocks.weights, channels, padded))
        if ns < (1 - (WORTH if best else WORTH_AT_ALL)) * least:
            best, least = block, ns
    return best


def _weights_ns(planes: int, channels: int, outputs: int) -> float:
    return 4.0 * planes * channels * outputs / WEIGHTS_BYTES_PER_NS
