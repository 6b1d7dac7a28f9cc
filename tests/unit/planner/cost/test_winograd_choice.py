"""Which convolutions run in blocks, and of which side."""

from __future__ import annotations

import numpy as np
import pytest

from aspen_mp.planner.cost import op_cost, rates, tile_cost
from aspen_mp.planner.cost.algorithms import block_for
from aspen_mp.planner.layout.grids import split
from aspen_mp.planner.ops.packing import PANEL
from aspen_mp.planner.ops.packing.winograd import BLOCKS, blocks_of
from aspen_mp.planner.tiling import policy
from aspen_mp.workers import _kernels


@pytest.mark.parametrize(
    ("channels", "outputs", "size", "block"),
    [
        (3, 64, 224, 0),  # a first layer
        (64, 8, 56, 0),  # most of a panel would be zeros
        (128, 128, 112, 6),
        (256, 256, 14, 3),  # less to read than with 4, where many cores share the memory
        (512, 1024, 13, 3),
        (512, 512, 28, 4),
        (512, 512, 7, 2),  # as fast as memory gives the weights
        (2048, 2048, 1, 0),  # each weight is used once
    ],
)
def test_block(channels: int, outputs: int, size: int, block: int) -> None:
    assert block_for((1, channels, size, size), (1, outputs, size, size)) == block


@pytest.mark.parametrize(
    ("kernel", "stride", "channels", "outputs", "size", "block"),
    [
        ((3, 3), 2, 128, 128, 28, 4),
        ((3, 3), 2, 512, 512, 7, 0),  # memory gives no more weights than those of the direct way
        ((3, 3), 2, 3, 32, 112, 0),
        ((1, 7), 1, 160, 160, 17, 6),
        ((7, 1), 1, 192, 192, 17, 6),
        ((5, 5), 1, 48, 64, 35, 4),
        ((1, 3), 1, 384, 384, 8, 4),
        ((1, 1), 1, 256, 256, 14, 0),
        ((7, 7), 2, 64, 64, 112, 0),
    ],
)
def test_other_kernels(kernel: tuple[int, int], stride: int, channels: int, outputs: int, size: int, block: int) -> None:
    """Of an output of `size` x `size`."""
    assert block_for((1, channels, size * stride, size * stride), (1, outputs, size, size), kernel, (stride, stride)) == block


def test_more_pixels_allow_larger_blocks() -> None:
    """Where memory decides, a batch uses each weight more often."""
    sides = [block_for((n, 512, 7, 7), (n, 512, 7, 7)) for n in (1, 8, 64)]
    assert sides == sorted(sides)
    assert sides[-1] > sides[0]


@pytest.mark.parametrize("workers", [1, 2, 16])
@pytest.mark.parametrize("shape", [(1, 64, 56, 56), (1, 512, 14, 14), (8, 96, 13, 17), (1, 33, 3, 200), (1, 32, 1, 1)])
def test_tiles_cut_no_block(shape: tuple[int, ...], workers: int) -> None:
    for (rows, columns, stride), sides in BLOCKS.items():
        blocks = blocks_of((rows, columns), (stride, stride), sides[-1])
        parts = policy._winograd_parts(
            shape, tile_cost.Winograd(64, blocks, 0.0, shape, 64 * shape[0] * shape[2] * shape[3], workers), policy.Aim(workers, 0.5)
        )
        assert 1 <= parts[0] <= shape[0]
        assert 1 <= parts[3] <= -(-shape[1] // PANEL)
        cuts = split(shape[2], parts[1], blocks.sides[0]), split(shape[3], parts[2], policy._blocks_across(shape, blocks))
        for side, cut in zip(blocks.sides, cuts, strict=True):
            assert all(at % side == 0 for at in cut[:-1].tolist())


@pytest.mark.parametrize(("channels", "size", "chunks"), [(512, 14, 1), (256, 56, 4)])
def test_input_is_transformed_once_a_worker(channels: int, size: int, chunks: int) -> None:
    """By tiles of the same pixels, but for all chunks of a tile but one. Tiles that go on with other pixels find nothing."""

    def total(n: int, workers: int, rows: int = 1) -> float:
        shape = (1, channels, size, size)
        model = tile_cost.Winograd(channels, blocks_of((3, 3), (1, 1), 4), 0.0, shape, channels * size * size, workers)
        sides = [np.array([side]) for side in (1, size // rows, size, channels // n)]
        return n * rows * float(model(sides)[0])

    parts, workers = 8, 2
    once = (total(parts, parts) - total(parts, 1)) / (parts - 1) * chunks  # transform of the whole input
    assert once > 0
    found = (total(parts, parts) - total(parts, workers)) / once
    assert found == pytest.approx((parts - workers) / chunks, rel=0.01)
    if channels == 512:  # weights that no cache holds are read by tiles of the same channels, one after the other
        assert total(parts, 1, 2) == total(parts, parts, 2)


def test_what_transforming_input_takes_is_a_rate() -> None:
    """Of tiles that have to; one that finds all of it, in one chunk, takes what it takes."""

    def tile(transforms: float, workers: int) -> float:
        shape = (1, 512, 14, 14)
        model = tile_cost.Winograd(512, blocks_of((3, 3), (1, 1), 4), 0.0, shape, 512 * 14 * 14, workers)
        op_cost.use(rates.Rates(transforms=transforms))
        return float(model([np.array([side]) for side in (1, 14, 14, 32)])[0])

    try:
        one, two, three = (tile(rate, tile_cost.NOTHING_FOUND) for rate in (1.0, 2.0, 3.0))
        found = [tile(rate, tile_cost.ALL_FOUND) for rate in (1.0, 3.0)]
    finally:
        op_cost.use(rates.BUILT_IN)
    assert one < two < three
    assert three - two == pytest.approx(two - one)
    assert found[0] == found[1] < one


@pytest.mark.parametrize("kernel", BLOCKS, ids=str)
@pytest.mark.parametrize(("channels", "outputs"), [(3, 32), (64, 64), (130, 128), (256, 256), (512, 512), (1100, 64), (2048, 33)])
def test_chunks_are_the_kernel_s(kernel: tuple[int, int, int], channels: int, outputs: int) -> None:
    """As many blocks as scratch is made for: input and products of a chunk, its places and the next one's, lines to be fetched."""

    def lines(floats: int) -> int:
        return 4 * tile_cost.LINE * (-(-floats // tile_cost.LINE) | 1)

    rows, columns, stride = kernel
    for side in BLOCKS[kernel]:
        shape = (1, outputs, 40, 40)
        blocks = blocks_of((rows, columns), (stride, stride), side)
        chunk = tile_cost.Winograd(channels, blocks, 0.0, shape, channels * 1600, 1).chunk + 5  # what AVX2 may round up to
        row = lines(channels) // 4
        wanted = 128 + blocks.products * (lines(chunk * row) + lines(chunk * PANEL)) + 2 * chunk * 24 + 8 * (2 * 6144 + channels)
        x, out = np.zeros((1, channels, 40 * stride + rows, 40 * stride + columns), np.float32), np.zeros(shape, np.float32)
        u = np.zeros((1, 1, 1, 1), np.float32)
        p = [1, rows, columns, stride, stride, 1, 1, 0, 0, 0, 0.0, 0.0, 0, 0, 0, 0, side, 1, 1, 1, 0]
        assert _kernels.scratch("WINO", [out, x, u], p, [0] * 4, shape) == wanted


@pytest.mark.parametrize(("size", "most"), [(20, 2), (144, 3), (300, 6)])
def test_blocks_of_few_rows_where_inputs_arrive_by_rows(size: int, most: int) -> None:
    """A block waits for all of its rows."""
    shape = (1, 128, size, size)
    assert 0 < block_for(shape, shape, by_rows=True) <= most
    assert block_for(shape, shape) > 3
    flat = (1, 192, 17, 17)
    assert block_for(flat, flat, (1, 7), by_rows=True) == block_for(flat, flat, (1, 7))
