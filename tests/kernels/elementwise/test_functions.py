"""UNARY functions that round, on every ISA, against float64 over the whole range of their arguments."""

from __future__ import annotations

import math

import numpy as np
import pytest
from kernel_tools import ISAS, check_ulps

from aspen_mp.shm.tables import BINARY, UNARY
from aspen_mp.workers import _kernels

ERF = np.vectorize(math.erf, otypes=[np.float64])
ERFC = np.vectorize(math.erfc, otypes=[np.float64])


def _sigmoid(x):
    return np.where(x < 0, np.exp(x), 1) / (1 + np.exp(-np.abs(x)))


def _softplus(x):
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _relu_exp(x, scale):
    return np.where(x < 0, scale(x), x)


# name: (reference in float64, a, b, ulps, absolute error that cancellation excuses)
FUNCTIONS = {
    "EXP": (np.exp, 0, 0, 2, 0),
    "LOG": (np.log, 0, 0, 2, 0),
    "SQRT": (np.sqrt, 0, 0, 0.5, 0),
    "RECIPROCAL": (lambda x: 1 / x, 0, 0, 0.5, 0),
    "SIGMOID": (_sigmoid, 0, 0, 3, 1e-44),
    "TANH": (np.tanh, 0, 0, 4, 0),
    "ERF": (ERF, 0, 0, 4, 0),
    "ELU": (lambda x: _relu_exp(x, lambda v: 0.75 * np.expm1(v)), 0.75, 0, 3, 0),
    "SELU": (lambda x: np.float32(1.05) * _relu_exp(x, lambda v: np.float32(1.67) * np.expm1(v)), 1.67, 1.05, 4, 0),
    "CELU": (lambda x: _relu_exp(x, lambda v: 2 * np.expm1(v / 2)), 2, 0, 3, 0),
    "GELU_ERF": (lambda x: np.where(x < -38, -0.0, 0.5 * x * ERFC(-x / np.sqrt(2))), 0, 0, 6, 2e-7),
    "GELU_TANH": (lambda x: np.where(x < -38, -0.0, x * _sigmoid(2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))), 0, 0, 6, 1e-7),
    "SWISH": (lambda x: np.where(x < -700, -0.0, x * _sigmoid(0.5 * x)), 0.5, 0, 5, 1e-36),
    "HARD_SIGMOID": (lambda x: np.clip(0.25 * x + 0.5, 0, 1), 0.25, 0.5, 2, 0),
    "HARD_SWISH": (lambda x: x * np.clip(x / 6 + 0.5, 0, 1), 0, 0, 4, 4e-7),
    "SOFTPLUS": (_softplus, 0, 0, 3, 1e-44),
    "SOFTSIGN": (lambda x: x / (1 + np.abs(x)), 0, 0, 2, 0),
    "MISH": (lambda x: np.where(x < -700, -0.0, x * np.tanh(_softplus(x))), 0, 0, 4, 1e-40),
    "SIN": (np.sin, 0, 0, 0.6, 0),
    "COS": (np.cos, 0, 0, 0.6, 0),
    "TAN": (np.tan, 0, 0, 0.6, 0),
    "ASIN": (np.arcsin, 0, 0, 0.6, 0),
    "ACOS": (np.arccos, 0, 0, 0.6, 0),
    "ATAN": (np.arctan, 0, 0, 0.6, 0),
    "SINH": (np.sinh, 0, 0, 0.6, 0),
    "COSH": (np.cosh, 0, 0, 0.6, 0),
    "ASINH": (np.arcsinh, 0, 0, 0.6, 0),
    "ACOSH": (np.arccosh, 0, 0, 0.6, 0),
    "ATANH": (np.arctanh, 0, 0, 0.6, 0),
    "LEAKY_RELU": (lambda x: np.where(x < 0, 0.125 * x, x), 0.125, 0, 0.5, 0),
    "SHRINK": (lambda x: np.where(x < -1, x + 0.5, np.where(x > 1, x - 0.5, 0)), 1, 0.5, 0.5, 0),
}


def arguments() -> np.ndarray:
    rng = np.random.default_rng(1)
    parts = [
        np.array(
            [
                0.0,
                -0.0,
                np.inf,
                -np.inf,
                np.nan,
                1,
                -1,
                1e-45,
                -1e-45,
                1.17549435e-38,
                3.4028235e38,
                -3.4028235e38,
                88.72,
                88.73,
                -103.9,
                -87.4,
            ]
        ),
        rng.standard_normal(6000) * rng.choice([1e-3, 0.1, 1, 3, 20, 1000], 6000),
        rng.uniform(-1.01, 1.01, 2000),
        1 + rng.standard_normal(1000) * 1e-3,
        np.exp(rng.uniform(-100, 88, 2000)) * rng.choice([-1, 1], 2000),
        np.arange(-400, 400) * (np.pi / 2),
    ]
    with np.errstate(over="ignore"):
        return np.concatenate(parts).astype(np.float32)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_f32(isa, name):
    reference, a, b, ulps, absolute = FUNCTIONS[name]
    x = arguments()
    out = np.empty_like(x)
    assert _kernels.call("UNARY", [out, x], [UNARY[name], float(a), float(b)], [0], x.shape, isa) == 0
    with np.errstate(all="ignore"):
        wanted = reference(x.astype(np.float64))
    extremes = np.isinf(x) & np.isin(
        name, ["GELU_ERF", "GELU_TANH", "SWISH", "HARD_SWISH", "SOFTSIGN", "MISH"]
    )  # 0 × ∞, either way of writing it
    check_ulps(out[~extremes], wanted[~extremes], ulps, absolute)


@pytest.mark.parametrize("isa", ISAS)
def test_gelu_of_infinity(isa):
    """As of x (1 + erf(x / √2)) / 2, 0 × ∞ is NaN."""
    x = np.array([np.inf, -np.inf, np.nan], np.float32)
    out = np.empty_like(x)
    assert _kernels.call("UNARY", [out, x], [UNARY["GELU_ERF"], 0.0, 0.0], [0], x.shape, isa) == 0
    np.testing.assert_array_equal(out, [np.inf, np.nan, np.nan])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", ["TANH", "ERF", "ASIN", "ATAN", "SINH", "ASINH", "ATANH", "SQRT", "GELU_ERF", "GELU_TANH", "SWISH"])
def test_zeros_keep_their_signs(isa, name):
    x = np.array([0.0, -0.0, 1.0, -0.0], np.float32)
    out = np.empty_like(x)
    assert _kernels.call("UNARY", [out, x], [UNARY[name], 1.0, 0.0], [0], x.shape, isa) == 0
    np.testing.assert_array_equal(np.signbit(out), np.signbit(x))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", [n for n in FUNCTIONS if n not in ("HARD_SIGMOID",)])
def test_f64(isa, name):
    reference, a, b, *_ = FUNCTIONS[name]
    x = arguments().astype(np.float64)
    x = x[np.isfinite(x) & (np.abs(x) < 1e4)]
    a, b = (1.67, 1.05) if name == "SELU" else (a, b)
    out = np.empty_like(x)
    assert _kernels.call("UNARY", [out, x], [UNARY[name], float(a), float(b)], [0], x.shape, isa) == 0
    with np.errstate(all="ignore"):
        wanted = reference(x)
    np.testing.assert_allclose(out, wanted, rtol=1e-6 if name == "SELU" else 1e-12, atol=1e-14)


@pytest.mark.parametrize("isa", ISAS)
def test_tails_equal_bodies(isa):
    """An element has the same bits wherever it stands in a row."""
    x = np.tile(arguments()[16:64], 40)
    for name, (_, a, b, *_) in FUNCTIONS.items():
        params = [UNARY[name], float(a), float(b)]
        whole, part = np.empty_like(x), np.empty_like(x)
        assert _kernels.call("UNARY", [whole, x], params, [0], x.shape, isa) == 0
        for start in range(0, x.size, 13):
            assert _kernels.call("UNARY", [part, x], params, [start], [min(start + 13, x.size)], isa) == 0
        assert whole.tobytes() == part.tobytes(), name


def levels(x: np.ndarray, a: float, b: float) -> np.ndarray:
    """The definition, step by step in the type of x; what is no number becomes the lowest level."""
    kind = x.dtype.type
    whole = np.round(x / kind(a))
    return kind(a) * np.clip(np.where(np.isnan(whole), kind(b), whole), kind(b), kind(b + 255))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize(("a", "b"), [(0.25, -128), (0.0137, 0), (3.1e-7, -255), (1e30, -17), (0.25, -100)])
def test_fake_quantize(isa, kind, a, b):
    a = float(np.float32(a))
    rng = np.random.default_rng(5)
    with np.errstate(all="ignore"):
        x = np.concatenate([arguments(), np.arange(-300, 300) * a / 2, rng.standard_normal(500) * 100 * a]).astype(kind)
        wanted = levels(x, a, b)
    out, part = np.empty_like(x), np.empty_like(x)
    assert _kernels.call("UNARY", [out, x], [UNARY["FAKE_QUANTIZE"], a, float(b)], [0], x.shape, isa) == 0
    np.testing.assert_array_equal(out, wanted)
    for start in range(0, x.size, 13):
        end = [min(start + 13, x.size)]
        assert _kernels.call("UNARY", [part, x], [UNARY["FAKE_QUANTIZE"], a, float(b)], [start], end, isa) == 0
    assert out.tobytes() == part.tobytes()


@pytest.mark.parametrize("isa", ISAS)
def test_fake_quantize_in_an_epilogue(isa):
    """The bits of UNARY: a reference in float64 rounds to other levels where a sum lies between two."""
    rng = np.random.default_rng(6)
    x, w = rng.standard_normal((23, 70)).astype(np.float32), rng.standard_normal((70, 45)).astype(np.float32)
    act = [UNARY["FAKE_QUANTIZE"], 0.0625, -120.0]
    sums, rounded, whole = (np.empty((23, 45), np.float32) for _ in range(3))
    for out, function in ((sums, [UNARY["IDENTITY"], 0.0, 0.0]), (whole, act)):
        assert _kernels.call("GEMM", [out, x, w], [0, 1.0, *function, 0, 0, 0], [0, 0], out.shape, isa) == 0
    assert _kernels.call("UNARY", [rounded, sums], act, [0, 0], sums.shape, isa) == 0
    assert whole.tobytes() == rounded.tobytes()
    assert len(np.unique(whole)) > 100


@pytest.mark.parametrize("isa", ISAS)
def test_pow(isa):
    rng = np.random.default_rng(2)
    special = np.array([0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 2, 3, -2, -3, 0.5, -0.5, 1e-40, 3e38, 1e30], np.float32)
    x = np.concatenate([np.repeat(special, special.size), np.exp(rng.standard_normal(4000) * 3), rng.standard_normal(2000) * 3]).astype(
        np.float32
    )
    y = np.concatenate([np.tile(special, special.size), rng.standard_normal(4000) * 5, rng.integers(-6, 7, 2000)]).astype(np.float32)
    out, part = np.empty_like(x), np.empty_like(x)
    params = [BINARY["POW"], UNARY["IDENTITY"], 0.0, 0.0]
    assert _kernels.call("BINARY", [out, x, y], params, [0], x.shape, isa) == 0
    with np.errstate(all="ignore"):
        check_ulps(out, np.power(x.astype(np.float64), y.astype(np.float64)), 2)
    for start in range(0, x.size, 11):
        assert _kernels.call("BINARY", [part, x, y], params, [start], [min(start + 11, x.size)], isa) == 0
    assert out.tobytes() == part.tobytes()
