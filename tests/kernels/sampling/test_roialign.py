"""ROIALIGN on every ISA against points that are read one by one in float64, at coordinates in single precision; regions that are
turned round, outside, endless, or no numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kernel_tools import ISAS, check_tiles, filled, layout, run

from aspen_mp.planner.ops.sampling import ROI_MODES, roi_scratch
from aspen_mp.workers import _kernels

F = np.float32
Array = np.ndarray


def points(start: Array, size: Array, cell: int, cells: int, ratio: int) -> list[Array]:
    """Where the points of a cell lie along an axis, in single precision."""
    width = size / F(cells)
    count = ratio if ratio else int(np.ceil(width))
    return [start + F(cell) * width + (F(k) + F(0.5)) * width / F(count) for k in range(count)]


def around(at: Array, extent: int) -> list[tuple[int, float]] | None:
    """The two pixels of a point and their weights; None outside."""
    if not -1 <= at <= extent:
        return None
    at = max(at, F(0))
    low = int(at)
    if low >= extent - 1:
        return [(extent - 1, 1.0), (extent - 1, 0.0)]
    part = float(at - F(low))
    return [(low, 1 - part), (low + 1, part)]


def reference(x: Array, rois: Array, batches: Array, shape: tuple[int, int], mode: str, ratio: int, scale: float, half: bool) -> Array:
    out = np.zeros((len(rois), x.shape[1], *shape))
    for r, (roi, batch) in enumerate(zip(rois, batches, strict=True)):
        ends = roi * F(scale) - F(0.5 if half else 0)
        starts, sizes = ends[[1, 0]], ends[[3, 2]] - ends[[1, 0]]
        sizes = sizes if half else np.maximum(sizes, F(1))
        for i, j in np.ndindex(shape):
            rows, columns = (points(starts[a], sizes[a], (i, j)[a], shape[a], ratio) for a in (0, 1))
            seen = []
            for row in rows:
                for column in columns:
                    down, across = around(row, x.shape[2]), around(column, x.shape[3])
                    if down is None or across is None:
                        seen.append([np.zeros(x.shape[1])])
                    else:
                        image = x[batch].astype(np.float64)
                        seen.append([image[:, a, b] * v * w for a, v in down for b, w in across])
            if seen:
                best = [np.max(four, 0) for four in seen]
                out[r, :, i, j] = np.max(best, 0) if mode == "max" else np.mean([np.sum(four, 0) for four in seen], 0)
    return out


def images(rng: np.random.Generator, x: Array, shape: tuple[int, ...], order: str) -> tuple[Array, Array]:
    """Input and output in some order."""
    if order == "any":
        return filled(rng, x), layout(rng, shape)
    source = np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    if order == "channels last":
        return source, np.empty((shape[0], *shape[2:], shape[1]), F).transpose(0, 3, 1, 2)
    return source if order == "to rows" else x, np.empty(shape, F)


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    image=st.sampled_from([(1, 1), (5, 7), (1, 9), (12, 10)]),
    channels=st.sampled_from([1, 3, 16, 33, 64, 100]),
    shape=st.sampled_from([(1, 1), (2, 3), (7, 7), (1, 20)]),
    mode=st.sampled_from(sorted(ROI_MODES)),
    ratio=st.sampled_from([0, 0, 1, 2, 3]),
    half=st.booleans(),
    order=st.sampled_from(["any", "channels last", "to rows", "rows"]),
    reach=st.sampled_from([1.0, 1.6]),
)
@example(seed=869, image=(5, 7), channels=1, shape=(1, 1), mode="avg", ratio=3, half=True, order="any", reach=1.0)  # goes backwards
def test_roialign(isa, seed, image, channels, shape, mode, ratio, half, order, reach):
    rng = np.random.default_rng(seed)
    batch, count = int(rng.integers(1, 3)), int(rng.integers(1, 5))
    x = rng.standard_normal((batch, channels, *image)).astype(F)
    # Halves are among the coordinates; every other region has its ends in any order.
    rois = np.round(rng.uniform(-0.5 * reach, 1.2 * reach, (count, 4)) * np.tile(image[::-1], 2) * 4) / 2
    rois[::2] = np.concatenate([np.minimum(rois[::2, :2], rois[::2, 2:]), np.maximum(rois[::2, :2], rois[::2, 2:])], 1)
    rois = rois.astype(F)
    batches = rng.integers(0, batch, count)
    wanted = reference(x, rois, batches, shape, mode, ratio, 0.5, half)
    source, out = images(rng, x, wanted.shape, order)
    operands = [source, filled(rng, rois), filled(rng, batches)]
    params = [ROI_MODES[mode], ratio, 0.5, int(half)]
    assert _kernels.scratch("ROIALIGN", [out, *operands], params, [0] * 4, out.shape) <= roi_scratch(out.shape, x.shape, mode, ratio)
    result = run("ROIALIGN", out, operands, params, isa=isa)
    assert (np.abs(result - wanted) <= 1e-5 * max(np.abs(x).max(), 1)).all()
    check_tiles(rng, result, "ROIALIGN", out, operands, params, isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("mode", sorted(ROI_MODES))
@pytest.mark.parametrize("ratio", [0, 2])
def test_regions_that_are_none(isa, mode, ratio):
    """No numbers, infinite ones, and as large as they get: nothing outside the image is read, and nothing takes for ever."""
    x = np.ones((1, 8, 6, 5), F)
    big = float(np.finfo(F).max)
    rois = np.array([[np.nan] * 4, [0, 0, np.inf, np.inf], [-big, -big, big, big], [0, 0, 1e30, 3], [-np.inf, 0, 2, 2], [1e9] * 4], F)
    out = np.empty((len(rois), 8, 3, 2), F)
    params = [ROI_MODES[mode], ratio, 1.0, 1]
    result = run("ROIALIGN", out, [x, rois, np.zeros(len(rois), np.int64)], params, isa=isa)
    assert np.isfinite(result).all()
    assert (result >= 0).all()
    assert (result <= 1).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("batch", [-1, 2, 2**62])
def test_an_image_that_is_not_there(isa, batch):
    x, rois, out = np.ones((2, 3, 4, 4), F), np.zeros((2, 4), F), np.empty((2, 3, 2, 2), F)
    assert _kernels.call("ROIALIGN", [out, x, rois, np.array([0, batch])], [0, 2, 1.0, 1], [0] * 4, out.shape, isa) == 1
