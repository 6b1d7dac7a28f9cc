"""COPY, CAST, PAD, GATHER, GATHER_ELEMENTS on every ISA: any layout, any type, bit for bit."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_tools import ISAS, SHAPES, check_equal, check_tiles, filled, layout, run, same_bits

from aspen_mp.shm.tables import PAD_MODES
from aspen_mp.workers import _kernels

BF16 = np.dtype(ml_dtypes.bfloat16)
INTEGERS = [np.dtype(t) for t in ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8")]
FLOATS = [np.dtype("f2"), BF16, np.dtype("f4"), np.dtype("f8")]
NUMBERS = [*INTEGERS, *FLOATS, np.dtype(bool)]
MOVED = [*NUMBERS, np.dtype("c8"), np.dtype("c16")]


def any_bytes(rng: np.random.Generator, shape: tuple[int, ...] | list[int], dtype: np.dtype) -> np.ndarray:
    if dtype == np.dtype(bool):
        return rng.integers(0, 2, shape).astype(bool)
    count = int(np.prod(shape, dtype=np.int64))
    return np.frombuffer(rng.bytes(count * dtype.itemsize), dtype).reshape(shape).copy()


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32), shape=SHAPES, dtype=st.sampled_from(MOVED), plain=st.booleans())
def test_copy(isa, seed, shape, dtype, plain):
    rng = np.random.default_rng(seed)
    x = filled(rng, any_bytes(rng, shape, dtype), plain)
    if plain and len(shape) > 1:  # transpositions of contiguous tensors
        x = x.transpose(rng.permutation(len(shape)))
    out = layout(rng, x.shape, dtype, plain)
    result = run("COPY", out, [x], [], isa=isa)
    assert same_bits(result, x)
    check_tiles(rng, result, "COPY", out, [x], [], isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", ["u1", "u2", "f4", "f8", "c16"])
def test_layout_change(isa, dtype):
    """NCHW to NHWC and back, in tiles of every size around the block."""
    rng = np.random.default_rng(3)
    nchw = any_bytes(rng, (2, 37, 9, 33), np.dtype(dtype))
    nhwc = np.empty((2, 9, 33, 37), dtype).transpose(0, 3, 1, 2)
    other = np.empty_like(nhwc)
    other[...] = nchw
    for source, target in [(nchw, nhwc), (other, nchw.copy())]:
        result = run("COPY", target, [source], [], isa=isa)
        assert same_bits(result, nchw)
        check_tiles(rng, result, "COPY", target, [source], [], isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", ["u1", "u2", "f4", "f8", "c16"])
@pytest.mark.parametrize("length", [2, 3, 4, 8, 16])
def test_short_runs(isa, dtype, length):
    """Space to depth and back: a few elements stay together, on addresses that are multiples of one element only."""
    rng = np.random.default_rng(length)
    image = any_bytes(rng, (3, 2, 19, length + 1), np.dtype(dtype))[..., 1:]
    pixels = np.empty((19, 3, 2, length), dtype).transpose(1, 2, 0, 3)
    other = np.empty_like(pixels)
    other[...] = image
    for source, target in [(image, pixels), (other, np.empty_like(image))]:
        result = run("COPY", target, [source], [], isa=isa)
        assert same_bits(result, image)
        check_tiles(rng, result, "COPY", target, [source], [], isa)


# ---- CAST ----


def castable(rng: np.random.Generator, shape: list[int], source: np.dtype, target: np.dtype) -> np.ndarray:
    """Values whose conversion is defined: any integers; floats inside the target's range, or special where the target is floating."""
    if source.kind in "iu":
        return any_bytes(rng, shape, source)
    if source.kind == "b":
        return any_bytes(rng, shape, source)
    v = rng.standard_normal(shape) * np.exp(rng.uniform(-12, 12, shape))
    v = np.where(rng.random(shape) < 0.2, np.rint(v) + 0.5, v)
    if target.kind in "iu":
        info = np.iinfo(target)
        top = min(float(info.max), 2.0**62 if target.kind == "i" else 2.0**63)
        v = np.clip(v, max(float(info.min), -(2.0**62)), top * (1 - 2.0**-8))
    else:
        v = np.where(
            rng.random(shape) < 0.2,
            rng.choice([np.nan, np.inf, -np.inf, 0.0, -0.0, 65504, 65519.9, 65520, 1e-7, 6e-8, 3e-8, 1e300], shape),
            v,
        )
    with np.errstate(over="ignore"):
        return np.asarray(v).astype(source)


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=400, deadline=None)
@given(seed=st.integers(0, 2**32), shape=SHAPES, source=st.sampled_from(NUMBERS), target=st.sampled_from(NUMBERS), plain=st.booleans())
def test_cast(isa, seed, shape, source, target, plain):
    rng = np.random.default_rng(seed)
    x = filled(rng, castable(rng, shape, source, target), plain)
    out = layout(rng, shape, target, plain)
    result = run("CAST", out, [x], [0], isa=isa)
    with np.errstate(all="ignore"):
        # ml_dtypes goes to integers and bool through float32, as numpy does from float16
        wanted = (x.astype(np.float32) if source == BF16 or (target == BF16 and source != np.dtype("f8")) else x).astype(target)
    check_equal(result, wanted)
    check_tiles(rng, result, "CAST", out, [x], [0], isa)


@pytest.mark.parametrize("isa", ISAS)
def test_halves_exhaustively(isa):
    """Every float16 and bfloat16 to float32 and back, and float32 around every float16."""
    bits = np.arange(1 << 16, dtype=np.uint16)
    for dtype in (np.dtype("f2"), BF16):
        half = bits.view(dtype)
        wide, back = np.empty(half.size, np.float32), np.empty(half.size, dtype)
        assert _kernels.call("CAST", [wide, half], [0], [0], wide.shape, isa) == 0
        np.testing.assert_array_equal(wide, half.astype(np.float32))
        assert _kernels.call("CAST", [back, wide], [0], [0], wide.shape, isa) == 0
        keep = ~np.isnan(wide)
        np.testing.assert_array_equal(back.view(np.uint16)[keep], bits[keep])
        for step in (-1, 1):
            near = (wide.view(np.uint32) + np.uint32(0x1000 if dtype.kind == "f" else 0x8000) + np.uint32(step & 0xFFFFFFFF)).view(
                np.float32
            )
            assert _kernels.call("CAST", [back, near], [0], [0], wide.shape, isa) == 0
            with np.errstate(over="ignore", invalid="ignore"):
                check_equal(back, near.astype(dtype))
    with np.errstate(invalid="ignore"):  # signalling NaNs among them
        double = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float64) * (1 + 2.0**-11 + 2.0**-40)
    half = np.empty(double.size, np.float16)
    assert _kernels.call("CAST", [half, double], [0], [0], half.shape, isa) == 0
    with np.errstate(over="ignore", invalid="ignore"):
        check_equal(half, double.astype(np.float16))


# ---- PAD ----


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32), shape=SHAPES, dtype=st.sampled_from(MOVED), mode=st.sampled_from(sorted(PAD_MODES)), crop=st.booleans())
def test_pad(isa, seed, shape, dtype, mode, crop):
    rng = np.random.default_rng(seed)
    x = filled(rng, any_bytes(rng, shape, dtype))
    pads = [(int(b), int(e)) if rng.random() < 0.7 else (0, 0) for b, e in rng.integers(0, 6, (len(shape), 2))]
    value = any_bytes(rng, (), dtype)
    numpy_mode = {"CONSTANT": "constant", "REFLECT": "reflect", "EDGE": "edge", "WRAP": "wrap"}[mode]
    extra = {"constant_values": value} if mode == "CONSTANT" else {}
    wanted = np.pad(x, pads, numpy_mode, **extra) if shape else x.copy()
    begin = [b for b, _ in pads]
    if crop:
        cuts = [int(rng.integers(0, n)) for n in wanted.shape]
        wanted = wanted[tuple(slice(c, None) for c in cuts)]
        begin = [b - c for b, c in zip(begin, cuts, strict=True)]
    params = [PAD_MODES[mode], len(shape), *begin, *[0] * (8 - len(shape))]
    out = layout(rng, wanted.shape, dtype)
    inputs = [x, value] if mode == "CONSTANT" else [x]
    result = run("PAD", out, inputs, params, isa=isa)
    assert same_bits(result, wanted)
    check_tiles(rng, result, "PAD", out, inputs, params, isa)


@pytest.mark.parametrize("isa", ISAS)
def test_pad_default_value(isa):
    out = np.ones((4, 4), np.float32)
    x = np.full((2, 2), 3, np.float32)
    assert _kernels.call("PAD", [out, x], [0, 2, 1, 1, *[0] * 6], [0, 0], [4, 4], isa) == 0
    np.testing.assert_array_equal(out, np.pad(x, 1))


# ---- GATHER ----


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    shape=SHAPES.filter(lambda s: s),
    dtype=st.sampled_from(MOVED),
    index_dtype=st.sampled_from(["i4", "i8"]),
    index_shape=st.lists(st.integers(1, 5), max_size=3),
)
def test_gather(isa, seed, shape, dtype, index_dtype, index_shape):
    rng = np.random.default_rng(seed)
    axis = int(rng.integers(len(shape)))
    x = filled(rng, any_bytes(rng, shape, dtype))
    n = shape[axis]
    indices = filled(rng, np.asarray(rng.integers(-n, n, index_shape)).astype(index_dtype))
    wanted = np.take(x, indices % n, axis)
    out = layout(rng, wanted.shape, dtype)
    result = run("GATHER", out, [x, indices], [axis], isa=isa)
    assert same_bits(result, wanted)
    check_tiles(rng, result, "GATHER", out, [x, indices], [axis], isa)


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32), shape=SHAPES.filter(lambda s: s), dtype=st.sampled_from(MOVED), index_dtype=st.sampled_from(["i4", "i8"])
)
def test_gather_elements(isa, seed, shape, dtype, index_dtype):
    rng = np.random.default_rng(seed)
    axis = int(rng.integers(len(shape)))
    x = filled(rng, any_bytes(rng, shape, dtype))
    n = shape[axis]
    index_shape = [int(rng.integers(1, 9)) if a == axis else int(rng.integers(1, d + 1)) for a, d in enumerate(shape)]
    indices = filled(rng, rng.integers(-n, n, index_shape).astype(index_dtype))
    part = x[tuple(slice(None) if a == axis else slice(d) for a, d in enumerate(index_shape))]
    wanted = np.take_along_axis(part, indices.astype(np.int64) % n, axis)
    out = layout(rng, index_shape, dtype)
    result = run("GATHER_ELEMENTS", out, [x, indices], [axis], isa=isa)
    assert same_bits(result, wanted)
    check_tiles(rng, result, "GATHER_ELEMENTS", out, [x, indices], [axis], isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bad", [5, -6, 2**31 - 1, -(2**31)])
def test_bad_index(isa, bad):
    x = np.arange(15, dtype=np.float32).reshape(5, 3)
    indices = np.array([0, bad, 1], np.int32)
    assert _kernels.call("GATHER", [np.empty((3, 3), np.float32), x, indices], [0], [0, 0], [3, 3], isa) == 1
    assert _kernels.call("GATHER", [np.empty((3, 3), np.float32), x, indices], [0], [2, 0], [3, 3], isa) == 0
    wide = np.array([[0], [bad]], np.int64)
    assert _kernels.call("GATHER_ELEMENTS", [np.empty((2, 1), np.float32), x, wide], [0], [0, 0], [2, 1], isa) == 1
