"""QGEMM on every ISA, with the processor's instruction for sums of bytes and without it: integers are numpy's, floats near float64."""

from __future__ import annotations

import hashlib
import itertools

import numpy as np
import pytest
from byte_tools import (
    BAD_ARGUMENT,
    BYTES,
    EDGES,
    ODD_SCALES,
    SCRATCH,
    TWIN,
    WITHOUT,
    check_digests,
    check_without,
    drawn,
    quantised,
    scale_of,
    stored,
    wrapped,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_tools import ACTIVATIONS, ISAS, boxes, broadcast, epilogue, filled, layout, run, same_bits

from aspen_mp.planner.ir.graph import Tensor
from aspen_mp.planner.lower.builder import Builder
from aspen_mp.planner.ops.products import packed_bytes
from aspen_mp.shm.tables import UNARY
from aspen_mp.workers import _isa, _kernels

EXAMPLES = 100 if WITHOUT else 300
SIZES = st.one_of(
    st.integers(1, 40), st.sampled_from([1, 2, 3, 4, 5, 6, 7, 8, 13, 14, 15, 16, 17, 28, 29, 31, 32, 33, 63, 64, 65, 96, 100, 129, 257])
)
TERMS = st.one_of(SIZES, st.sampled_from([4, 8, 12, 16, 20, 64, 128, 256, 300, 511, 512]))
LAYOUTS = ["plain", "any", "even", "apart", "reversed", "columns"]
"""Of A: contiguous, anything, rows with something between them, rows a multiple of 4096 bytes apart, from the last row to the first, terms
with something between them."""


def params(
    zeros: bool | int,
    activation: str = "IDENTITY",
    residual_last: int = 0,
    scale: float = 1.0,
    zero: int = 0,
    residual: tuple[float, int] = (1.0, 0),
) -> list[int | float]:
    return [int(zeros), *ACTIVATIONS[activation], residual_last, scale, zero, *residual]


def packed(b: np.ndarray, zero: np.ndarray | None) -> tuple[np.ndarray, bool]:
    """By the planner's own function: what it writes to a plan's weights."""
    point = None if zero is None else Tensor("zero", zero.shape, zero.dtype, data=zero)
    tensor, zeros = Builder().packed_bytes(Tensor("b", b.shape, b.dtype, data=b), point)
    return tensor.value(), zeros


def packed_by_hand(b: np.ndarray, zero: np.ndarray | None) -> np.ndarray:
    """As kernel.h says it, an element at a time."""
    k, n = b.shape
    shift = 128 if b.dtype == np.uint8 else 0
    panels = np.zeros(packed_bytes(k, n), np.int8)
    for j in range(n):
        panel, column = panels[j // 32], j % 32
        point = (0 if zero is None else int(zero.reshape(-1)[j % zero.size])) - shift
        terms = [int(x) - shift for x in b[:, j]]
        for i, term in enumerate(terms):
            panel[3 + i // 4, column, i % 4] = term
        for row, value in ((0, sum(terms)), (1, point)):
            panel[row, column] = np.frombuffer(np.int32(value).tobytes(), np.int8)
    return panels


def laid_out(rng: np.random.Generator, values: np.ndarray, kind: str) -> np.ndarray:
    *lead, m, k = values.shape
    if kind in {"plain", "any"}:
        return filled(rng, values, kind == "plain")
    rows = int(np.prod(lead, dtype=np.int64)) * m
    gap = {"even": k + int(rng.integers(1, 70)), "apart": -(-k // 4096) * 4096 * int(rng.integers(1, 3)), "columns": 3 * k}.get(kind, k)
    memory = np.full(rows * gap + 3, 99, values.dtype)[3:].reshape(rows, gap)
    step = 3 if kind == "columns" else 1
    view = memory[:, : step * k : step]
    if kind == "reversed":
        view = view[::-1]
    view[...] = values.reshape(rows, k)
    shaped = view.reshape(values.shape)
    assert shaped.base is not None
    return shaped


def sums(a: np.ndarray, a_zero: np.ndarray | None, b: np.ndarray, b_zero: np.ndarray | None) -> np.ndarray:
    """Exact: float64 holds every partial sum."""
    left = a.astype(np.float64) - (0 if a_zero is None else a_zero.astype(np.float64))
    right = b.astype(np.float64) - (0 if b_zero is None else b_zero.astype(np.float64))
    return (left @ right).astype(np.int64)


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=EXAMPLES, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    lead=st.lists(st.integers(1, 3), max_size=2),
    m=SIZES,
    k=TERMS,
    n=SIZES,
    kind=st.sampled_from(LAYOUTS),
    of_a=st.sampled_from(BYTES),
    of_b=st.sampled_from(BYTES),
    a_zero=st.sampled_from([None, "one", "rows", "all"]),
    b_zero=st.sampled_from([None, "one", "columns"]),
)
def test_integers_are_exact(isa, seed, lead, m, k, n, kind, of_a, of_b, a_zero, b_zero):
    rng = np.random.default_rng(seed)
    shape = (*lead, m, n)
    a, w = drawn(rng, (*lead, m, k), of_a), drawn(rng, (k, n), of_b)
    dims = {None: None, "one": (1,) * len(shape), "rows": (*[1] * len(lead), m, 1), "all": (*lead, m, 1)}[a_zero]
    left_zero = None if dims is None else broadcast(rng, drawn(rng, dims, of_a), shape)
    right_zero = None if b_zero is None else drawn(rng, (n,) if b_zero == "columns" else (1,) * int(rng.integers(2)), of_b)
    b, zeros = packed(w, right_zero)
    inputs = [laid_out(rng, a, kind), b, None, None, None, left_zero]
    out = layout(rng, shape, np.int32, kind == "plain")
    whole = run("QGEMM", out, inputs, params(zeros), isa=isa)
    points = None if left_zero is None else left_zero[..., :1]
    np.testing.assert_array_equal(whole, wrapped(sums(a, points, w, right_zero)))
    tiles = boxes(rng, shape, int(rng.integers(2, 9)))
    inputs[0] = laid_out(rng, a, str(rng.choice(LAYOUTS)))
    assert same_bits(whole, run("QGEMM", layout(rng, shape, np.int32), inputs, params(True), tiles, isa))


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=EXAMPLES, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    lead=st.lists(st.integers(1, 3), max_size=2),
    m=SIZES,
    k=TERMS,
    n=SIZES,
    kind=st.sampled_from(LAYOUTS),
    types=st.tuples(st.sampled_from(BYTES), st.sampled_from(BYTES)),
    zeros=st.tuples(st.sampled_from([None, "one", "m"]), st.booleans()),
    factor=st.sampled_from([None, "one", "n", "m", "all"]),
    bias=st.sampled_from([None, "n", "n", "m", "all"]),
    residual=st.sampled_from([None, None, "all", "n", "m"]),
    residual_last=st.integers(0, 2),
    activation=st.sampled_from(sorted(ACTIVATIONS)),
)
def test_floats(isa, seed, lead, m, k, n, kind, types, zeros, factor, bias, residual, residual_last, activation):
    rng = np.random.default_rng(seed)
    shape, (of_a, of_b), plain = (*lead, m, n), types, kind == "plain"
    ones = (1,) * len(lead)

    def operand(of: str | None, scale: float = 1.0) -> np.ndarray | None:
        dims = {None: None, "n": (*ones, 1, n), "m": (*ones, m, 1), "one": (*ones, 1, 1), "all": shape}[of]
        return None if dims is None else broadcast(rng, (rng.standard_normal(dims) * scale).astype(np.float32), shape, plain)

    a, w = drawn(rng, (*lead, m, k), of_a), drawn(rng, (k, n), of_b)
    left_zero = None if zeros[0] is None else broadcast(rng, drawn(rng, (*ones, m if zeros[0] == "m" else 1, 1), of_a), shape)
    right_zero = drawn(rng, (n,), of_b) if zeros[1] else None
    b, any_zeros = packed(w, right_zero)
    factors, biases, residuals = operand(factor, 1e-4 / k**0.5), operand(bias), operand(residual)
    inputs = [laid_out(rng, a, kind), b, biases, residuals, factors, left_zero]
    p = params(any_zeros, activation, residual_last)
    out = layout(rng, shape, plain=plain)
    whole = run("QGEMM", out, inputs, p, isa=isa)

    total = sums(a, None if left_zero is None else left_zero[..., :1], w, right_zero)
    scaled = total * (1.0 if factors is None else factors.astype(np.float64))
    with np.errstate(over="ignore", invalid="ignore"):
        wanted, size = epilogue(scaled, np.abs(scaled), activation, biases, residuals, None, None, residual_last)
        error = np.abs(whole - wanted)
    bound = 16 * 2.0**-24 * (size + np.abs(wanted)) + 1e-7
    assert (error <= bound).all(), f"worst error {error.max():.3g}, bound there {bound.reshape(-1)[error.argmax()]:.3g}"
    if activation == "IDENTITY":  # each step rounds by itself
        exact = total.astype(np.int32).astype(np.float32)
        for extra, last in ((factors, None), (biases, None), (residuals, residual_last)):
            if extra is not None:
                exact = exact * extra if last == 2 or extra is factors else exact + extra
        np.testing.assert_array_equal(whole, exact)

    tiles = boxes(rng, shape, int(rng.integers(2, 9)))
    relaid = [laid_out(rng, a, str(rng.choice(LAYOUTS))), b, *(None if x is None else filled(rng, x) for x in inputs[2:])]
    assert same_bits(whole, run("QGEMM", layout(rng, shape), relaid, p, tiles, isa)), "bits depend on tile or layout"


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=EXAMPLES, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    lead=st.lists(st.integers(1, 3), max_size=1),
    m=SIZES,
    k=TERMS,
    n=SIZES,
    kind=st.sampled_from(LAYOUTS),
    types=st.tuples(*[st.sampled_from(BYTES)] * 3),
    of_scale=st.sampled_from(["fit", "fit", "ties", "odd"]),
    operands=st.tuples(*[st.booleans()] * 4),
    edges=st.booleans(),
    residual_last=st.integers(0, 2),
    activation=st.sampled_from(sorted(ACTIVATIONS)),
)
def test_bytes_are_what_quantize_makes_of_floats(
    isa, seed, lead, m, k, n, kind, types, of_scale, operands, edges, residual_last, activation
):
    rng = np.random.default_rng(seed)
    shape, plain, (of_a, of_b, to) = (*lead, m, n), kind == "plain", types
    a, w = drawn(rng, (*lead, m, k), of_a), drawn(rng, (k, n), of_b)
    if of_scale == "ties":  # of few and small terms, so that they are sums of floats, too
        a, w = rng.integers(0, 4, a.shape).astype(of_a), rng.integers(0, 4, w.shape).astype(of_b)
        activation = "IDENTITY"
    b, zeros = packed(w, drawn(rng, (n,), of_b) if operands[3] and of_scale != "ties" else None)
    inputs = [laid_out(rng, a, kind), b, None, None, None]
    for i, size in ((2, 1.0), (3, 1.0), (4, 1e-4 / k**0.5)):
        if operands[i - 2] and of_scale != "ties":
            values = rng.standard_normal([1 if rng.random() < 0.3 else d for d in shape]) * size
            values = np.where(edges & (rng.random(values.shape) < 0.1), rng.choice(EDGES, values.shape), values)
            inputs[i] = broadcast(rng, values.astype(np.float32), shape, plain)
    floats = run("QGEMM", layout(rng, shape, plain=plain), inputs, params(zeros, activation, residual_last), isa=isa)
    info = np.iinfo(to)
    scale, zero = scale_of(rng, floats, of_scale), int(rng.integers(info.min, info.max + 1))
    p = params(zeros, activation, residual_last, scale, zero)
    whole = run("QGEMM", layout(rng, shape, to, plain), inputs, p, isa=isa)
    np.testing.assert_array_equal(whole, quantised(floats, scale, zero, to, isa), f"scale {scale}, zero {zero}")
    tiles = boxes(rng, shape, int(rng.integers(2, 9)))
    inputs[0] = laid_out(rng, a, str(rng.choice(LAYOUTS)))
    assert same_bits(whole, run("QGEMM", layout(rng, shape, to), inputs, p, tiles, isa)), "bits depend on tile or layout"


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("to", BYTES)
def test_every_edge_over_every_scale(isa, to):
    """The bias has the values: whatever a float may be, and both neighbours of halves."""
    rng = np.random.default_rng(5)
    scales = np.array([*ODD_SCALES, 1.0, 0.1, 0.3, 1 / 3, 0.007, 7.0, 255.0, 1e-20, 1e20, 2.0**-20, *rng.random(30)], np.float32)
    with np.errstate(all="ignore"):
        for scale in scales:
            halves = (np.arange(-600, 600) / 2).astype(np.float32) * scale
            near = [halves, np.nextafter(halves, np.float32(np.inf)), np.nextafter(halves, np.float32(-np.inf))]
            some = rng.standard_normal(1000).astype(np.float32) * 100 * scale
            values = np.concatenate([np.array(EDGES, np.float32), *near, some]).astype(np.float32)
            a, (b, _) = np.zeros((2, 4), np.uint8), packed(np.zeros((4, values.size), np.int8), None)
            bias, zero = np.broadcast_to(values, (2, values.size)), int(np.iinfo(to).min) + 100
            got = run("QGEMM", np.empty(bias.shape, to), [a, b, bias], params(0, scale=float(scale), zero=zero), isa=isa)
            floats = run("QGEMM", np.empty(bias.shape, np.float32), [a, b, bias], params(0), isa=isa)
            want = quantised(floats, float(scale), zero, to, isa)
            wrong = np.flatnonzero(got[0] != want[0])
            assert (got == want).all(), f"scale {scale!r}: {[(values[i], got[0, i], want[0, i]) for i in wrong[:5]]}"


@pytest.mark.parametrize("isa", ISAS)
def test_every_number_of_rows_and_terms(isa):
    """Each micro-kernel, with sums shared out and not, in place and copied; and boxes that begin and end inside a panel."""
    rng = np.random.default_rng(3)
    for m in range(1, 31):
        for k in (1, 2, 3, 4, 7, 8, 12, 16, 20, 64, 131):
            a, w = drawn(rng, (m, k), np.uint8), drawn(rng, (k, 75), np.int8)
            b, _ = packed(w, None)
            out, wanted = np.empty((m, 75), np.int32), sums(a, None, w, None)
            for given_a in (a, laid_out(rng, a, "apart"), laid_out(rng, a, "columns")):
                np.testing.assert_array_equal(run("QGEMM", out, [given_a, b], params(0), isa=isa), wanted)
            parts = [([0, 0], [m, 15]), ([0, 15], [m, 47]), ([0, 47], [m, 48]), ([0, 48], [m, 75])]
            np.testing.assert_array_equal(run("QGEMM", out, [a, b], params(0), parts, isa=isa), wanted)


@pytest.mark.parametrize("isa", ISAS)
def test_sums_wrap(isa):
    """So many of the largest products that 32 bits do not hold the sum; of rows in place and copied, and with the zero points' shares."""
    for m, k, n in ((2, 33100, 3), (15, 66000, 33)):
        a, w = np.full((m, k), 255, np.uint8), np.full((k, n), -128, np.int8)
        a[1::2], w[:, 1::2] = 1, 127
        left, right = np.full((m, n), 0, np.uint8), np.array([127, -128, 5] * n, np.int8)[:n]
        left[1::2] = 255
        for of_a, of_b in ((None, None), (left, None), (None, right), (left, right)):
            b, zeros = packed(w, of_b)
            total = sums(a, None if of_a is None else of_a[:, :1], w, of_b)
            out = run("QGEMM", np.empty((m, n), np.int32), [a, b, None, None, None, of_a], params(zeros), isa=isa)
            np.testing.assert_array_equal(out, wrapped(total))
            floats = run("QGEMM", np.empty((m, n), np.float32), [a, b, None, None, None, of_a], params(zeros), isa=isa)
            np.testing.assert_array_equal(floats, wrapped(total).astype(np.float32))
    assert (np.abs(total) >= 2**31).any()


@pytest.mark.parametrize("of_b", BYTES)
@pytest.mark.parametrize("zero", [None, "one", "columns"])
def test_packing(of_b, zero):
    rng = np.random.default_rng(8)
    for k, n in ((1, 1), (7, 33), (8, 32), (21, 70)):
        w = drawn(rng, (k, n), of_b)
        point = None if zero is None else drawn(rng, (n,) if zero == "columns" else (), of_b)
        panels, zeros = packed(w, point)
        assert same_bits(panels, packed_by_hand(w, point))
        stored = (0 if point is None else point.astype(int)) - (128 if of_b == np.uint8 else 0)
        assert zeros == bool(np.any(stored))
        a = drawn(rng, (5, k), np.int8)
        out = np.empty((5, n), np.int32)
        for given_zeros in {zeros, True}:
            result = run("QGEMM", out, [a, packed_by_hand(w, point)], params(given_zeros))
            np.testing.assert_array_equal(result, sums(a, None, w, point))


def test_equal_zero_points_are_one():
    """A zero point of each column that are all the same is packed as one; u8 128 is no zero point at all."""
    w = np.arange(12, dtype=np.uint8).reshape(3, 4)
    panels, zeros = packed(w, np.full(4, 7, np.uint8))
    assert zeros
    assert same_bits(panels[..., :4, :], packed(w, np.array(7, np.uint8))[0][..., :4, :])
    assert not packed(w, np.full(4, 128, np.uint8))[1]


@pytest.mark.parametrize("isa", ISAS)
def test_empty_sum_is_zero(isa):
    a, (b, _) = np.empty((3, 0), np.uint8), packed(np.empty((0, 5), np.int8), None)
    assert (run("QGEMM", np.empty((3, 5), np.int32), [a, b], params(0), isa=isa) == 0).all()
    bias = np.broadcast_to(np.arange(5, dtype=np.float32), (3, 5))
    assert (run("QGEMM", np.empty((3, 5), np.float32), [a, b, bias], params(1), isa=isa) == bias).all()


@pytest.mark.parametrize("isa", ISAS)
def test_infinity_and_nan_of_operands_stay_where_they_are(isa):
    rng = np.random.default_rng(4)
    a, (b, _) = drawn(rng, (9, 40), np.uint8), packed(drawn(rng, (40, 70), np.int8), None)
    factor, bias = np.ones((1, 70), np.float32), np.zeros((1, 70), np.float32)
    plain = run("QGEMM", np.empty((9, 70), np.float32), [a, b], params(0), isa=isa)
    factor[0, 5], bias[0, 37] = np.nan, -np.inf
    result = run(
        "QGEMM",
        np.empty((9, 70), np.float32),
        [a, b, *(np.broadcast_to(x, (9, 70)) for x in (bias,)), None, np.broadcast_to(factor, (9, 70))],
        params(0),
        isa=isa,
    )
    assert np.isnan(result[:, 5]).all()
    assert (result[:, 37] == -np.inf).all()
    others = np.setdiff1d(np.arange(70), [5, 37])
    assert same_bits(result[:, others], plain[:, others])


def test_no_rows_and_no_columns():
    a, (b, _) = np.ones((3, 8), np.uint8), packed(np.ones((8, 40), np.int8), None)
    out = np.full((3, 40), 5, np.int32)
    for lo, hi in (([1, 0], [1, 40]), ([0, 33], [3, 33])):
        assert _kernels.call("QGEMM", [out, a, b], params(0), lo, hi) == 0
    assert (out == 5).all()


def bytes_scratch(rows: int, depth: int) -> int:
    """Bytes that QGEMM takes for so many rows: where each is, and copies of them, which do not lie a multiple of 4096 bytes apart."""
    row = -(-depth // 64) * 64
    return rows * (48 + row + (64 if row % 4096 == 0 else 0)) + 64


@pytest.mark.parametrize("depth", [1, 4, 63, 64, 65, 768, 4032, 4033, 4096, 4097, 8192])
def test_the_scratch_is_of_rows_alone(depth):
    rng = np.random.default_rng(depth)
    for lead, m in (((), 1), ((), 2), ((), 7), ((2, 3), 5)):
        shape = (*lead, m, 33)
        a, w = laid_out(rng, drawn(rng, (*lead, m, depth), np.int8), "apart"), drawn(rng, (depth, 33), np.int8)
        (b, zeros), out = packed(w, None), np.empty(shape, np.int32)
        rows = out.size // 33
        asked = _kernels.scratch("QGEMM", [out, a, b], params(zeros), [0] * out.ndim, shape)
        assert asked == bytes_scratch(rows, depth)
        part = [*[0] * len(lead), m - 1, 3], [*shape[:-1], 8]
        assert _kernels.scratch("QGEMM", [out, a, b], params(zeros), *part) == bytes_scratch(rows // m, depth)
        for isa in ISAS:
            assert _kernels.call("QGEMM", [out, a, b], params(zeros), [0] * out.ndim, shape, isa, asked) == 0
            np.testing.assert_array_equal(out, sums(a, None, w, None))
            out[...] = 7
            assert _kernels.call("QGEMM", [out, a, b], params(zeros), [0] * out.ndim, shape, isa, asked - 1) == SCRATCH
            assert (out == 7).all()


@pytest.mark.parametrize("isa", ISAS)
def test_bad_arguments_are_refused(isa):
    a, (b, _) = np.ones((2, 3), np.uint8), packed(np.ones((3, 5), np.int8), None)
    whole, single = np.empty((2, 5), np.int32), np.empty((2, 5), np.float32)
    extra = np.ones((2, 5), np.float32)

    def qgemm(*args: np.ndarray | None, p: list[int | float] | None = None) -> int:
        return _kernels.call("QGEMM", list(args), p or params(0), [0] * args[0].ndim, args[0].shape, isa)

    assert qgemm(whole, a, b) == qgemm(single, a, b, extra, extra, extra, np.ones((2, 5), np.uint8)) == 0
    assert qgemm(np.empty((2, 5), np.float64), a, b) == BAD_ARGUMENT
    assert qgemm(np.empty((2, 5), np.uint32), a, b) == BAD_ARGUMENT
    assert qgemm(whole, a.astype(np.float32), b) == BAD_ARGUMENT
    assert qgemm(whole, a.astype(np.int16), b) == BAD_ARGUMENT
    assert qgemm(whole, a, b.view(np.uint8)) == BAD_ARGUMENT
    assert qgemm(whole, a, b[0]) == BAD_ARGUMENT
    assert qgemm(whole, a[None], b) == BAD_ARGUMENT
    assert qgemm(whole[0], a[0], b) == BAD_ARGUMENT
    for place in range(3):
        before = [None] * place
        assert qgemm(whole, a, b, *before, extra) == BAD_ARGUMENT, "sums themselves take nothing"
        assert qgemm(single, a, b, *before, extra.astype(np.float64)) == BAD_ARGUMENT
        assert qgemm(single, a, b, *before, extra[None]) == BAD_ARGUMENT
    for zero in (extra, np.ones((2, 5), np.int8), np.ones(5, np.uint8)):
        assert qgemm(single, a, b, None, None, None, zero) == BAD_ARGUMENT
    assert qgemm(single, a, b, p=[0, len(UNARY), 0.0, 0.0, 0, 1.0, 0, 1.0, 0]) == BAD_ARGUMENT
    assert qgemm(single, a, b, p=[0, -1, 0.0, 0.0, 0, 1.0, 0, 1.0, 0]) == BAD_ARGUMENT


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("of", BYTES)
@pytest.mark.parametrize("to", [np.float32, *BYTES])
def test_residuals_of_bytes(isa, of, to):
    """They are what they stand for, in every place, layout and tile."""
    rng = np.random.default_rng(3)
    for m, n, k, plain, last in itertools.product((1, 3, 17), (1, 16, 31, 33, 64), (4, 21), (False, True), (0, 1, 2)):
        b, zeros = packed(drawn(rng, (k, n), np.int8), None)
        levels, terms, values = stored(rng, (m, n), of, plain)
        a, factor = drawn(rng, (m, k), np.uint8), np.full((1, 1), 1e-3, np.float32)
        activation = str(rng.choice(sorted(ACTIVATIONS)))
        p = [params(zeros, activation, last, 0.37 if to != np.float32 else 1.0, 3, of_bytes) for of_bytes in ((1.0, 0), terms)]
        found = [
            run("QGEMM", layout(rng, (m, n), to, plain), [a, b, None, x, np.broadcast_to(factor, (m, n))], by, isa=isa)
            for x, by in zip((values, levels), p, strict=True)
        ]
        assert same_bits(*found), f"{m}x{n}x{k}, {activation}, residual_last {last}"


# ------------------------------------------------------------------------------------------------------ without the instruction


def digests() -> str:
    """Of results over many shapes, a line for each ISA."""
    lines = []
    for isa in ISAS:
        rng, state = np.random.default_rng(77), hashlib.sha256()
        for activation in sorted(ACTIVATIONS):
            for m, k, n in ((1, 130, 70), (3, 64, 33), (9, 37, 100), (14, 256, 32), (29, 515, 65), (75, 1100, 40)):
                a, w = (drawn(rng, dims, BYTES[int(rng.integers(2))]) for dims in ((m, k), (k, n)))
                b, zeros = packed(w, drawn(rng, (n,), w.dtype.type))
                factor, bias, residual = (broadcast(rng, rng.standard_normal(d, np.float32), (m, n)) for d in ((1, n), (1, n), (m, n)))
                factor = factor * np.float32(1e-4)
                point = broadcast(rng, drawn(rng, (m, 1), a.dtype.type), (m, n))
                state.update(run("QGEMM", np.empty((m, n), np.int32), [a, b, None, None, None, point], params(zeros), isa=isa))
                operands = [a, b, bias, residual, factor, point]
                state.update(run("QGEMM", np.empty((m, n), np.float32), operands, params(zeros, activation, m % 3), isa=isa))
                state.update(run("QGEMM", np.empty((m, n), np.int8), operands, params(zeros, activation, m % 3, 0.03, 7), isa=isa))
        lines.append(f"{isa} {_isa.sums_bytes(isa)} {state.hexdigest()}")
    return "\n".join(lines)


def test_without_the_instruction_bits_are_the_same(tmp_path):
    check_digests(tmp_path, "test_qgemm", digests())


def test_all_of_this_without_the_instruction(tmp_path):
    check_without(tmp_path, __file__, has=_isa.sums_bytes)


def test_twin_of_amx_has_the_same_bits(tmp_path):
    check_digests(tmp_path, "test_qgemm", digests(), *TWIN)


def test_all_of_this_by_the_twin_of_amx(tmp_path):
    check_without(tmp_path, __file__, *TWIN)
