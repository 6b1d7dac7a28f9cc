"""Which convolutions run in blocks, and of which side."""

from __future__ import annotations

import pytest

from aspen_mp.planner import policy, winograd
from aspen_mp.planner.cost import PANEL


@pytest.mark.parametrize(
    ("channels", "outputs", "size", "block"),
    [
        (3, 64, 224, 0),  # a first layer
        (64, 8, 56, 0),  # most of a panel would be zeros
        (128, 128, 112, 6),
        (256, 256, 14, 4),
        (512, 512, 28, 4),
        (512, 512, 7, 2),  # as fast as memory gives the weights
        (2048, 2048, 1, 0),  # each weight is used once
    ],
)
def test_block(channels: int, outputs: int, size: int, block: int) -> None:
    assert winograd.block_for((1, channels, size, size), (1, outputs, size, size)) == block


def test_more_pixels_allow_larger_blocks() -> None:
    """Where memory decides, a batch uses each weight more often."""
    sides = [winograd.block_for((n, 512, 7, 7), (n, 512, 7, 7)) for n in (1, 8, 64)]
    assert sides == sorted(sides)
    assert sides[-1] > sides[0]


@pytest.mark.parametrize("workers", [1, 2, 16])
@pytest.mark.parametrize("shape", [(1, 64, 56, 56), (1, 512, 14, 14), (8, 96, 13, 17), (1, 33, 3, 200), (1, 32, 1, 1)])
def test_tiles_cut_no_block(shape: tuple[int, ...], workers: int) -> None:
    for block in winograd.POINTS:
        evaluate = policy._Winograd(64, block, 0.0)
        parts = policy._winograd_parts(shape, evaluate, workers)
        assert 1 <= parts[0] <= shape[0]
        assert 1 <= parts[3] <= -(-shape[1] // PANEL)
        rows = policy.split(shape[2], parts[1], block)
        assert all(cut % block == 0 for cut in rows[:-1].tolist())
