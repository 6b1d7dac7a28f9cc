"""SOFTMAX, NORM, LRN on every ISA against float64."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_tools import ISAS, SHAPES, activate, boxes, broadcast, check_tiles, filled, layout, run, same_bits, stretched

from aspen_mp.shm.tables import UNARY
from aspen_mp.workers import _kernels

EPS = 2.0**-23
WIDE = st.one_of(SHAPES, st.sampled_from([[3, 1000], [1000, 3], [2, 9000], [9000, 2], [4, 5, 384], [2, 384, 7]]))


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 2**32), shape=WIDE.filter(lambda s: s), log=st.booleans(), plain=st.booleans(), spread=st.sampled_from([1.0, 30.0])
)
def test_softmax(isa, seed, shape, log, plain, spread):
    rng = np.random.default_rng(seed)
    axis = int(rng.integers(len(shape)))
    x = broadcast(rng, (rng.standard_normal(stretched(rng, shape, 0.1)) * spread).astype(np.float32), shape, plain)
    out = layout(rng, shape, np.float32, plain)
    params = [axis, int(log)]
    result = run("SOFTMAX", out, [x], params, isa=isa)
    x64 = x.astype(np.float64)
    shifted = x64 - x64.max(axis, keepdims=True)
    total = np.exp(shifted).sum(axis, keepdims=True)
    if log:
        wanted = shifted - np.log(total)
        np.testing.assert_allclose(result, wanted, rtol=4 * EPS, atol=4 * EPS * 10)
    else:
        # the rounding of x - max, up to 100, is multiplied by it
        np.testing.assert_allclose(result, np.exp(shifted) / total, rtol=40 * EPS if spread == 1.0 else 400 * EPS, atol=1e-38)
    check_tiles(rng, result, "SOFTMAX", out, [x], params, isa)


@pytest.mark.parametrize("isa", ISAS)
def test_softmax_special_values(isa):
    x = np.array([[0, -np.inf, 1, -np.inf], [np.inf, 0, 0, 0], [np.nan, 0, 0, 0], [-np.inf] * 4, [3e38, -3e38, 0, 0]], np.float32)
    with np.errstate(all="ignore"):
        x64 = x.astype(np.float64)
        e = np.exp(x64 - x64.max(1, keepdims=True))
        wanted = e / e.sum(1, keepdims=True)
    for a, axis, w in [(x, 1, wanted), (np.ascontiguousarray(x.T), 0, wanted.T)]:
        out = np.empty_like(a)
        assert _kernels.call("SOFTMAX", [out, a], [axis, 0], [0, 0], a.shape, isa) == 0
        np.testing.assert_allclose(out, w, rtol=1e-6)


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=250, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    shape=WIDE.filter(lambda s: s),
    mode=st.integers(0, 1),
    scale=st.sampled_from([None, "trailing", "any"]),
    bias=st.sampled_from([None, "trailing", "any"]),
    plain=st.booleans(),
    channels_last=st.booleans(),
)
def test_norm(isa, seed, shape, mode, scale, bias, plain, channels_last):
    rng = np.random.default_rng(seed)
    rank, axis = len(shape), int(rng.integers(len(shape)))
    values = (rng.standard_normal(shape) * 2 + rng.choice([0.0, 5.0])).astype(np.float32)
    if channels_last and axis > 0:  # the kept axis before the normalised ones is the contiguous one
        order = [*range(axis - 1), *range(axis, rank), axis - 1]
        x = np.ascontiguousarray(values.transpose(order)).transpose(np.argsort(order))
    else:
        x = filled(rng, values, plain)

    def factor(kind: str | None) -> np.ndarray | None:
        if kind is None:
            return None
        dims = [1] * axis + list(shape[axis:]) if kind == "trailing" else stretched(rng, shape)
        return broadcast(rng, rng.standard_normal(dims).astype(np.float32), shape, plain)

    s, b = factor(scale), factor(bias)
    out = layout(rng, shape, np.float32, plain)
    params = [axis, mode, 1e-5]
    result = run("NORM", out, [x, s, b], params, isa=isa)
    x64, axes = x.astype(np.float64), tuple(range(axis, rank))
    centred = x64 - (x64.mean(axes, keepdims=True) if mode == 0 else 0)
    y = centred / np.sqrt((centred * centred).mean(axes, keepdims=True) + 1e-5)
    wanted = y * (1 if s is None else s) + (0 if b is None else b)
    # A mean's rounding (relative to the values) counts most where the variance is small.
    slack = (
        16
        * EPS
        * np.abs(x64).max(axes, keepdims=True)
        / np.sqrt((centred * centred).mean(axes, keepdims=True) + 1e-5)
        * (1 if s is None else np.abs(s))
    )
    bound = 16 * EPS * (np.abs(y) * (1 if s is None else np.abs(s)) + (0 if b is None else np.abs(b))) + slack
    assert (np.abs(result - wanted) <= bound).all(), (np.abs(result - wanted) / bound).max()
    check_tiles(rng, result, "NORM", out, [x, s, b], params, isa)


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    shape=st.tuples(st.integers(1, 3), st.sampled_from([1, 2, 5, 17, 130, 300]), st.integers(1, 6), st.integers(1, 6)).map(list),
    size=st.integers(1, 9),
    beta=st.sampled_from([0.75, 0.5, 2.0]),
    channels_last=st.booleans(),
)
def test_lrn(isa, seed, shape, size, beta, channels_last):
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(shape).astype(np.float32)
    x = values.transpose(0, 2, 3, 1).copy().transpose(0, 3, 1, 2) if channels_last else filled(rng, values)
    out = np.empty([shape[0], *shape[2:], shape[1]], np.float32).transpose(0, 3, 1, 2) if channels_last else layout(rng, shape)
    params = [size, 0.5, beta, 1.5]
    result = run("LRN", out, [x], params, isa=isa)
    squares = np.zeros(shape)
    for c in range(shape[1]):
        lo, hi = max(0, c - (size - 1) // 2), min(shape[1], c + size // 2 + 1)
        squares[:, c] = (x[:, lo:hi].astype(np.float64) ** 2).sum(1)
    np.testing.assert_allclose(result, x / (1.5 + 0.5 / size * squares) ** beta, rtol=1e-6)
    check_tiles(rng, result, "LRN", out, [x], params, isa)


IMAGES = st.tuples(
    st.integers(1, 3),
    st.sampled_from([1, 2, 6, 12, 16, 20, 32, 40, 96, 200]),
    st.one_of(
        st.lists(st.integers(1, 9), min_size=1, max_size=3),
        st.sampled_from([[700], [31, 33], [2, 1100], [1, 5, 130]]),
    ),
)


def image(rng, shape, values, kind):
    """Values in channels-last order, in row-major order, or in any."""
    if kind == "last":
        order = [0, *range(2, len(shape)), 1]
        return np.ascontiguousarray(values.transpose(order)).transpose(np.argsort(order))
    return filled(rng, values, kind == "first")


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=250, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    case=IMAGES,
    mean=st.sampled_from([0.0, 5.0, 1e3, -1e5]),
    layouts=st.tuples(*[st.sampled_from(["last", "last", "first", "any"])] * 2),
    activation=st.sampled_from(["IDENTITY", "RELU", "SWISH", "CLIP"]),
    scale=st.sampled_from([None, "channels", "images"]),
    shift=st.sampled_from([None, "channels", "images"]),
    residual=st.sampled_from([None, None, "last", "first", "any"]),
)
def test_images(isa, seed, case, mean, layouts, activation, scale, shift, residual):
    rng = np.random.default_rng(seed)
    n, channels, spatial = case
    shape, pixels = (n, channels, *spatial), int(np.prod(spatial))
    groups = int(rng.choice([g for g in range(1, channels + 1) if channels % g == 0]))
    blocks = int(rng.integers(1, min(pixels, 9) + 1))
    x = image(rng, shape, (rng.standard_normal(shape) * rng.choice([1.0, 1.0, 0.0]) + mean).astype(np.float32), layouts[0])
    out = layout(rng, (n, blocks, groups, 2), np.float64)
    moments = run("MOMENTS", out, [x], [], isa=isa)
    cuts = [b * pixels // blocks for b in range(blocks + 1)]
    parts = x.astype(np.float64).reshape(n, groups, channels // groups, pixels)
    for b, (begin, end) in enumerate(pairwise(cuts)):
        part = parts[..., begin:end]
        average, spread = part.mean((2, 3)), part.std((2, 3))
        assert (np.abs(moments[:, b, :, 0] - average) <= 16 * EPS * spread + 1e-12 * abs(mean)).all()
        squares = spread**2 * part[0, 0].size
        assert (np.abs(moments[:, b, :, 1] - squares) <= 32 * EPS * squares + 1e-9 * EPS * mean**2 * part[0, 0].size).all()
    check_tiles(rng, moments, "MOMENTS", out, [x], [], isa)

    def factor(kind: str | None) -> np.ndarray | None:
        return None if kind is None else filled(rng, rng.standard_normal((1 if kind == "channels" else n, channels)).astype(np.float32))

    s, b = factor(scale), factor(shift)
    y = image(rng, shape, np.zeros(shape, np.float32), layouts[1])
    function = (UNARY[activation], *((-0.5, 1.5) if activation == "CLIP" else (1.0, 0.0)))
    params = [1e-5, *function]
    more = None if residual is None else image(rng, shape, rng.standard_normal(shape).astype(np.float32), residual)
    operands = [x, moments, s, b, more]
    result = run("STANDARDIZE", y, operands, params, isa=isa)
    deviation = np.sqrt(parts.var((2, 3), keepdims=True) + 1e-5)
    wanted = ((parts - parts.mean((2, 3), keepdims=True)) / deviation).reshape(shape)
    bound = np.abs(wanted)
    axes = (slice(None), slice(None), *[None] * len(spatial))
    if s is not None:
        wanted, bound = wanted * s[axes], bound * np.abs(s[axes])
    if b is not None:
        wanted, bound = wanted + b[axes], bound + np.abs(b[axes])
    if more is not None:
        wanted, bound = wanted + more, bound + np.abs(more)
    wanted = wanted / (1 + np.exp(-wanted)) if activation == "SWISH" else activate(activation, wanted, *function[1:])
    assert (np.abs(result - wanted) <= 32 * EPS * (bound + 1)).all(), np.abs(result - wanted).max()
    check_tiles(rng, result, "STANDARDIZE", y, operands, params, isa)
    tiles = np.array(boxes(rng, shape, 5), np.int64)  # what a tile knows of its channels may be there for the next
    y[...] = 0
    _kernels.time_tiles("STANDARDIZE", [y, *operands], params, tiles, rounds=1, isa=isa)
    assert same_bits(result, y.copy())
