"""QPACK and QMATMUL on every ISA: panels are those of the planner's own packing, and each matrix of a batch has the bits of QGEMM."""

from __future__ import annotations

import numpy as np
import pytest
from byte_tools import BAD_ARGUMENT, BYTES, drawn, wrapped
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_tools import ISAS, boxes, broadcast, layout, run, same_bits
from test_qgemm import SIZES, TERMS, laid_out, packed, params, sums

from aspen_mp.planner.ops.products import run_time_panels
from aspen_mp.workers import _kernels

LEAD = st.lists(st.integers(1, 3), max_size=2)


def packed_here(b: np.ndarray, zero: np.ndarray | None, isa: str, parts: list[tuple[list[int], list[int]]] | None = None) -> np.ndarray:
    """Return panels made by QPACK. `parts`: boxes of panels, whose last two axes are whole."""
    out = np.full((*b.shape[:-2], *run_time_panels(*b.shape[-2:])), 99, np.int8)
    for lo, hi in parts or [([0] * out.ndim, list(out.shape))]:
        assert _kernels.call("QPACK", [out, b, *([] if zero is None else [zero])], [], lo, hi, isa) == 0
    return out


def turned(rng: np.random.Generator, b: np.ndarray) -> np.ndarray:
    """The same values in other memory: terms or columns side by side, or neither."""
    kind = rng.integers(4)
    if kind == 0:
        return np.ascontiguousarray(b.swapaxes(-1, -2)).swapaxes(-1, -2)
    if kind == 1:
        wide = np.zeros((*b.shape[:-1], 2 * b.shape[-1]), b.dtype)
        wide[..., ::2] = b
        return wide[..., ::2]
    return b if kind == 2 else np.ascontiguousarray(b[..., ::-1, :])[..., ::-1, :]


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32), lead=LEAD, k=TERMS, n=SIZES, of=st.sampled_from(BYTES), zero=st.booleans())
def test_panels(isa, seed, lead, k, n, of, zero):
    rng = np.random.default_rng(seed)
    b, point = drawn(rng, (*lead, k, n), of), drawn(rng, (1,), of) if zero else None
    found = packed_here(turned(rng, b), point, isa)
    for index in np.ndindex(*lead):
        want, _ = packed(b[index], point)
        np.testing.assert_array_equal(found[index].reshape(want.shape), want)
    tiles = [([*lo, 0, 0], [*hi, *found.shape[-2:]]) for lo, hi in boxes(rng, found.shape[:-2], 5)]
    assert same_bits(found, packed_here(turned(rng, b), point, isa, tiles))


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    lead=LEAD,
    m=SIZES,
    k=TERMS,
    n=SIZES,
    of_a=st.sampled_from(BYTES),
    of_b=st.sampled_from(BYTES),
    zero=st.booleans(),
    to=st.sampled_from([np.int32, np.float32, np.uint8]),
)
def test_products(isa, seed, lead, m, k, n, of_a, of_b, zero, to):
    """Sums are numpy's. Bytes and floats are those that QGEMM makes of each matrix."""
    rng = np.random.default_rng(seed)
    shape = (*lead, m, n)
    a, b = drawn(rng, (*lead, m, k), of_a), drawn(rng, (*lead, k, n), of_b)
    left_zero = broadcast(rng, drawn(rng, (1,) * len(shape), of_a), shape) if zero else None
    right_zero = drawn(rng, (1,), of_b) if zero else None
    panels = packed_here(turned(rng, b), right_zero, isa)
    factor = None if to == np.int32 else broadcast(rng, np.full((1,) * len(shape), 1e-4, np.float32), shape)
    p = params(True, scale=0.1 if to == np.uint8 else 1.0, zero=7 if to == np.uint8 else 0)
    inputs = [laid_out(rng, a, "any"), panels, None, None, factor, left_zero]
    whole = run("QMATMUL", layout(rng, shape, to), inputs, p, isa=isa)
    for index in np.ndindex(*lead):
        one = [None if x is None else x[index] for x in inputs]
        one[1], _ = packed(b[index], np.zeros(1, of_b) if right_zero is None else right_zero)
        want = run("QGEMM", np.empty((m, n), to), one, p, isa=isa)
        assert same_bits(whole[index], want)
    if to == np.int32:
        point = None if left_zero is None else left_zero[..., :1]
        np.testing.assert_array_equal(whole, wrapped(sums(a, point, b, right_zero)))
    tiles = boxes(rng, shape, int(rng.integers(2, 9)))
    assert same_bits(whole, run("QMATMUL", layout(rng, shape, to), inputs, p, tiles, isa))


def test_calls_that_are_refused() -> None:
    b, out = np.zeros((2, 5, 40), np.int8), np.zeros((2, *run_time_panels(5, 40)), np.int8)
    a, y = np.zeros((2, 3, 5), np.uint8), np.zeros((2, 3, 40), np.int32)
    for op, args, p in (
        ("QPACK", [out, b.astype(np.int32)], []),
        ("QPACK", [out[:, :, :-1].copy(), b], []),
        ("QPACK", [out.astype(np.uint8), b], []),
        ("QPACK", [out, b, np.zeros(1, np.uint8)], []),
        ("QMATMUL", [y, a, out[:, :, :-1].copy()], params(True)),
        ("QMATMUL", [y, a, out[..., ::-1]], params(True)),
        ("QMATMUL", [y, a, out[0]], params(True)),
        ("QMATMUL", [y, a, out.astype(np.uint8)], params(True)),
    ):
        assert _kernels.call(op, args, p, [0] * args[0].ndim, args[0].shape) == BAD_ARGUMENT
