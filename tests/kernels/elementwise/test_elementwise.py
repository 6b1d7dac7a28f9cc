"""UNARY, BINARY, TERNARY on every ISA and type, over drawn shapes, layouts, broadcasts and tilings."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_tools import ISAS, SHAPES, broadcast, check_equal, check_tiles, check_ulps, filled, layout, run, stretched

from aspen_mp.shm.tables import BINARY, TERNARY, UNARY
from aspen_mp.workers import _kernels

BF16 = np.dtype(ml_dtypes.bfloat16)
SIGNED = [np.dtype(t) for t in ("i1", "i2", "i4", "i8")]
UNSIGNED = [np.dtype(t) for t in ("u1", "u2", "u4", "u8")]
INTEGERS = SIGNED + UNSIGNED
FLOATS = [np.dtype("f4"), np.dtype("f8")]
HALVES = [np.dtype("f2"), BF16]
BOOL = np.dtype(bool)
NO_ACT = [UNARY["IDENTITY"], 0.0, 0.0]
SPECIALS = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 2.0, 0.5]


def values(rng: np.random.Generator, shape: list[int], dtype: np.dtype, specials: bool = True) -> np.ndarray:
    if dtype == BOOL:
        return np.asarray(rng.random(shape) < 0.5)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        small = rng.integers(max(-5, info.min), 6, shape).astype(dtype)
        wide = rng.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)
        edge = rng.choice(np.array([info.min, info.max, 0, 1], dtype), shape)
        return np.asarray(np.choose(rng.integers(0, 4, shape), [small, small, wide, edge]))
    v = rng.standard_normal(shape) * rng.choice([1.0, 10.0], shape)
    if specials:
        v = np.where(rng.random(shape) < 0.15, rng.choice(SPECIALS, shape), v)
    return np.asarray(v).astype(dtype)


# ---- BINARY ----

COMPARISONS = {"EQUAL": np.equal, "LESS": np.less, "LESS_EQUAL": np.less_equal, "GREATER": np.greater, "GREATER_EQUAL": np.greater_equal}
ARITHMETIC = {"ADD": np.add, "SUB": np.subtract, "MUL": np.multiply, "MIN": np.minimum, "MAX": np.maximum}
BITS = {"BIT_AND": np.bitwise_and, "BIT_OR": np.bitwise_or, "BIT_XOR": np.bitwise_xor}
LOGICAL = {"AND": np.logical_and, "OR": np.logical_or, "XOR": np.logical_xor}


def _trunc_divide(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    q = [abs(int(a)) // abs(int(b)) * (1 if (a < 0) == (b < 0) else -1) for a, b in zip(x.reshape(-1), y.reshape(-1), strict=True)]
    return _wrapped(q, x)


def _wrapped(numbers: list[int], like: np.ndarray) -> np.ndarray:
    width = like.dtype.itemsize * 8
    unsigned = np.array([q & ((1 << width) - 1) for q in numbers], f"u{like.dtype.itemsize}")
    return unsigned.view(like.dtype).reshape(like.shape)


def _elementwise(f):
    return lambda x, y: _wrapped([f(int(a), int(b)) for a, b in zip(x.reshape(-1), y.reshape(-1), strict=True)], x)


def _int_pow(x: int, y: int) -> int:
    if y >= 0:
        return pow(x, y, 1 << 64)
    return 1 if x == 1 else (1 if y % 2 == 0 else -1) if x == -1 else 0


def _shift_left(width: int):
    return lambda x, y: x << y if 0 <= y < width else 0


def _shift_right(width: int):
    return lambda x, y: x >> y if 0 <= y < width else (-1 if x < 0 else 0)


def integer_reference(op: str, dtype: np.dtype):
    width = dtype.itemsize * 8
    return {
        **COMPARISONS,
        **ARITHMETIC,
        **BITS,
        "DIV": _trunc_divide,
        "MOD": _elementwise(lambda x, y: x % y),
        "FMOD": _elementwise(lambda x, y: abs(x) % abs(y) * (-1 if x < 0 else 1)),
        "POW": _elementwise(_int_pow),
        "PRELU": lambda x, y: np.where(x < 0, x * y, x),
        "SHIFT_LEFT": _elementwise(_shift_left(width)),
        "SHIFT_RIGHT": _elementwise(_shift_right(width)),
    }[op]


def float_reference(op: str):
    return {
        **COMPARISONS,
        **ARITHMETIC,
        "DIV": np.divide,
        "MOD": np.mod,
        "FMOD": np.fmod,
        "POW": np.power,
        "PRELU": lambda x, y: np.where(x < 0, x * y, x),
    }[op]


CASES = (
    [(op, d) for op in [*COMPARISONS, *ARITHMETIC, "DIV", "MOD", "FMOD", "POW", "PRELU"] for d in FLOATS + HALVES]
    + [
        (op, d)
        for op in [*COMPARISONS, *ARITHMETIC, *BITS, "DIV", "MOD", "FMOD", "POW", "PRELU", "SHIFT_LEFT", "SHIFT_RIGHT"]
        for d in INTEGERS
    ]
    + [(op, BOOL) for op in [*LOGICAL, "EQUAL"]]
)


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=350, deadline=None)
@given(seed=st.integers(0, 2**32), shape=SHAPES, case=st.sampled_from(CASES), plain=st.booleans())
def test_binary(isa, seed, shape, case, plain):
    op, dtype = case
    rng = np.random.default_rng(seed)
    x, y = values(rng, stretched(rng, shape), dtype), values(rng, stretched(rng, shape), dtype)
    if op in ("DIV", "MOD", "FMOD") and dtype.kind in "iu":
        y[y == 0] = 1
    if op == "POW" and dtype.kind == "i":
        x[x == 0] = 3
    if op == "POW" and dtype.kind in "fV" and rng.random() < 0.5:
        y[...] = rng.choice([2.0, 3.0, 0.5, -1.0])
    if op.startswith("SHIFT"):
        y = np.where(rng.random(y.shape) < 0.8, rng.integers(0, dtype.itemsize * 8 + 2, y.shape), y).astype(dtype)
    x, y = broadcast(rng, x, shape, plain), broadcast(rng, y, shape, plain)
    out = layout(rng, shape, BOOL if op in COMPARISONS else dtype, plain)
    params = [BINARY[op], *NO_ACT]
    result = run("BINARY", out, [x, y], params, isa=isa)
    with np.errstate(all="ignore"):
        if dtype == BOOL:
            wanted = {**LOGICAL, **COMPARISONS}[op](x, y)
        elif dtype.kind in "iu":
            wanted = integer_reference(op, dtype)(x, y)
        elif dtype in HALVES:
            wanted = float_reference(op)(x.astype(np.float32), y.astype(np.float32)).astype(result.dtype)
        else:
            wanted = float_reference(op)(x, y)
    if op == "POW" and dtype.kind in "fV":
        with np.errstate(all="ignore"):
            exact = np.power(x.astype(np.float64), y.astype(np.float64))
        if dtype in (np.dtype("f4"), np.dtype("f8")):
            check_ulps(result, exact, 2)
        else:
            np.testing.assert_allclose(result.astype(np.float64), exact.astype(dtype).astype(np.float64), rtol=1e-2, atol=1e-7)
    else:
        check_equal(result, wanted)
    check_tiles(rng, result, "BINARY", out, [x, y], params, isa)


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    shape=SHAPES,
    op=st.sampled_from(["ADD", "SUB", "MUL"]),
    act=st.sampled_from([("RELU", 0.0, 0.0), ("CLIP", -0.5, 1.5), ("LEAKY_RELU", 0.25, 0.0), ("SQUARE", 0.0, 0.0)]),
    dtype=st.sampled_from(FLOATS),
)
def test_binary_with_activation(isa, seed, shape, op, act, dtype):
    rng = np.random.default_rng(seed)
    x, y = (broadcast(rng, values(rng, stretched(rng, shape), dtype), shape) for _ in range(2))
    out = layout(rng, shape, dtype)
    name, a, b = act
    params = [BINARY[op], UNARY[name], a, b]
    result = run("BINARY", out, [x, y], params, isa=isa)
    with np.errstate(all="ignore"):
        v = ARITHMETIC[op](x, y)
        wanted = {"RELU": np.maximum(v, 0), "CLIP": np.clip(v, a, b), "LEAKY_RELU": np.where(v < 0, v * dtype.type(a), v), "SQUARE": v * v}[
            name
        ]
    check_equal(result, wanted.astype(dtype))
    check_tiles(rng, result, "BINARY", out, [x, y], params, isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("op", ["DIV", "MOD", "FMOD"])
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integer_division(isa, op, dtype):
    info = np.iinfo(dtype)
    x, y = np.full(9, 7, dtype), np.full(9, 2, dtype)
    out, params = np.zeros(9, dtype), [BINARY[op], *NO_ACT]
    y[4] = 0
    assert _kernels.call("BINARY", [out, x, y], params, [0], [9], isa) == 4
    assert _kernels.call("BINARY", [out, x, y], params, [5], [9], isa) == 0
    if dtype.kind == "i":  # the one quotient that does not fit wraps
        x[0], y[0] = info.min, -1
        assert _kernels.call("BINARY", [out, x, y], params, [0], [1], isa) == 0
        assert out[0] == (info.min if op == "DIV" else 0)


# ---- TERNARY ----

MOVED = [np.dtype(t) for t in ("f4", "f8", "f2", "i1", "u2", "i8", "?", "c8", "c16")] + [BF16]


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=120, deadline=None)
@given(seed=st.integers(0, 2**32), shape=SHAPES, dtype=st.sampled_from(MOVED), plain=st.booleans())
def test_where(isa, seed, shape, dtype, plain):
    rng = np.random.default_rng(seed)
    condition = broadcast(rng, rng.random(stretched(rng, shape)) < 0.5, shape, plain)
    x, y = (broadcast(rng, (rng.standard_normal(stretched(rng, shape)) * 50).astype(dtype), shape, plain) for _ in range(2))
    out = layout(rng, shape, dtype, plain)
    result = run("TERNARY", out, [condition, x, y], [TERNARY["WHERE"], *NO_ACT], isa=isa)
    check_equal(result, np.where(condition, x, y))
    check_tiles(rng, result, "TERNARY", out, [condition, x, y], [TERNARY["WHERE"], *NO_ACT], isa)


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=120, deadline=None)
@given(seed=st.integers(0, 2**32), shape=SHAPES, dtype=st.sampled_from(FLOATS + HALVES + INTEGERS))
def test_clamp(isa, seed, shape, dtype):
    rng = np.random.default_rng(seed)
    args = [broadcast(rng, values(rng, stretched(rng, shape), dtype), shape) for _ in range(3)]
    out = layout(rng, shape, dtype)
    result = run("TERNARY", out, args, [TERNARY["CLAMP"], *NO_ACT], isa=isa)
    check_equal(result, np.minimum(np.maximum(args[0], args[1]), args[2]))
    check_tiles(rng, result, "TERNARY", out, args, [TERNARY["CLAMP"], *NO_ACT], isa)


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), shape=SHAPES, dtype=st.sampled_from(FLOATS))
def test_fma(isa, seed, shape, dtype):
    rng = np.random.default_rng(seed)
    x, y, z = args = [broadcast(rng, values(rng, stretched(rng, shape), dtype, False), shape) for _ in range(3)]
    out = layout(rng, shape, dtype)
    p = [TERNARY["FMA"], *NO_ACT]
    result = run("TERNARY", out, args, p, isa=isa)
    magnitude = np.abs(x * y) + np.abs(z)
    assert (np.abs(result - (x.astype("f8") * y + z)) <= 2 * np.finfo(dtype).eps * magnitude).all()
    check_tiles(rng, result, "TERNARY", out, args, p, isa)
    activated = run("TERNARY", out, args, [TERNARY["FMA"], UNARY["RELU"], 0.0, 0.0], isa=isa)
    check_equal(activated, np.maximum(result, dtype.type(0)))


# ---- UNARY: what is exact. Functions that round are in test_functions.py ----

EXACT = {
    "IDENTITY": lambda x, a, b: x,
    "ABS": lambda x, a, b: np.abs(x),
    "NEG": lambda x, a, b: (0 - x if x.dtype.kind in "iu" else -x).astype(x.dtype),
    "SIGN": lambda x, a, b: np.sign(x),
    "RELU": lambda x, a, b: np.where(x < 0, 0, x).astype(x.dtype),
    "SQUARE": lambda x, a, b: x * x,
    "CLIP": lambda x, a, b: np.where(np.isnan(x.astype("f8")), x, np.clip(x.astype("f8"), a, b).astype(x.dtype)).astype(x.dtype),
}
FLOAT_ONLY = {
    "CEIL": lambda x, a, b: np.ceil(x),
    "FLOOR": lambda x, a, b: np.floor(x),
    "ROUND": lambda x, a, b: np.rint(x),
    "SQRT": lambda x, a, b: np.sqrt(x),
    "RECIPROCAL": lambda x, a, b: np.reciprocal(x),
    "THRESHOLDED_RELU": lambda x, a, b: np.where(x > x.dtype.type(a), x, 0).astype(x.dtype),
    "ISNAN": lambda x, a, b: np.isnan(x),
    "ISINF": lambda x, a, b: (np.isneginf(x) & (a != 0)) | (np.isposinf(x) & (b != 0)),
}
UNARY_CASES = (
    [(op, d) for op in EXACT for d in FLOATS + HALVES]
    + [(op, d) for op in FLOAT_ONLY for d in FLOATS]
    + [(op, d) for op in [*EXACT, "BIT_NOT"] for d in INTEGERS if not (op == "CLIP" and d.itemsize == 8)]
    + [("NOT", BOOL)]
)


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=250, deadline=None)
@given(seed=st.integers(0, 2**32), shape=SHAPES, case=st.sampled_from(UNARY_CASES), plain=st.booleans())
def test_unary_exact(isa, seed, shape, case, plain):
    op, dtype = case
    rng = np.random.default_rng(seed)
    x = broadcast(rng, values(rng, stretched(rng, shape), dtype), shape, plain)
    a, b = {"CLIP": (-2.0, 3.0), "ISINF": (float(rng.integers(2)), float(rng.integers(2))), "THRESHOLDED_RELU": (0.75, 0.0)}.get(
        op, (0.0, 0.0)
    )
    out = layout(rng, shape, BOOL if op.startswith("IS") else dtype, plain)
    params = [UNARY[op], a, b]
    result = run("UNARY", out, [x], params, isa=isa)
    with np.errstate(all="ignore"):
        if dtype in HALVES:
            wanted = EXACT[op](x.astype(np.float32), a, b).astype(dtype)
        else:
            wanted = {**EXACT, **FLOAT_ONLY, "BIT_NOT": lambda x, a, b: ~x, "NOT": lambda x, a, b: ~x}[op](x, a, b)
    check_equal(result, wanted)
    check_tiles(rng, result, "UNARY", out, [x], params, isa)


@pytest.mark.parametrize("isa", ISAS)
def test_wide_rank(isa):
    """Eight axes, every second broadcast."""
    rng = np.random.default_rng(8)
    shape = [2, 3, 2, 2, 1, 3, 2, 5]
    x = broadcast(rng, values(rng, [n if i % 2 else 1 for i, n in enumerate(shape)], np.dtype("f4")), shape)
    y = filled(rng, values(rng, shape, np.dtype("f4")))
    out = layout(rng, shape, np.float32)
    check_equal(run("BINARY", out, [x, y], [BINARY["ADD"], *NO_ACT], isa=isa), x + y)


@pytest.mark.parametrize("isa", ISAS)
def test_refused(isa):
    """What no kernel serves is an error, never a wrong answer."""
    f, i = np.zeros(3, np.float32), np.zeros(3, np.int32)
    for kernel, args, params in [
        ("BINARY", [f, f, i], [BINARY["ADD"], *NO_ACT]),
        ("BINARY", [i, f, f], [BINARY["LESS"], *NO_ACT]),
        ("BINARY", [f, f, f], [BINARY["BIT_AND"], *NO_ACT]),
        ("BINARY", [i, i, i], [BINARY["ADD"], UNARY["RELU"], 0.0, 0.0]),
        ("BINARY", [i, i, i], [99, *NO_ACT]),
        ("UNARY", [i, i], [UNARY["EXP"], 0.0, 0.0]),
        ("UNARY", [i, f], [UNARY["ABS"], 0.0, 0.0]),
        ("UNARY", [f, f], [99, 0.0, 0.0]),
        ("TERNARY", [f, f, f, f], [TERNARY["WHERE"], *NO_ACT]),
        ("TERNARY", [f, f, f, f], [TERNARY["WHERE"], UNARY["RELU"], 0.0, 0.0]),
        ("TERNARY", [i, i, i, i], [TERNARY["FMA"], *NO_ACT]),
        ("TERNARY", [i, i, i, i], [TERNARY["CLAMP"], UNARY["RELU"], 0.0, 0.0]),
    ]:
        assert _kernels.call(kernel, args, params, [0], [3], isa) == 2, (kernel, params)
