"""GRIDSAMPLE on every ISA against sums over weighted pixels in float64. Coordinates are in single precision, as the kernel has
them: where one rounding decides which pixel is the nearest, results are those of others."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_tools import ISAS, check_tiles, filled, layout, run

from aspen_mp.planner.ops.sampling import GRID_MODES, GRID_PADDINGS

F = np.float32
Array = np.ndarray


def reflected(at: Array, extent: int, align: bool) -> Array:
    low, high = (0.0, extent - 1.0) if align else (-0.5, extent - 0.5)
    if high <= low:
        return np.zeros_like(at)
    turns, rest = np.divmod(np.abs(at - low), high - low)
    return np.clip(np.where(turns % 2 == 0, rest + low, high - rest), 0, extent - 1)


def bounded(at: Array, extent: int, padding: str, align: bool) -> Array:
    if padding == "border":
        return np.clip(at, 0, extent - 1)
    return reflected(at, extent, align) if padding == "reflection" else at


def cubic(d: Array) -> Array:
    a, d = -0.75, np.abs(d)
    return np.where(d <= 1, ((a + 2) * d - (a + 3)) * d * d + 1, ((a * d - 5 * a) * d + 8 * a) * d - 4 * a)


def taps(points: Array, extent: int, mode: str, padding: str, align: bool) -> list[tuple[Array, Array]]:
    """Pixels (clipped to the image) and weights (zero outside of it) of one axis."""
    n = F(extent)
    with np.errstate(invalid="ignore"):
        at = ((points + F(1)) / F(2) * (n - F(1)) if align else ((points + F(1)) * n - F(1)) / F(2)).astype(np.float64)
    at = np.nan_to_num(at, nan=-9.0, posinf=9e8, neginf=-9e8)
    if mode == "nearest":
        found = [(np.rint(bounded(np.rint(at), extent, padding, align)), np.ones_like(at))]
    elif mode == "linear":
        at = bounded(at, extent, padding, align)
        first = np.floor(at)
        found = [(first, 1 - (at - first)), (first + 1, at - first)]
    else:
        first = np.floor(at)
        found = [(bounded(first + k, extent, padding, align), cubic(at - first - k)) for k in (-1, 0, 1, 2)]
    inside = [(i >= 0) & (i < extent) for i, _ in found]
    return [(np.where(ok, i, 0).astype(int), np.where(ok, w, 0)) for ok, (i, w) in zip(inside, found, strict=True)]


def reference(x: Array, grid: Array, mode: str, padding: str, align: bool) -> tuple[Array, Array]:
    """Results and the sums of their terms' magnitudes, by batch and channel."""
    wanted, size = (np.zeros((*x.shape[:2], *grid.shape[1:-1])) for _ in range(2))
    axes = [taps(grid[..., -1 - k], extent, mode, padding, align) for k, extent in enumerate(x.shape[2:])]
    batch = np.arange(len(x)).reshape(-1, *[1] * (grid.ndim - 2))
    for combination in itertools.product(*axes):
        weight = np.prod([w for _, w in combination], 0)[:, None]
        pixels = np.moveaxis(x.astype(np.float64)[(batch, slice(None), *(i for i, _ in combination))], -1, 1)
        wanted += weight * pixels
        size += np.abs(weight * pixels)
    return wanted, size


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    image=st.one_of(st.lists(st.integers(1, 7), min_size=2, max_size=3), st.sampled_from([[1, 40], [33, 2], [5, 6, 7]])),
    channels=st.sampled_from([1, 3, 7, 8, 16, 17, 32, 67, 100]),
    points=st.sampled_from([[1, 1, 1], [3, 5, 2], [9, 16, 1], [1, 75, 3]]),
    mode=st.sampled_from(sorted(GRID_MODES)),
    padding=st.sampled_from(sorted(GRID_PADDINGS)),
    align=st.booleans(),
    order=st.sampled_from(["any", "channels last", "rows"]),
    reach=st.sampled_from([1.0, 1.3, 8.0]),
)
def test_gridsample(isa, seed, image, channels, points, mode, padding, align, order, reach):
    rng = np.random.default_rng(seed)
    batch, target = int(rng.integers(1, 3)), points[: len(image)]
    x = rng.standard_normal((batch, channels, *image)).astype(F)
    # Halves and quarters of pixels among the points, and what is no number.
    grid = rng.uniform(-reach, reach, (batch, *target, len(image))).astype(F)
    grid = np.where(rng.random(grid.shape) < 0.3, np.round(grid * 4) / 4, grid).astype(F)
    if rng.random() < 0.2 and padding != "reflection":
        grid.reshape(-1)[rng.integers(grid.size, size=2)] = rng.choice([np.nan, np.inf, -np.inf, 3e30])
    wanted, size = reference(x, grid, mode, padding, align)
    if order == "any":
        source, out = filled(rng, x), layout(rng, wanted.shape)
    elif order == "rows":
        source, out = x, np.empty(wanted.shape, F)
    else:
        source = np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 1, -1)), -1, 1)
        out = np.moveaxis(np.empty((batch, *target, channels), F), -1, 1) if rng.random() < 0.5 else np.empty(wanted.shape, F)
    params = [GRID_MODES[mode], GRID_PADDINGS[padding], int(align)]
    operands = [source, filled(rng, grid)]
    result = run("GRIDSAMPLE", out, operands, params, isa=isa)
    # Where a point lies between two pixels is known to so many parts of its distance from the first.
    near = 2.0**-22 * (2 + reach) * max(image) * np.abs(x).max() * 8
    assert (np.abs(result - wanted) <= 2.0**-23 * 80 * size + (0 if mode == "nearest" else near)).all()
    check_tiles(rng, result, "GRIDSAMPLE", out, operands, params, isa)


@pytest.mark.parametrize("isa", ISAS)
def test_what_lies_outside_does_not_count(isa):
    """An infinity in the first pixel, whose place those outside have."""
    for channels in (3, 32):
        x = np.ones((1, channels, 4, 5), F)
        x[0, :, 0, 0] = np.inf
        for source in (x, np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 1, -1)), -1, 1)):
            out = np.empty((1, channels, 1, 2), F)
            operands = [source, np.array([[[[5, 5], [1, 1]]]], F)]
            assert run("GRIDSAMPLE", out, operands, [0, 0, 1], isa=isa).tolist() == [[[[0, 1]]] * channels]
