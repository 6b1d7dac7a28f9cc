"""TOPK, INDEX, SCATTER on every ISA: any layout, any type, bit for bit."""

from __future__ import annotations

from math import isnan

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_tools import ISAS, check_tiles, filled, layout, run

from aspen_mp.workers import _kernels

SHAPES = st.lists(st.integers(1, 7), min_size=1, max_size=4)
NUMBERS = ["f4", "f8", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"]
INDICES = ["i4", "i8"]


def numbers(rng, shape, dtype):
    """Few values, so that some are equal; NaN, infinities and both zeros among floats."""
    dtype = np.dtype(dtype)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        few = np.array([info.min, info.max, 0, 1, 2, 3], dtype)
        return rng.choice(few, shape)
    few = np.array([-np.inf, np.inf, np.nan, -0.0, 0.0, 1, -1, 2.5, 1e-3], np.float64).astype(dtype)
    return few[rng.integers(len(few), size=shape)]


def best(x, k, axis, largest):
    """By sorting: NaN is the greatest, of equal elements the first comes first."""
    rows = np.moveaxis(x, axis, -1)
    out = np.empty((*rows.shape[:-1], k), np.int64)
    for at in np.ndindex(rows.shape[:-1]):
        row = rows[at].tolist()

        def key(i, row=row):
            nan = isnan(row[i])
            value = (nan, 0 if nan else row[i])
            return ((not value[0], -value[1]) if largest else value, i)

        out[at] = sorted(range(len(row)), key=key)[:k]
    return np.moveaxis(out, -1, axis)


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32), shape=SHAPES, dtype=st.sampled_from([*NUMBERS, "f2", ml_dtypes.bfloat16]), largest=st.booleans())
def test_topk(isa, seed, shape, dtype, largest):
    rng = np.random.default_rng(seed)
    axis = int(rng.integers(len(shape)))
    shape[axis] *= int(rng.integers(1, 9))
    x = filled(rng, numbers(rng, shape, dtype))
    k = int(rng.integers(1, shape[axis] + 1))
    wanted = best(x, k, axis, largest)
    out = layout(rng, wanted.shape, np.int64)
    result = run("TOPK", out, [x], [axis, int(largest)], isa=isa)
    np.testing.assert_array_equal(result, wanted)
    check_tiles(rng, result, "TOPK", out, [x], [axis, int(largest)], isa)


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    dims=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    shape=st.lists(st.integers(1, 5), max_size=3),
    dtype=st.sampled_from(INDICES),
)
def test_index(isa, seed, dims, shape, dtype):
    rng = np.random.default_rng(seed)
    at = np.stack([rng.integers(-d, d, shape) for d in dims], -1).astype(dtype)
    wanted = np.asarray(np.ravel_multi_index(tuple(np.moveaxis(at % np.array(dims), -1, 0)), dims))
    params = [len(dims), *dims, *[0] * (8 - len(dims))]
    out = layout(rng, shape, np.int64)
    indices = filled(rng, at)
    result = run("INDEX", out, [indices], params, isa=isa)
    np.testing.assert_array_equal(result, wanted)
    check_tiles(rng, result, "INDEX", out, [indices], params, isa)


FOLDS = [None, np.add, np.multiply, np.minimum, np.maximum]


def scattered(x, indices, updates, axis, how):
    out = x.copy()
    with np.errstate(all="ignore"):
        for at in np.ndindex(indices.shape):
            place = (*at[:axis], int(indices[at]) % x.shape[axis], *at[axis + 1 :])
            out[place] = updates[at] if how == 0 else FOLDS[how](out[place], updates[at])
    return out


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("how", range(5))
@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 2**32), shape=SHAPES, dtype=st.sampled_from(NUMBERS), index_dtype=st.sampled_from(INDICES), alike=st.booleans())
def test_scatter(isa, how, seed, shape, dtype, index_dtype, alike):
    rng = np.random.default_rng(seed)
    axis = int(rng.integers(len(shape)))
    x = filled(rng, numbers(rng, shape, dtype))
    index_shape = [int(rng.integers(1, 9)) if a == axis else int(rng.integers(1, d + 1)) for a, d in enumerate(shape)]
    one_for_all = [d if a <= axis else 1 for a, d in enumerate(index_shape)] if alike else index_shape
    indices = filled(rng, rng.integers(-shape[axis], shape[axis], one_for_all).astype(index_dtype))
    indices = np.broadcast_to(indices, index_shape)
    updates = filled(rng, numbers(rng, index_shape, dtype))
    wanted = scattered(x, indices, updates, axis, how)
    out = layout(rng, shape, dtype)
    result = run("SCATTER", out, [x, indices, updates], [axis, how], isa=isa)
    np.testing.assert_array_equal(result, wanted)
    check_tiles(rng, result, "SCATTER", out, [x, indices, updates], [axis, how], isa)


@pytest.mark.parametrize("isa", ISAS)
def test_scatter_moves_any_type(isa):
    x, updates = np.zeros((4, 3), bool), np.ones((2, 3), bool)
    out = np.ones((4, 3), bool)
    assert _kernels.call("SCATTER", [out, x, np.array([[1, 1, 3], [0, 1, 2]]), updates], [0, 0], [0, 0], [4, 3], isa) == 0
    assert out.tolist() == [[True, False, False], [True, True, False], [False, False, True], [False, False, True]]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bad", [5, -6, 2**31 - 1, -(2**31)])
def test_bad_index(isa, bad):
    x, updates = np.zeros((5, 2), np.float32), np.ones((2, 2), np.float32)
    indices = np.array([[0, 1], [bad, 2]])
    assert _kernels.call("SCATTER", [np.empty_like(x), x, indices, updates], [0, 0], [0, 0], [5, 2], isa) == 1
    assert _kernels.call("SCATTER", [np.empty_like(x), x, indices, updates], [0, 0], [0, 1], [5, 2], isa) == 0
    params = [2, 5, 5, *[0] * 6]
    assert _kernels.call("INDEX", [np.empty(2, np.int64), indices], params, [0], [2], isa) == 1
    assert _kernels.call("INDEX", [np.empty(2, np.int64), indices], params, [0], [1], isa) == 0
