"""Kernels of f64 on every ISA against numbers of more bits: DGEMM, SOFTMAX, and the functions built on e^x."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_tools import ISAS, SHAPES, Array, boxes, broadcast, check_tiles, filled, layout, run, same_bits, stretched

from aspen_mp.shm.tables import UNARY
from aspen_mp.workers import _kernels

EPS = 2.0**-52
SIZES = st.one_of(st.integers(1, 40), st.sampled_from([1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 16, 31, 32, 33, 63, 64, 65, 100, 129]))
FUNCTIONS = {"IDENTITY": lambda x: x, "RELU": lambda x: np.maximum(x, 0), "SIGMOID": lambda x: 1 / (1 + np.exp(-x)), "TANH": np.tanh}


TERMS = {
    "product": lambda a, b: np.einsum("...mk,...kn->...mn", a, b),
    "square": lambda a, b: ((a[..., None] - b[..., None, :, :]) ** 2).sum(-2),
    "absolute": lambda a, b: np.abs(a[..., None] - b[..., None, :, :]).sum(-2),
}


def exact(term: str, a: Array, b: Array) -> Array:
    return np.asarray(TERMS[term](a.astype(np.longdouble), b.astype(np.longdouble)))


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    batch=st.lists(st.integers(1, 3), max_size=2),
    m=SIZES,
    k=st.one_of(SIZES, st.just(0)),
    n=SIZES,
    plain=st.booleans(),
    alpha=st.sampled_from([1.0, 1.0, -1.7]),
    function=st.sampled_from(sorted(FUNCTIONS)),
    bias=st.sampled_from([None, "n", "m", "one", "all"]),
    term=st.sampled_from(["product", *TERMS]),
)
def test_products_and_distances(isa, seed, batch, m, k, n, plain, alpha, function, bias, term):
    rng = np.random.default_rng(seed)
    shape, ones = (*batch, m, n), (1,) * len(batch)
    a = broadcast(rng, rng.standard_normal((*stretched(rng, batch), m, k)), (*batch, m, k), plain)
    b = broadcast(rng, rng.standard_normal((*stretched(rng, batch), k, n)), (*batch, k, n), plain)
    dims = {None: None, "n": (*ones, 1, n), "m": (*ones, m, 1), "one": (*ones, 1, 1), "all": shape}[bias]
    added = None if dims is None else broadcast(rng, rng.standard_normal(dims), shape, plain)
    out = layout(rng, shape, np.float64, plain)
    params = [alpha, UNARY[function], 0.0, 0.0, list(TERMS).index(term)]
    whole = run("DGEMM", out, [a, b, added], params, isa=isa)

    sums = alpha * exact(term, a, b) + (0 if added is None else added)
    size = abs(alpha) * exact(term, np.abs(a), np.abs(b) if term == "product" else -np.abs(b)) + (0 if added is None else np.abs(added))
    wanted = FUNCTIONS[function](sums)
    assert (np.abs(whole - wanted) <= (k + 8) * EPS * size + 8 * EPS * np.abs(wanted)).all()

    tiles = boxes(rng, shape, int(rng.integers(2, 9)))
    assert same_bits(whole, run("DGEMM", out, [a, b, added], params, tiles, isa))
    relaid = [filled(rng, a), filled(rng, b), None if added is None else filled(rng, added)]
    assert same_bits(whole, run("DGEMM", layout(rng, shape, np.float64), relaid, params, tiles, isa)), "bits depend on the layout"


@pytest.mark.parametrize("isa", ISAS)
def test_a_product_refuses_what_it_does_not_know(isa):
    a, b, out = np.ones((2, 3)), np.ones((3, 4)), np.zeros((2, 4))
    for operands, params in [
        ([out.astype(np.float32), a, b], [1.0, 0, 0.0, 0.0, 0]),
        ([out, a, b.astype(np.float32)], [1.0, 0, 0.0, 0.0, 0]),
        ([out, a, b, np.ones((2, 4), np.float32)], [1.0, 0, 0.0, 0.0, 0]),
        ([out, a, b], [1.0, UNARY["ISNAN"], 0.0, 0.0, 0]),
        ([out, a, b], [1.0, 0, 0.0, 0.0, 3]),
    ]:
        assert _kernels.call("DGEMM", operands, params, [0, 0], [2, 4], isa) == 2


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    shape=st.one_of(SHAPES, st.sampled_from([[3, 1000], [1000, 3], [2, 3000], [700, 4], [2, 384, 7], [512, 2], [2, 512]])).filter(
        lambda s: s
    ),
    log=st.booleans(),
    plain=st.booleans(),
    spread=st.sampled_from([1.0, 30.0]),
)
def test_softmax(isa, seed, shape, log, plain, spread):
    rng = np.random.default_rng(seed)
    axis = int(rng.integers(len(shape)))
    x = broadcast(rng, rng.standard_normal(stretched(rng, shape, 0.1)) * spread, shape, plain)
    out = layout(rng, shape, np.float64, plain)
    result = run("SOFTMAX", out, [x], [axis, int(log)], isa=isa)
    shifted = x.astype(np.longdouble)
    shifted = shifted - shifted.max(axis, keepdims=True)
    total = np.exp(shifted).sum(axis, keepdims=True)
    if log:
        np.testing.assert_allclose(result, (shifted - np.log(total)).astype(np.float64), rtol=4 * EPS, atol=4 * EPS * 10)
    else:
        np.testing.assert_allclose(
            result, (np.exp(shifted) / total).astype(np.float64), rtol=(40 if spread == 1.0 else 400) * EPS, atol=1e-300
        )
    check_tiles(rng, result, "SOFTMAX", out, [x], [axis, int(log)], isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("pad", [0, 600])
def test_softmax_special_values(isa, pad):
    """Rows in a block with others, and long ones."""
    x = np.array([[0, -np.inf, 1, -np.inf], [np.inf, 0, 0, 0], [np.nan, 0, 0, 0], [0, 1, np.nan, 2], [-np.inf] * 4, [1e308, -1e308, 0, 0]])
    x = np.pad(x, ((0, 0), (0, pad)), constant_values=-np.inf)
    with np.errstate(all="ignore"):
        e = np.exp(x - x.max(1, keepdims=True))
        wanted = e / e.sum(1, keepdims=True)
    for a, axis, w in [(x, 1, wanted), (np.ascontiguousarray(x.T), 0, wanted.T)]:
        out = np.empty_like(a)
        assert _kernels.call("SOFTMAX", [out, a], [axis, 0], [0, 0], a.shape, isa) == 0
        np.testing.assert_allclose(out, w, rtol=1e-14)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", ["EXP", "SIGMOID"])
def test_exponentials(isa, name):
    rng = np.random.default_rng(3)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 709.78, 709.79, 710.5, -708.3, -745.1, -745.2, -1e308, 1e308, 1e-300, 5e-324]
    x = np.concatenate([rng.uniform(-746, 711, 5000), rng.uniform(-40, 40, 5000), rng.standard_normal(5000) * 1e-3, special])
    out = np.empty_like(x)
    assert _kernels.call("UNARY", [out, x], [UNARY[name], 0.0, 0.0], [0], x.shape, isa) == 0
    with np.errstate(all="ignore"):
        wide = x.astype(np.longdouble)
        exact = np.exp(wide) if name == "EXP" else 1 / (1 + np.exp(-wide))
        wanted = exact.astype(np.float64)
        odd = ~np.isfinite(wanted)
        np.testing.assert_array_equal(out[odd], wanted[odd])
        ulps = np.abs(out.astype(np.longdouble) - exact)[~odd] / np.spacing(np.abs(wanted[~odd]))
    assert ulps.max() <= (1.0 if name == "EXP" else 3.0)
    assert (out[np.isnan(x)] != out[np.isnan(x)]).all()


LIMITS = {
    "SOFTPLUS": (np.inf, 0.0),
    "SIGMOID": (1.0, 0.0),
    "TANH": (1.0, -1.0),
    "ERF": (1.0, -1.0),
    "RELU": (np.inf, 0.0),
    "ELU": (np.inf, -1.0),
    "CELU": (np.inf, -1.0),
    "EXP": (np.inf, 0.0),
    "HARD_SWISH": (np.inf, np.nan),
    "SIGN": (1.0, -1.0),
}
"""What functions give for infinity and for its negative."""


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", LIMITS)
def test_limits(isa, name):
    x = np.array([np.inf, -np.inf, np.nan] * 5)
    out = np.empty_like(x)
    assert _kernels.call("UNARY", [out, x], [UNARY[name], 1.0, 1.0], [0], x.shape, isa) == 0
    np.testing.assert_array_equal(out, [*LIMITS[name], np.nan] * 5)
