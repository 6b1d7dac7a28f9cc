"""GEMM in seven products of halves, and the left factors that STRASSEN makes for it, on every ISA against float64."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_tools import ACTIVATIONS, ISAS, boxes, broadcast, epilogue, filled, layout, pack_panels, run, same_bits

from aspen_mp.planner.ir.graph import Stored, Tensor
from aspen_mp.planner.ops.packing import low_bit
from aspen_mp.planner.ops.products import STRASSEN_PART, left_factors, strassen_scratch
from aspen_mp.workers import _kernels

SIZES = st.one_of(st.integers(1, 40), st.sampled_from([1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 96, 100, 129]))
HALVES = st.one_of(SIZES, st.sampled_from([192, 193, 200, 207, 385, 400, 577]))
FURTHER = 6.0
"""How much further these products may be off than direct ones, beside the largest of a pair's rows and columns."""


def params(alpha: float = 1.0, activation: str = "IDENTITY", residual_last: int = 0) -> list[int | float]:
    return [1, alpha, *ACTIVATIONS[activation], residual_last, 0, 0]


def parts(half: int) -> list[range]:
    """Terms of a half that are multiplied at a time: whole lines but for the last part."""
    each = -(-half // (16 * -(-half // STRASSEN_PART))) * 16
    return [range(lo, min(lo + each, half)) for lo in range(0, half, each)]


def left_of(a: np.ndarray, isa: str) -> np.ndarray:
    return run("STRASSEN", np.full(left_factors(a.shape), 7, np.float32), [a], [], isa=isa)


def with_partners(magnitude: np.ndarray) -> np.ndarray:
    """The largest magnitude of each pair of rows (2 i, 2 i + 1) and of panels."""
    *_, m, n = magnitude.shape
    wide = np.zeros((*magnitude.shape[:-2], -(-m // 2) * 2, -(-n // 64) * 64))
    wide[..., :m, :n] = magnitude
    quads = wide.reshape(*magnitude.shape[:-2], -(-m // 2), 2, -(-n // 64), 64)
    return np.broadcast_to(quads.max(axis=(-3, -1), keepdims=True), quads.shape).reshape(wide.shape)[..., :m, :n]


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), batch=st.lists(st.integers(1, 3), max_size=2), m=SIZES, half=HALVES, plain=st.booleans())
def test_left_factors(isa, seed, batch, m, half, plain):
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((*batch, m, 2 * half), dtype=np.float32)
    rows *= (10.0 ** rng.integers(-1, 2, (*batch, m, 1))).astype(np.float32)
    ill = rng.random((*batch, m)) < 0.1
    rows[ill, rng.integers(2 * half)] = rng.choice(np.array([np.nan, np.inf, -np.inf, 2e15], np.float32))
    a = filled(rng, rows, plain)
    out = np.full(left_factors(a.shape), 7, np.float32)
    result = run("STRASSEN", out, [a], [], isa=isa)
    even, odd = rows[..., ::2, :], rows[..., [*range(1, m, 2), *[m - 1] * (m % 2)], :]  # a last row is its own partner
    (a11, a12), (a21, a22) = ((x[..., :half], x[..., half:]) for x in (even, odd))
    with np.errstate(invalid="ignore", over="ignore"):
        factors = np.stack([a11 + a22, a21 + a22, a11, a22, a11 + a12, a21 - a11, a12 - a22], axis=-2)
        tops = np.abs(even).max(axis=-1), np.abs(odd).max(axis=-1)
        alike = (tops[0] < 1e15) & (tops[1] < 1e15) & (tops[0] <= 8 * tops[1]) & (tops[1] <= 8 * tops[0])
    wanted, at = np.zeros_like(result), 0
    for part in parts(half):
        for i in range(7):
            wanted[..., at : at + len(part)] = factors[..., i, part]
            at += -(-len(part) // 16) * 16
    wanted[..., -1] = alike
    np.testing.assert_array_equal(result, wanted)
    assert result.shape[-1] // 16 % 2 == 1
    pieces = [([*lo, 0], [*hi, out.shape[-1]]) for lo, hi in boxes(rng, out.shape[:-1], int(rng.integers(2, 6)))]
    assert same_bits(result, run("STRASSEN", out, [filled(rng, rows)], [], pieces, isa))


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    batch=st.lists(st.integers(1, 3), max_size=2),
    m=st.one_of(SIZES, st.integers(120, 300)),
    half=HALVES,
    n=st.one_of(SIZES, st.sampled_from([128, 160, 192, 200])),
    plain=st.booleans(),
    alpha=st.sampled_from([1.0, -1.7]),
    activation=st.sampled_from(sorted(ACTIVATIONS)),
    bias=st.sampled_from([None, "n", "m", "all"]),
    residual=st.sampled_from([None, "all", "n"]),
    residual_last=st.integers(0, 2),
    scaled=st.booleans(),
    unlike=st.booleans(),
)
def test_against_float64(isa, seed, batch, m, half, n, plain, alpha, activation, bias, residual, residual_last, scaled, unlike):
    """Near float64, and the same bits whatever the tile and the layout, rows of any size side by side."""
    rng = np.random.default_rng(seed)
    k, shape = 2 * half, (*batch, m, n)

    def values(*dims: int) -> np.ndarray:
        return rng.standard_normal(dims, dtype=np.float32)

    def addend(kind: str | None) -> np.ndarray | None:
        ones = (1,) * len(batch)
        dims = {None: None, "n": (*ones, 1, n), "m": (*ones, m, 1), "all": shape}[kind]
        return None if dims is None else broadcast(rng, values(*dims), shape, plain)

    rows = values(*batch, m, k)
    if unlike:
        rows *= (10.0 ** rng.integers(-3, 4, (*batch, m, 1))).astype(np.float32)
    a, w = filled(rng, rows, plain), values(k, n)
    bias_values, residual_values = addend(bias), addend(residual)
    scale, shift = (values(n), values(n)) if scaled else (None, None)
    b, out, left = pack_panels(w), layout(rng, shape, plain=plain), left_of(a, isa)
    p = params(alpha, activation, residual_last)
    whole = run("GEMM", out, [a, b, bias_values, residual_values, scale, shift, left], p, isa=isa)

    a64, b64 = rows.astype(np.float64), w.astype(np.float64)
    wanted, size = alpha * (a64 @ b64), abs(alpha) * (np.abs(a64) @ np.abs(b64))
    top = np.abs(a64).max(axis=-1, keepdims=True)  # halves of a row and of a column are added, too
    size = np.maximum(size, abs(alpha) * top * np.abs(b64).max(axis=0) * k / 4)
    rest = (activation, bias_values, residual_values, scale, shift, residual_last)
    alone, _ = epilogue(wanted, size, *rest)
    _, most = epilogue(wanted, np.minimum(with_partners(size), 8 * size.max(axis=-1, keepdims=True)), *rest)
    error = np.abs(whole - alone)
    bound = FURTHER * (k + 8) * 2.0**-24 * most * 1.5 + 8 * 2.0**-24 * np.abs(alone) + 1e-7
    assert (error <= bound).all(), f"worst error {error.max():.3g}, bound there {bound.reshape(-1)[error.argmax()]:.3g}"

    tiles = boxes(rng, shape, int(rng.integers(2, 9)))
    assert same_bits(whole, run("GEMM", out, [a, b, bias_values, residual_values, scale, shift, left], p, tiles, isa))
    extras = [None if e is None else filled(rng, e) for e in (bias_values, residual_values)]
    relaid = [filled(rng, a), b, *extras, scale, shift, left]
    assert same_bits(whole, run("GEMM", layout(rng, shape), relaid, p, tiles, isa)), "bits depend on the layout"


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16])
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    m=st.one_of(SIZES, st.integers(120, 300)),
    half=HALVES,
    n=st.one_of(SIZES, st.sampled_from([128, 160, 192, 200])),
    unlike=st.booleans(),
    extras=st.booleans(),
)
def test_weights_of_half_precision(isa, kind, seed, m, half, n, unlike, extras):
    """QNBITGEMM has the bits of GEMM over the same weights as floats, whatever the tile."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((m, 2 * half), dtype=np.float32)
    if unlike:
        rows *= (10.0 ** rng.integers(-1, 2, (m, 1))).astype(np.float32)
    values = rng.standard_normal((2 * half, n)).astype(kind)
    weight = Stored(Tensor("w", values.shape, values.dtype, data=values), None, None)
    form = low_bit.form_of(weight)
    assert form is not None
    b = np.empty(low_bit.packed_shape(2 * half, n, form.bits, form.block, form.zeros), np.uint8)
    low_bit.pack(weight, form, b)
    more = [rng.standard_normal((m, n), dtype=np.float32) if extras else None for _ in range(2)]
    rest, out = [*more, None, None, left_of(rows, isa)], np.empty((m, n), np.float32)
    p = [1.0, *ACTIVATIONS["RELU"], 0, form.bits, form.block, int(form.zeros), form.zero]
    wanted = run("GEMM", out.copy(), [rows, pack_panels(values.astype(np.float32)), *rest], params(1.0, "RELU"), isa=isa)
    assert same_bits(wanted, run("QNBITGEMM", out.copy(), [rows, b, *rest], p, isa=isa))
    assert same_bits(wanted, run("QNBITGEMM", out.copy(), [rows, b, *rest], p, boxes(rng, out.shape, int(rng.integers(2, 9))), isa))
    asked = _kernels.scratch("QNBITGEMM", [out, rows, b, *rest], p, [0, 0], out.shape)
    assert asked == strassen_scratch(2 * half, halves=True)
    assert _kernels.call("QNBITGEMM", [out, rows, b, *rest], p, [0, 0], out.shape, isa, asked - 1) == 3
    four = [*p[:5], 4, 2 * half, 0, 8]
    assert _kernels.call("QNBITGEMM", [out, rows, b, *rest], four, [0, 0], out.shape, isa) == 2


@pytest.mark.parametrize("isa", ISAS)
def test_rows_keep_to_themselves(isa):
    """What is not finite, or far larger than its neighbour, shows in its own row alone; pairs that are not alike have the bits of the
    direct way."""
    rng = np.random.default_rng(2)
    a, w = rng.standard_normal((130, 256), dtype=np.float32), rng.standard_normal((256, 96), dtype=np.float32)
    ill = {7: np.nan, 20: np.inf, 33: -np.inf, 50: 1e30, 128: np.nan}
    for row, value in ill.items():
        a[row, row] = value
    a[64] *= 1e4
    a[90] = 0
    out, b = np.empty((130, 96), np.float32), pack_panels(w)
    halved = run("GEMM", out, [a, b, None, None, None, None, left_of(a, isa)], params(), isa=isa)
    direct = run("GEMM", out, [a, b], params(), isa=isa)
    unlike = sorted({r // 2 * 2 + k for r in [*ill, 64, 90] for k in range(2)})
    assert same_bits(halved[unlike], direct[unlike])
    assert np.isfinite(halved[[6, 21, 32, 51, 129]]).all()
    others = np.setdiff1d(np.arange(130), unlike)
    assert not same_bits(halved[others, :64], direct[others, :64])
    assert same_bits(halved[:, 64:], direct[:, 64:]), "a panel without a partner"
    np.testing.assert_allclose(halved[others], a[others].astype(np.float64) @ w, rtol=0, atol=2e-4)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("m", "k", "n"), [(300, 600, 128), (128, 3072, 160), (517, 512, 64)])
def test_large(isa, m, k, n):
    """More pairs than are taken at a time, and more terms than stay in a cache."""
    rng = np.random.default_rng(m)
    a, w = rng.standard_normal((m, k), dtype=np.float32), rng.standard_normal((k, n), dtype=np.float32)
    result = run("GEMM", np.empty((m, n), np.float32), [a, pack_panels(w), *[None] * 4, left_of(a, isa)], params(), isa=isa)
    wanted = a.astype(np.float64) @ w
    assert np.abs(result - wanted).max() <= 4e-6 * np.abs(wanted).max()


@pytest.mark.parametrize("terms", [2, 64, 384, 386, 512, 768, 1000, 3072, 4096, 11008])
def test_the_planner_knows_the_scratch(terms):
    out, a, b = (np.empty(shape, np.float32) for shape in ((2, 64), (2, terms), (2, terms, 32)))
    left = np.empty(left_factors(a.shape), np.float32)
    assert _kernels.scratch("GEMM", [out, a, b, None, None, None, None, left], params(), [0, 0], [2, 64]) == strassen_scratch(terms)


def test_bad_arguments_are_refused():
    a, b, out = np.ones((4, 6), np.float32), pack_panels(np.ones((6, 70), np.float32)), np.empty((4, 70), np.float32)
    left = left_of(a, ISAS[0])

    def gemm(operands: list[np.ndarray | None], packed: int = 1) -> int:
        return _kernels.call("GEMM", operands, [packed, *params()[1:]], [0, 0], operands[0].shape, ISAS[0])

    good: list[np.ndarray | None] = [out, a, b, None, None, None, None]
    assert gemm([*good, left]) == 0
    assert gemm([*good, left], packed=0) == 2
    assert gemm([*good, left[:1]]) == 2
    assert gemm([*good, left[:, :-16]]) == 2
    assert gemm([*good, left.astype(np.float64)]) == 2
    assert gemm([*good, left.repeat(2, axis=1)[:, ::2]]) == 2
    odd = [out, np.ones((4, 5), np.float32), pack_panels(np.ones((5, 70), np.float32)), None, None, None, None]
    assert gemm([*odd, left]) == 2

    def make(to: np.ndarray, rows: np.ndarray, lo: list[int], hi: list[int]) -> int:
        return _kernels.call("STRASSEN", [to, rows], [], lo, hi, ISAS[0])

    assert make(left, a, [0, 0], list(left.shape)) == 0
    assert make(left, a, [0, 0], [2, 5]) == 2, "whole pairs alone"
    assert make(left, a[:2], [0, 0], list(left.shape)) == 2
    assert make(left, a[:, :5], [0, 0], list(left.shape)) == 2
    assert make(left.astype(np.float64), a, [0, 0], list(left.shape)) == 2
