"""QNBITGEMM on every ISA: against float64, with the bits of GEMM over the same weights as floats, whatever the tile."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_tools import ACTIVATIONS, ISAS, boxes, broadcast, epilogue, filled, layout, pack_panels, run, same_bits

from aspen_mp.planner.ir.graph import Stored, Tensor
from aspen_mp.planner.ops.packing import low_bit
from aspen_mp.shm.tables import UNARY
from aspen_mp.workers import _kernels

BAD_ARGUMENT, SCRATCH = 2, 3
KINDS = {"int4": (ml_dtypes.int4, -8, 8), "uint4": (ml_dtypes.uint4, 0, 16), "int8": (np.int8, -128, 128), "uint8": (np.uint8, 0, 256)}
ROWS = st.one_of(st.integers(1, 12), st.sampled_from([1, 1, 2, 3, 4, 5, 8, 9, 14, 16, 17, 31, 32, 33, 34, 47, 64, 65]))
SIZES = st.one_of(st.integers(1, 40), st.sampled_from([1, 7, 8, 9, 31, 32, 33, 63, 64, 65, 96, 100, 128, 129, 160, 200]))
HALVES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
BLOCKS = [8, 16, 24, 32, 64, 128, "all", "longer", "columns"]


def tensor(value: np.ndarray) -> Tensor:
    return Tensor("x", value.shape, value.dtype, data=value)


def stored(
    rng: np.random.Generator, kind: str, k: int, n: int, block: int | str, points: str, scales: type = np.float32
) -> tuple[Stored, np.ndarray]:
    """A weight in blocks of the given length, of all terms ("all"; "longer": that and more), or with a scale a column, and its value."""
    dtype, low, high = KINDS[kind]
    length = {"all": k, "longer": k + 5, "columns": k}.get(block, block) if isinstance(block, str) else block
    rows = -(-k // length)
    values = rng.integers(low, high, (k, n)).astype(dtype)
    scale = ((rng.random((rows, n)) + 0.1) * rng.choice([-1.0, 1.0], (rows, n)) / 16).astype(scales)
    zero = {"none": None, "one": np.full((rows, n), high // 2 + 1, np.int64), "many": rng.integers(low, high, (rows, n))}[points]
    zero = None if zero is None else zero.astype(dtype)
    wide = [np.zeros((k, n), np.float32) if x is None else np.repeat(x.astype(np.float32), length, 0)[:k] for x in (zero, scale)]
    floats = (values.astype(np.float32) - wide[0]) * wide[1]
    if block == "columns":
        scale, zero, length = scale[0], None if zero is None else zero[0], 0
    given = Stored(tensor(values), tensor(scale), None if zero is None else tensor(zero), 0 if length else 1, length)
    return given, floats


def halves(rng: np.random.Generator, kind: str, k: int, n: int) -> tuple[Stored, np.ndarray]:
    """A weight of half precision, subnormal numbers among them, and its value."""
    values = (rng.standard_normal((k, n)) * 10.0 ** rng.integers(-8, 2, (k, n))).astype(HALVES[kind])
    return Stored(tensor(values), None, None), values.astype(np.float32)


def packed(weight: Stored) -> tuple[np.ndarray, list[int]]:
    """By the planner's own functions: what it writes to a plan's weights, and the parameters that go with it."""
    form = low_bit.form_of(weight)
    assert form is not None
    k, n = weight.values.shape
    out = np.full(low_bit.packed_shape(k, n, form.bits, form.block, form.zeros), 0xAA, np.uint8)
    low_bit.pack(weight, form, out)
    return out, [form.bits, form.block, int(form.zeros), form.zero]


def params(form: list[int], alpha: float = 1.0, activation: str = "IDENTITY", residual_last: int = 0) -> list[int | float]:
    return [alpha, *ACTIVATIONS[activation], residual_last, *form]


def by_hand(weight: Stored, form: list[int]) -> np.ndarray:
    """As low_bit.h says it, an element at a time."""
    bits, block, zeros, _ = form
    offset = 1 << bits - 1 if weight.values.dtype in (np.dtype(np.int8), np.dtype(ml_dtypes.int4)) else 0
    k, n = weight.values.shape
    levels = weight.values.value().astype(np.int64) + offset
    per, panels = 32 // bits, []
    for first in range(0, n, 32):
        data = b""
        for b, start in enumerate(range(0, k, block)):
            terms = range(start, min(start + block, k))
            inside = [j if j < n else None for j in range(first, first + 32)]
            scale, zero = np.atleast_2d(weight.scale.value()), None if weight.zero is None else np.atleast_2d(weight.zero.value())
            data += np.array([0 if j is None else scale[b, j] for j in inside], np.float32).tobytes()
            if zeros and zero is not None:
                data += bytes(0 if j is None else int(zero[b, j]) + offset for j in inside)
            for group in range(0, len(terms), per):
                for j in inside:
                    word = sum(int(levels[i, j]) << t * bits for t, i in enumerate(terms[group : group + per])) if j is not None else 0
                    data += word.to_bytes(4, "little")
        panels.append(np.frombuffer(data, np.uint8))
    return np.stack(panels)


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=300, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    batch=st.lists(st.integers(1, 3), max_size=2),
    m=ROWS,
    k=SIZES,
    n=SIZES,
    kind=st.sampled_from(sorted([*KINDS, *HALVES])),
    block=st.sampled_from(BLOCKS),
    points=st.sampled_from(["none", "one", "many"]),
    scales=st.sampled_from([np.float32, np.float32, np.float16]),
    plain=st.booleans(),
    alpha=st.sampled_from([1.0, 1.0, 0.125, -1.7]),
    activation=st.sampled_from(sorted(ACTIVATIONS)),
    bias=st.sampled_from([None, "n", "m", "one", "all"]),
    residual=st.sampled_from([None, None, "all", "n"]),
    residual_last=st.integers(0, 2),
    scaled=st.booleans(),
)
def test_against_float64_and_gemm(
    isa, seed, batch, m, k, n, kind, block, points, scales, plain, alpha, activation, bias, residual, residual_last, scaled
):
    rng = np.random.default_rng(seed)
    shape, ones = (*batch, m, n), (1,) * len(batch)

    def values(*dims: int) -> np.ndarray:
        return rng.standard_normal(dims, dtype=np.float32)

    def addend(which: str | None) -> np.ndarray | None:
        dims = {None: None, "n": (*ones, 1, n), "m": (*ones, m, 1), "one": (*ones, 1, 1), "all": shape}[which]
        return None if dims is None else broadcast(rng, values(*dims), shape, plain)

    weight, floats = halves(rng, kind, k, n) if kind in HALVES else stored(rng, kind, k, n, block, points, scales)
    b, form = packed(weight)
    a = broadcast(rng, values(*[int(d if rng.random() < 0.6 else 1) for d in batch], m, k), (*batch, m, k), plain)
    bias_values, residual_values = addend(bias), addend(residual)
    scale, shift = (values(n), values(n)) if scaled else (None, None)
    extras = [bias_values, residual_values, scale, shift]
    p = params(form, alpha, activation, residual_last)
    whole = run("QNBITGEMM", layout(rng, shape, plain=plain), [a, b, *extras], p, isa=isa)

    a64 = a.astype(np.float64)
    wanted, magnitude = alpha * (a64 @ floats.astype(np.float64)), abs(alpha) * (np.abs(a64) @ np.abs(floats.astype(np.float64)))
    wanted, magnitude = epilogue(wanted, magnitude, activation, bias_values, residual_values, scale, shift, residual_last)
    error, bound = np.abs(whole - wanted), (k + 8) * 2.0**-24 * magnitude * 1.5 + 8 * 2.0**-24 * np.abs(wanted) + 1e-7
    assert (error <= bound).all()

    gemm = [1, alpha, *ACTIVATIONS[activation], residual_last, 0, 0]
    same = run("GEMM", layout(rng, shape, plain=plain), [a, pack_panels(floats), *extras], gemm, isa=isa)
    assert same_bits(whole, same), "other bits than those of the weights as floats"
    tiles = boxes(rng, shape, int(rng.integers(2, 9)))
    assert same_bits(whole, run("QNBITGEMM", layout(rng, shape, plain=plain), [a, b, *extras], p, tiles, isa))
    relaid = [filled(rng, a), b, *[None if e is None else filled(rng, e) for e in extras[:2]], scale, shift]
    assert same_bits(whole, run("QNBITGEMM", layout(rng, shape), relaid, p, tiles, isa)), "bits depend on tile or layout"


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("points", ["none", "one", "many"])
@pytest.mark.parametrize("block", [8, 32, "all", "columns"])
def test_packed_as_the_kernel_says(kind: str, points: str, block: int | str) -> None:
    rng = np.random.default_rng(7)
    for k, n in ((1, 1), (40, 33), (77, 70), (8, 64)):
        weight, _ = stored(rng, kind, k, n, block, points)
        found, form = packed(weight)
        np.testing.assert_array_equal(found, by_hand(weight, form))


@pytest.mark.parametrize("kind", sorted(HALVES))
def test_halves_packed_as_the_kernel_says(kind: str) -> None:
    """Pairs of terms of a column, the even one in the lower half of a word; zeros behind the last term and column."""
    rng = np.random.default_rng(7)
    for k, n in ((1, 1), (40, 33), (77, 70), (8, 64)):
        weight, _ = halves(rng, kind, k, n)
        found, form = packed(weight)
        assert form == [16, k, 0, int(kind == "bfloat16")]
        wide = np.zeros((-(-k // 2) * 2, -(-n // 32) * 32), np.uint16)
        wide[:k, :n] = weight.values.value().view(np.uint16)
        for panel, row in enumerate(found.view(np.uint16).reshape(len(found), -1, 32, 2)):
            for odd in range(2):
                np.testing.assert_array_equal(row[:, :, odd], wide[odd::2, 32 * panel : 32 * panel + 32])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", sorted(HALVES))
def test_every_half(isa: str, kind: str) -> None:
    """All 65536 patterns of bits become the floats that they are, for few rows and for many."""
    values = np.arange(1 << 16, dtype=np.uint16).reshape(2, -1).view(HALVES[kind])
    b, form = packed(Stored(tensor(values), None, None))
    wanted = values.astype(np.float32)
    for rows in (1, 2, 3, 4, 8, 70):
        for term in range(2):
            a = np.zeros((rows, 2), np.float32)
            a[:, term] = 1
            with np.errstate(all="ignore"):
                others = (wanted[1 - term] * np.float32(0) + wanted[term]).astype(np.float32)
            out = run("QNBITGEMM", np.empty((rows, 1 << 15), np.float32), [a, b], params(form), isa=isa)
            np.testing.assert_array_equal(out, np.broadcast_to(others, out.shape))


@pytest.mark.parametrize("isa", ISAS)
def test_extreme_scales(isa: str) -> None:
    """Subnormal, infinite and NaN scales are what DequantizeLinear makes of them."""
    rng = np.random.default_rng(3)
    weight, _ = stored(rng, "uint4", 48, 40, 16, "many")
    scale = weight.scale.value()
    scale[0, :8] = [1e-45, 1e-38, 3e38, -3e38, np.inf, -np.inf, np.nan, 0.0]
    b, form = packed(weight)
    assert weight.zero is not None
    wide = [np.repeat(x.astype(np.float32), 16, 0) for x in (weight.zero.value(), scale)]
    with np.errstate(all="ignore"):
        floats = (weight.values.value().astype(np.float32) - wide[0]) * wide[1]
    for m in (1, 3, 8, 40):
        a = rng.standard_normal((m, 48), dtype=np.float32)
        out, gemm = np.empty((m, 40), np.float32), [1, 1.0, *ACTIVATIONS["IDENTITY"], 0, 0, 0]
        want = run("GEMM", out.copy(), [a, pack_panels(floats)], gemm, isa=isa)
        np.testing.assert_array_equal(run("QNBITGEMM", out, [a, b], params(form), isa=isa), want)


@pytest.mark.parametrize("isa", ISAS)
def test_no_terms(isa: str) -> None:
    a, b, bias = np.empty((3, 0), np.float32), np.empty((2, 0), np.uint8), np.full((3, 40), 2.5, np.float32)
    assert (run("QNBITGEMM", np.empty((3, 40), np.float32), [a, b, bias], params([4, 32, 0, 8]), isa=isa) == 2.5).all()


@pytest.mark.parametrize("isa", ISAS)
def test_scratch(isa: str) -> None:
    """What a tile asks for is enough, and less is refused where it is used."""
    rng = np.random.default_rng(5)
    weight, _ = stored(rng, "int4", 100, 40, 32, "none")
    b, form = packed(weight)
    out, a = np.empty((65, 40), np.float32), rng.standard_normal((65, 100), dtype=np.float32)
    asked = _kernels.scratch("QNBITGEMM", [out, a, b], params(form), [0, 0], out.shape)
    assert asked == 128 * 100
    assert _kernels.call("QNBITGEMM", [out, a, b], params(form), [0, 0], out.shape, isa, asked) == 0
    assert _kernels.call("QNBITGEMM", [out, a, b], params(form), [0, 0], out.shape, isa, asked - 1) == SCRATCH


@pytest.mark.parametrize("isa", ISAS)
def test_bad_arguments(isa: str) -> None:
    rng = np.random.default_rng(1)
    weight, _ = stored(rng, "int4", 64, 40, 32, "many")
    b, form = packed(weight)
    a, out, extra = rng.standard_normal((2, 64), dtype=np.float32), np.empty((2, 40), np.float32), np.empty((2, 40), np.float32)

    def qnbitgemm(*args: np.ndarray | None, p: list[int | float] | None = None) -> int:
        return _kernels.call("QNBITGEMM", list(args), p or params(form), [0] * args[0].ndim, args[0].shape, isa)

    assert qnbitgemm(out, a, b) == qnbitgemm(out, a, b, extra, extra) == 0
    for bad in ([2, 32, 1, 0], [8, 32, 1, 0], [16, 32, 1, 0], [4, 0, 1, 0], [4, -32, 1, 0], [4, 16, 1, 0], [4, 64, 1, 0]):
        assert qnbitgemm(out, a, b, p=params(bad)) == BAD_ARGUMENT, bad
    for bad in ([16, 64, 0, 0], [16, 64, 0, 1]):
        assert qnbitgemm(out, a, b, p=params(bad)) == BAD_ARGUMENT, "bytes of a panel"
    words = np.zeros((2, 32 * 128), np.uint8)
    assert qnbitgemm(out, a, words, p=params([16, 64, 0, 0])) == qnbitgemm(out, a, words, p=params([16, 64, 0, 1])) == 0
    for bad in ([16, 64, 0, 2], [16, 64, 1, 0], [16, 64, 0, -1], [12, 64, 0, 0]):
        assert qnbitgemm(out, a, words, p=params(bad)) == BAD_ARGUMENT, bad
    for bad in ([4, 36, 1, 0], [4, 1 << 62, 1, 0], [4, 32, 0, 0], [4, 32, 2, 0], [4, 32, -1, 0], [4, 32, 1, 16], [4, 32, 1, -1]):
        assert qnbitgemm(out, a, b, p=params(bad)) == BAD_ARGUMENT, bad
    assert qnbitgemm(out, a, b, p=[1.0, len(UNARY), 0.0, 0.0, 0, *form]) == BAD_ARGUMENT
    assert qnbitgemm(out.astype(np.float64), a, b) == BAD_ARGUMENT
    assert qnbitgemm(out, a.astype(np.float64), b) == BAD_ARGUMENT
    assert qnbitgemm(out, a, b.view(np.int8)) == BAD_ARGUMENT
    assert qnbitgemm(out, a, b[:1]) == BAD_ARGUMENT
    assert qnbitgemm(out, a, b[:, :-4]) == BAD_ARGUMENT
    assert qnbitgemm(out, a, np.repeat(b, 2, 0)[::2]) == BAD_ARGUMENT
    assert qnbitgemm(out, a, np.repeat(b, 2, 1)[:, ::2]) == BAD_ARGUMENT
    assert qnbitgemm(out, a, b[None]) == BAD_ARGUMENT
    assert qnbitgemm(out, a[:, :56], b) == BAD_ARGUMENT
    assert qnbitgemm(out, a[None], b) == BAD_ARGUMENT
    assert qnbitgemm(out[0], a[0], b) == BAD_ARGUMENT
    assert qnbitgemm(out, a, b, extra[None]) == BAD_ARGUMENT
    unaligned = np.empty(b.size + 1, np.uint8)[1:].reshape(b.shape)
    assert qnbitgemm(out, a, unaligned) == BAD_ARGUMENT
