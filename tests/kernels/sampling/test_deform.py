"""DEFORM on every ISA against places that are read one by one in float64, at coordinates in single precision."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_tools import ISAS, check_tiles, filled, layout, run

F = np.float32
Array = np.ndarray


def place(image: Array, row: float, column: float) -> Array:
    """[C] of an image [C, H, W] between its pixels; zeros around it."""
    total = np.zeros(len(image))
    if not (-1 < row < image.shape[1] and -1 < column < image.shape[2]):
        return total
    top, left = int(np.floor(row)), int(np.floor(column))
    for i, v in ((top, 1 - (row - top)), (top + 1, row - top)):
        for j, w in ((left, 1 - (column - left)), (left + 1, column - left)):
            if 0 <= i < image.shape[1] and 0 <= j < image.shape[2]:
                total += v * w * image[:, i, j]
    return total


def reference(x: Array, offsets: Array, mask: Array | None, out: tuple[int, int], groups: int, parts: int, window: list[int]) -> Array:
    kh, kw, *rest = window
    steps, dilations, pads = rest[:2], rest[2:4], rest[4:]
    batch, channels = x.shape[:2]
    seen = np.zeros((batch, kh * kw, channels, *out))
    for n, part, tap, i, j in np.ndindex(batch, parts, kh * kw, *out):
        own = slice(part * channels // parts, (part + 1) * channels // parts)
        at = part * kh * kw + tap
        places = [
            F(o * s - p + t * d) + offsets[n, 2 * at + a, i, j]
            for a, (o, s, p, t, d) in enumerate(zip((i, j), steps, pads, divmod(tap, kw), dilations, strict=True))
        ]
        factor = 1 if mask is None else float(mask[n, at, i, j])
        seen[n, tap, own, i, j] = place(x[n, own].astype(np.float64), *map(float, places)) * factor
    split = seen.reshape(batch, kh * kw, groups, channels // groups, *out)
    return np.swapaxes(split, 1, 2).reshape(batch, -1, *out)


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    image=st.sampled_from([(1, 1), (4, 5), (6, 3)]),
    out=st.sampled_from([(1, 1), (3, 4), (2, 6)]),
    shape=st.sampled_from([(1, 1, 1), (6, 3, 2), (16, 1, 1), (32, 2, 4), (68, 4, 1), (72, 1, 2), (300, 1, 1)]),
    kernel=st.sampled_from([(1, 1), (3, 3), (1, 4)]),
    masked=st.booleans(),
    order=st.sampled_from(["any", "channels last", "rows"]),
)
def test_deform(isa, seed, image, out, shape, kernel, masked, order):
    rng = np.random.default_rng(seed)
    channels, groups, parts = shape
    batch, taps = int(rng.integers(1, 3)), kernel[0] * kernel[1]
    x = rng.standard_normal((batch, channels, *image)).astype(F)
    offsets = rng.uniform(-3, 3, (batch, 2 * parts * taps, *out)).astype(F)
    offsets = np.where(rng.random(offsets.shape) < 0.3, np.round(offsets), offsets).astype(F)
    if rng.random() < 0.3:
        offsets.reshape(-1)[rng.integers(offsets.size)] = rng.choice([np.nan, np.inf, -3e38])
    mask = rng.uniform(0, 1, (batch, parts * taps, *out)).astype(F) if masked else None
    window = [*kernel, *rng.integers(1, 3, 4).tolist(), *rng.integers(0, 3, 2).tolist()]
    wanted = reference(x, offsets, mask, out, groups, parts, window)
    if order == "any":
        source, target = filled(rng, x), layout(rng, wanted.shape)
    else:
        source = np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
        target = (
            np.empty((batch, *out, taps * channels), F).transpose(0, 3, 1, 2) if order == "channels last" else np.empty(wanted.shape, F)
        )
    operands = [source, filled(rng, offsets), None if mask is None else filled(rng, mask)]
    params = [groups, parts, *window]
    result = run("DEFORM", target, operands, params, isa=isa)
    assert (np.abs(result - wanted) <= 1e-5 * max(np.abs(x).max(), 1)).all()
    check_tiles(rng, result, "DEFORM", target, operands, params, isa)
