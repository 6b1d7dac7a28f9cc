"""RESIZE on every ISA against the formulas of the ONNX specification, one axis at a time in float64; nearest elements in float32, as
onnxruntime finds them."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_tools import ISAS, check_tiles, filled, layout, run, same_bits

COORDINATES = ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "half_pixel_symmetric", "align_fractional_corners"]
ROUNDINGS = ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]
MODES = ["nearest", "linear", "cubic"]


def coordinate(kind: str, x: np.floating, scale: np.floating, n_in: np.floating, n_out: np.floating) -> np.floating:
    """All of one type, which is that of the arithmetic."""
    width = scale * n_in
    match kind:
        case "half_pixel":
            return (x + 0.5) / scale - 0.5
        case "asymmetric":
            return x / scale
        case "align_corners":
            return 0 * x if n_out == 1 else x * (n_in - 1) / (n_out - 1)
        case "align_fractional_corners":
            return 0 * x if width == 1 else x * (n_in - 1) / (width - 1)
        case "pytorch_half_pixel":
            return 0 * x if n_out == 1 else (x + 0.5) / scale - 0.5
        case "half_pixel_symmetric":
            return n_in / 2 * (1 - n_out / width) + (x + 0.5) / scale - 0.5
    raise AssertionError(kind)


def coefficients(mode: str, ratio: float, rounding: str, a: float) -> list[float]:
    """Weights of the taps around floor(x); ratio in (0, 1], 1 meaning that x is an integer and stands on the right."""
    if mode == "linear":
        return [1 - ratio, ratio]
    if mode == "cubic":
        return [
            ((a * (ratio + 1) - 5 * a) * (ratio + 1) + 8 * a) * (ratio + 1) - 4 * a,
            ((a + 2) * ratio - (a + 3)) * ratio * ratio + 1,
            ((a + 2) * (1 - ratio) - (a + 3)) * (1 - ratio) * (1 - ratio) + 1,
            ((a * ((1 - ratio) + 1) - 5 * a) * ((1 - ratio) + 1) + 8 * a) * ((1 - ratio) + 1) - 4 * a,
        ]
    left = {"round_prefer_floor": ratio <= 0.5, "round_prefer_ceil": ratio < 0.5, "floor": ratio < 1, "ceil": False}[rounding]
    return [1.0, 0.0] if left else [0.0, 1.0]


def matrix(mode: str, kind: str, rounding: str, a: float, exclude: bool, scale: float, n_in: int, n_out: int) -> np.ndarray:
    """The interpolation along one axis as a matrix [n_out, n_in]."""
    m = np.zeros((n_out, n_in))
    for x in range(n_out):
        at = float(coordinate(kind, *map(np.float32 if mode == "nearest" else np.float64, (x, scale, n_in, n_out))))
        left = int(np.ceil(at)) - 1  # so that an integer stands on the right, with ratio 1
        weights = coefficients(mode, at - left, rounding, a)
        places = [left + k - (len(weights) // 2 - 1) for k in range(len(weights))]
        if exclude:
            weights = [0.0 if not 0 <= p < n_in else w for p, w in zip(places, weights, strict=True)]
            weights = [w / sum(weights) for w in weights]
        for p, w in zip(places, weights, strict=True):
            m[x, min(max(p, 0), n_in - 1)] += w
    return m


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=250, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    shape=st.one_of(st.lists(st.integers(1, 6), max_size=4), st.sampled_from([[2, 3, 150], [2, 1400], [1, 140, 2], [2, 20, 5, 7]])),
    mode=st.sampled_from(MODES),
    kind=st.sampled_from(COORDINATES),
    rounding=st.sampled_from(ROUNDINGS),
    exclude=st.booleans(),
    by_size=st.booleans(),
    channels_last=st.booleans(),
)
def test_resize(isa, seed, shape, mode, kind, rounding, exclude, by_size, channels_last):
    rng = np.random.default_rng(seed)
    a = float(rng.choice([-0.75, -0.5]))
    scales, sizes = [], []
    for n in shape:
        kept = rng.random() < 0.4
        if by_size:
            size = n if kept else int(rng.integers(1, 3 * n + 2))
            scales.append(size / n)
        else:
            scales.append(1.0 if kept else float(np.float32(rng.choice([0.5, 2, 3, 1 / 3, rng.uniform(0.4, 3)]))))
            size = max(1, int(np.floor(n * scales[-1])))
        sizes.append(size)
    x = rng.standard_normal(shape).astype(np.float32)
    if mode == "nearest" and rng.random() < 0.5:
        dtype = rng.choice([np.dtype(t) for t in ("u1", "i8", "f2", "c16", "?")] + [np.dtype(ml_dtypes.bfloat16)])
        x = np.asarray(x * 10).astype(dtype)
    wanted = x if mode == "nearest" else x.astype(np.float64)
    size_of_terms = np.abs(wanted) if mode != "nearest" else None
    for axis, (scale, n_in, n_out) in enumerate(zip(scales, shape, sizes, strict=True)):
        m = (
            matrix(mode, kind, rounding, a, exclude and mode != "nearest", scale, n_in, n_out)
            if n_in != n_out or scale != 1
            else np.eye(n_in)
        )
        if mode == "nearest":
            wanted = np.take(wanted, m.argmax(1), axis)
        else:
            wanted = np.moveaxis(np.tensordot(m, wanted, (1, axis)), 0, axis)
            size_of_terms = np.moveaxis(np.tensordot(np.abs(m), size_of_terms, (1, axis)), 0, axis)
    if channels_last and len(shape) == 4:
        source = np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
        out = np.empty([sizes[0], *sizes[2:], sizes[1]], x.dtype).transpose(0, 3, 1, 2)
    else:
        source, out = filled(rng, x), layout(rng, sizes, x.dtype)
    extra = [1.0] * (8 - len(shape))
    params = [MODES.index(mode), COORDINATES.index(kind), ROUNDINGS.index(rounding), a, *scales, *extra, int(exclude), *[0] * 7]
    result = run("RESIZE", out, [source], params, isa=isa)
    if mode == "nearest":
        assert same_bits(result, wanted)
    else:
        assert (np.abs(result - wanted) <= 2.0**-23 * 40 * size_of_terms + 1e-30).all()
    check_tiles(rng, result, "RESIZE", out, [source], params, isa)
