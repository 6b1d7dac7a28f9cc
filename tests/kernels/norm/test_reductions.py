"""REDUCE, ARGREDUCE, CUMSUM on every ISA against float64 and exact integers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_tools import ISAS, SHAPES, broadcast, check_equal, check_tiles, layout, run, stretched

from aspen_mp.shm.tables import REDUCE
from aspen_mp.workers import _kernels

FLOATS = [np.dtype("f4"), np.dtype("f8")]
WHOLE = [np.dtype("i4"), np.dtype("i8")]
SMALL = [np.dtype("i1"), np.dtype("u1"), np.dtype("u4"), np.dtype("u8"), np.dtype("?")]
NUMBERS = [np.dtype(t) for t in ("f4", "f8", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8")]


def in_float64(op: str, x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    x, k = x.astype(np.float64), {"axis": axes, "keepdims": True}
    count = np.prod([x.shape[a] for a in axes], dtype=np.float64)
    with np.errstate(all="ignore"):
        match op:
            case "SUM":
                return x.sum(**k)
            case "MEAN":
                return x.sum(**k) / count
            case "MAX":
                return x.max(initial=-np.inf, **k)
            case "MIN":
                return x.min(initial=np.inf, **k)
            case "PROD":
                return x.prod(**k)
            case "L1":
                return np.abs(x).sum(**k)
            case "L2":
                return np.sqrt((x * x).sum(**k))
            case "SUM_SQUARE":
                return (x * x).sum(**k)
            case "LOG_SUM":
                return np.log(x.sum(**k))
            case "LOG_SUM_EXP":
                m = x.max(initial=-np.inf, **k)
                m = np.where(np.isinf(m), 0, m)
                return np.log(np.exp(x - m).sum(**k)) + m
    raise AssertionError(op)


def drawn_axes(rng: np.random.Generator, rank: int) -> tuple[int, ...]:
    return tuple(a for a in range(rank) if rng.random() < 0.5)


LONG = st.one_of(SHAPES, st.sampled_from([[3, 700], [700, 3], [2, 300, 5], [20000], [1, 9000, 2], [40, 30, 20]]))


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 2**32), shape=LONG, op=st.sampled_from(sorted(REDUCE)), dtype=st.sampled_from(FLOATS), plain=st.booleans())
def test_reduce_floats(isa, seed, shape, op, dtype, plain):
    rng = np.random.default_rng(seed)
    axes = drawn_axes(rng, len(shape))
    values = rng.standard_normal(stretched(rng, shape, 0.1))
    if op == "LOG_SUM":
        values = np.abs(values) + 0.1
    if op == "PROD":
        # Small enough that no partial product leaves the range of f32, in whatever order.
        values = np.exp(values * min(0.05, 15 / np.prod(shape))) * np.where(rng.random(values.shape) < 0.5, -1, 1)
    x = broadcast(rng, np.asarray(values).astype(dtype), shape, plain)
    out = layout(rng, [1 if a in axes else n for a, n in enumerate(shape)], dtype, plain)
    params = [REDUCE[op], sum(1 << a for a in axes)]
    result = run("REDUCE", out, [x], params, isa=isa)
    wanted = in_float64(op, x, axes)
    if op in ("MAX", "MIN"):
        np.testing.assert_array_equal(result, wanted.astype(dtype))
    else:
        eps, terms = np.finfo(dtype).eps, x.size / max(1, result.size)
        # Lanes and chunks: far fewer roundings in a row than terms.
        roundings = min(terms, 300 if dtype == np.dtype("f4") else terms) + 8
        if op == "PROD":  # relative errors of all multiplications add up, in whatever order; of equal factors they have one sign
            roundings = terms / 2 + 8
        size = in_float64({"SUM": "L1", "MEAN": "L1", "LOG_SUM": "SUM"}.get(op, op), x, axes)
        if op == "MEAN":
            size = size / terms
        scale = np.maximum(np.abs(size), 1) if op.startswith("LOG") else np.abs(size)
        assert (np.abs(result - wanted) <= roundings * eps * scale + 1e-300).all(), (np.abs(result - wanted) / (eps * scale)).max()
    check_tiles(rng, result, "REDUCE", out, [x], params, isa)


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    shape=SHAPES,
    dtype=st.sampled_from(WHOLE + SMALL),
    op=st.sampled_from(["SUM", "MEAN", "MAX", "MIN", "PROD", "L1", "L2", "SUM_SQUARE"]),
)
def test_reduce_integers(isa, seed, shape, dtype, op):
    rng = np.random.default_rng(seed)
    axes = drawn_axes(rng, len(shape))
    if dtype == np.dtype("?"):
        op = "MAX" if op in ("SUM", "MAX", "L1", "L2") else "MIN"
        values = rng.random(shape) < 0.5
    else:
        low, high = (
            (np.iinfo(dtype).min, np.iinfo(dtype).max) if op in ("SUM", "MAX", "MIN", "PROD") else (0 if dtype.kind == "u" else -9, 10)
        )
        values = rng.integers(low, high, stretched(rng, shape, 0.1), dtype=dtype, endpoint=True)
    x = broadcast(rng, np.asarray(values), shape)
    out = layout(rng, [1 if a in axes else n for a, n in enumerate(shape)], dtype)
    params = [REDUCE[op], sum(1 << a for a in axes)]
    result = run("REDUCE", out, [x], params, isa=isa)
    k = {"axis": axes, "keepdims": True}
    with np.errstate(all="ignore"):
        if op in ("SUM", "PROD"):
            wanted = {"SUM": np.sum, "PROD": np.prod}[op](x, dtype=dtype, **k)
        elif op in ("MAX", "MIN"):
            wanted = {"MAX": np.max, "MIN": np.min}[op](x, **k)
        else:
            wanted = np.trunc(in_float64(op, x, axes)).astype(np.int64).astype(dtype)
    check_equal(result, np.asarray(wanted, dtype))
    check_tiles(rng, result, "REDUCE", out, [x], params, isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("op", sorted(REDUCE))
@pytest.mark.parametrize("axis", [0, 1])
def test_reduce_special_values(isa, op, axis):
    """NaN and infinities in every place, in both forms (contiguous and strided reduced axis), and nothing at all."""
    n = 70
    x = np.ones((n, n), np.float32)
    x[np.arange(n), np.arange(n)] = np.nan
    x[:20, :20][np.arange(20), np.arange(20)] = np.inf
    x[20:40, 20:40][np.arange(20), np.arange(20)] = -np.inf
    out = np.empty((1, n) if axis == 0 else (n, 1), np.float32)
    assert _kernels.call("REDUCE", [out, x], [REDUCE[op], 1 << axis], [0, 0], out.shape, isa) == 0
    wanted = in_float64(op, x, (axis,))
    np.testing.assert_allclose(out, wanted.astype(np.float32), rtol=1e-6)
    for dtype in FLOATS:
        empty = np.empty((3, 0), dtype)
        out = np.empty((3, 1), dtype)
        assert _kernels.call("REDUCE", [out, empty], [REDUCE[op], 2], [0, 0], [3, 1], isa) == 0
        np.testing.assert_array_equal(out, in_float64(op, empty, (1,)))


@pytest.mark.parametrize("isa", ISAS)
def test_long_sums_stay_accurate(isa):
    rng = np.random.default_rng(5)
    x = rng.random(1 << 21, dtype=np.float32)
    for shape, axis in [((1, x.size), 1), ((x.size, 1), 0), ((x.size // 4, 4), 0)]:
        a = x.reshape(shape)
        out = np.empty([1 if i == axis else n for i, n in enumerate(shape)], np.float32)
        assert _kernels.call("REDUCE", [out, a], [REDUCE["SUM"], 1 << axis], [0, 0], out.shape, isa) == 0
        np.testing.assert_allclose(out, a.sum(axis, dtype=np.float64, keepdims=True), rtol=2e-5)


# ---- ARGREDUCE ----


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    shape=SHAPES.filter(lambda s: s),
    dtype=st.sampled_from(NUMBERS),
    smallest=st.booleans(),
    last=st.booleans(),
    nans=st.booleans(),
)
def test_argreduce(isa, seed, shape, dtype, smallest, last, nans):
    rng = np.random.default_rng(seed)
    axis = int(rng.integers(len(shape)))
    values = rng.integers(0 if dtype.kind == "u" else -3, 4, stretched(rng, shape, 0.1)).astype(dtype)  # many ties
    if nans and dtype.kind == "f":
        values[rng.random(values.shape) < 0.1] = np.nan
    x = broadcast(rng, values, shape)
    out = layout(rng, [1 if a == axis else n for a, n in enumerate(shape)], np.int64)
    params = [int(smallest), axis, int(last), 0]
    result = run("ARGREDUCE", out, [x], params, isa=isa)
    f = np.argmin if smallest else np.argmax
    wanted = np.expand_dims(f(np.flip(x, axis) if last else x, axis), axis)
    if last:
        wanted = shape[axis] - 1 - wanted
    np.testing.assert_array_equal(result, wanted)
    check_tiles(rng, result, "ARGREDUCE", out, [x], params, isa)


# ---- CUMSUM ----


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    shape=SHAPES.filter(lambda s: s),
    dtype=st.sampled_from(FLOATS + WHOLE),
    exclusive=st.booleans(),
    reverse=st.booleans(),
)
def test_cumsum(isa, seed, shape, dtype, exclusive, reverse):
    rng = np.random.default_rng(seed)
    axis = int(rng.integers(len(shape)))
    drawn = rng.standard_normal(shape) if dtype.kind == "f" else rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, shape)
    x = broadcast(rng, drawn.astype(dtype), shape)
    out = layout(rng, shape, dtype)
    params = [axis, int(exclusive), int(reverse)]
    result = run("CUMSUM", out, [x], params, isa=isa)
    v = np.flip(x, axis) if reverse else x
    with np.errstate(over="ignore"):
        sums = np.cumsum(v, axis, dtype=dtype)
        if exclusive:
            first = np.zeros_like(np.take(sums, [0], axis))
            sums = np.concatenate([first, np.take(sums, range(shape[axis] - 1), axis)], axis)
    np.testing.assert_array_equal(result, np.flip(sums, axis) if reverse else sums)
    check_tiles(rng, result, "CUMSUM", out, [x], params, isa)
