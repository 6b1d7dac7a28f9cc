"""ATTENTION on every ISA against float64: shapes, layouts, masks, tilings, rows that see nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_tools import ISAS, boxes, broadcast, filled, layout, run, same_bits

from aspen_mp.workers import _kernels

Array = np.ndarray[Any, np.dtype[Any]]
LOWEST = float(np.finfo(np.float32).min)
LENGTHS = st.one_of(st.integers(1, 40), st.sampled_from([48, 49, 64, 96, 100, 127, 512, 513, 600, 1030]))
WIDTHS = st.one_of(st.integers(1, 20), st.sampled_from([31, 32, 33, 64, 65, 80, 128]))


def params(
    scale: float = 1.0, causal: bool = False, offset: int = 0, fill: float = -np.inf, softcap: float = 0.0, guard: int = 0
) -> list[int | float]:
    return [float(scale), int(causal), offset, float(fill), float(softcap), guard, 0, 0]


def attend(q: Array, k: Array, v: Array, mask: Array | None, p: list[int | float]) -> tuple[Array, Array]:
    """The result and the sum of magnitudes of its terms, in float64; masks as in float32."""
    scale, causal, offset, fill, softcap, guard = p[:6]
    with np.errstate(all="ignore"):
        s = scale * (q.astype(np.float64) @ np.swapaxes(k.astype(np.float64), -1, -2))
        if softcap:
            s = softcap * np.tanh(s / softcap)
        if causal:
            i, j = np.arange(s.shape[-2])[:, None], np.arange(s.shape[-1])
            s = np.where(j <= i + offset, s, fill)
        if mask is not None and mask.dtype == np.bool_:
            s = np.where(mask, s, fill)
        elif mask is not None:
            s = np.where((np.abs(mask) > 1e6) | (np.abs(s) > 1e6), s.astype(np.float32) + mask, s + mask)
        top = s.max(-1, keepdims=True)
        e = np.exp(s - top)
        w = e / e.sum(-1, keepdims=True)
        if guard == 1:
            w = np.where(np.isnan(w), 0, w)
        elif guard == 2:
            w = np.where(np.isneginf(top), 0, w)
        return w @ v.astype(np.float64), w @ np.abs(v.astype(np.float64))


def check(result: Array, wanted: Array, magnitude: Array, peak: float, keys: int) -> None:
    """`peak`: the largest sum of magnitudes in a score, whose rounding the exponential multiplies."""
    with np.errstate(invalid="ignore"):
        error = np.abs(result - wanted)
        bound = 2.0**-24 * (12 + 3 * np.sqrt(keys) + 4 * peak) * magnitude + 1e-37
        bad = ~((error <= bound) | (np.isnan(result) & np.isnan(wanted)))
    assert not bad.any(), f"{result[bad][:4]} instead of {wanted[bad][:4]}, bound {np.broadcast_to(bound, bad.shape)[bad][:4]}"


def some_mask(rng: np.random.Generator, kind: str | None, shape: tuple[int, ...], fill: float) -> Array | None:
    if kind is None:
        return None
    dims = [int(d if rng.random() < 0.6 else 1) for d in shape]
    if kind == "bool":
        return rng.random(dims) < rng.choice([0.2, 0.9])
    mask = rng.standard_normal(dims).astype(np.float32)
    return np.where(rng.random(dims) < 0.3, np.float32(fill), mask)


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    lead=st.lists(st.integers(1, 3), max_size=3),
    m=LENGTHS,
    n=LENGTHS,
    d=WIDTHS,
    dv=WIDTHS,
    kind=st.sampled_from([None, None, "float", "bool"]),
    causal=st.booleans(),
    fill=st.sampled_from([-np.inf, LOWEST, -1e4]),
    softcap=st.sampled_from([0.0, 0.0, 3.0]),
    guard=st.sampled_from([0, 0, 1, 2]),
    plain=st.booleans(),
)
def test_against_float64(isa, seed, lead, m, n, d, dv, kind, causal, fill, softcap, guard, plain):
    rng = np.random.default_rng(seed)
    if m * n * int(np.prod(lead)) > 400_000:
        lead = []
    shape = tuple(lead)

    def values(*dims: int) -> Array:
        own = [int(x if rng.random() < 0.6 else 1) for x in lead]
        array = rng.standard_normal((*own, *dims)).astype(np.float32)
        return broadcast(rng, array, (*shape, *dims), plain)

    q, k, v = values(m, d), values(n, d), values(n, dv)
    mask = some_mask(rng, kind, (*shape, m, n), fill)
    if mask is not None:
        mask = broadcast(rng, mask, (*shape, m, n), plain)
    offset = int(rng.choice([0, n - m, int(rng.integers(-m, n + 1))]))
    p = params(d**-0.5, causal, offset, fill, softcap, guard)
    out = layout(rng, (*shape, m, dv), plain=plain)
    inputs = [q, k, v, mask]
    whole = run("ATTENTION", out, inputs, p, isa=isa)
    wanted, magnitude = attend(q, k, v, mask, p)
    peak = float((np.abs(q).astype(np.float64) @ np.swapaxes(np.abs(k), -1, -2)).max()) * d**-0.5
    if kind == "float" and fill == -1e4:
        peak += 1e4
    check(whole, wanted, magnitude, peak, n)

    tiles = boxes(rng, whole.shape, int(rng.integers(2, 9)))
    assert same_bits(whole, run("ATTENTION", out, inputs, p, tiles, isa)), f"tiles {tiles}"
    relaid = [filled(rng, q), filled(rng, k), filled(rng, v), None if mask is None else filled(rng, mask)]
    assert same_bits(whole, run("ATTENTION", layout(rng, whole.shape), relaid, p, tiles, isa)), "bits depend on the layout"


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("m", "n", "offset"), [(128, 128, 0), (5, 700, 695), (1, 1, 0), (130, 1100, 970), (64, 64, 3)])
def test_merged_projection(isa, m, n, offset):
    """Heads as slices of one tensor [tokens, heads * 3 * d], output token-major, causal: nothing is contiguous."""
    rng = np.random.default_rng(m)
    heads, d = 4, 64
    packed = rng.standard_normal((n, 3, heads, d)).astype(np.float32)
    q, k, v = (packed[:, i].transpose(1, 0, 2) for i in range(3))
    q = q[:, n - m :]
    out = np.empty((m, heads, d), np.float32).transpose(1, 0, 2)
    p = params(0.125, True, offset, LOWEST)
    result = run("ATTENTION", out, [q, k, v], p, isa=isa)
    wanted, magnitude = attend(q, k, v, None, p)
    check(result, wanted, magnitude, 8.0, n)
    tiles = [([h, i, 0], [h + 1, min(i + 11, m), d]) for h in range(heads) for i in range(0, m, 11)]
    assert same_bits(result, run("ATTENTION", out, [q, k, v], p, tiles, isa))


@pytest.mark.parametrize("isa", ISAS)
def test_grouped_queries(isa):
    """Eight query heads a key head, as an axis of stride 0, for a few queries and for many."""
    rng = np.random.default_rng(2)
    for m in (1, 3, 40):
        q = rng.standard_normal((2, 2, 8, m, 32)).astype(np.float32)
        k, v = (np.broadcast_to(rng.standard_normal((2, 2, 1, 90, 32)).astype(np.float32), (2, 2, 8, 90, 32)) for _ in range(2))
        p = params(0.2, True, 90 - m)
        out = np.empty_like(q)
        result = run("ATTENTION", out, [q, k, v], p, isa=isa)
        check(result, *attend(q, k, v, None, p), 8.0, 90)
        assert same_bits(result, run("ATTENTION", out, [q, k.copy(), v.copy()], p, boxes(rng, q.shape, 7), isa))


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    heads=st.integers(1, 3),
    m=st.integers(24, 140),
    n=st.integers(1, 34),
    d=WIDTHS,
    dv=WIDTHS,
    guard=st.integers(0, 2),
    token_major=st.booleans(),
)
def test_few_keys_for_many_rows(isa, seed, heads, m, n, d, dv, guard, token_major):
    """As when an image looks at a prompt; some rows see no key that is a number, or nothing but -inf."""
    rng = np.random.default_rng(seed)
    q, k, v = (rng.standard_normal((heads, *dims)).astype(np.float32) for dims in ((m, d), (n, d), (n, dv)))
    if token_major:
        q, k, v = (np.ascontiguousarray(x.swapaxes(0, 1)).swapaxes(0, 1) for x in (q, k, v))
    k[0, :, 0] = 1
    q[0, 3], q[0, 4, 0] = np.nan, -np.inf
    out = np.empty((m, heads, dv), np.float32).swapaxes(0, 1) if token_major else np.empty((heads, m, dv), np.float32)
    p = params(d**-0.5, guard=guard)
    with np.errstate(all="ignore"):
        whole = run("ATTENTION", out, [q, k, v], p, isa=isa)
        wanted, magnitude = attend(q, k, v, None, p)
    if guard == 2:  # what is not a number stays so
        wanted[0, 3] = np.nan
    peak = float((np.abs(np.nan_to_num(q, nan=0, neginf=0)).astype(np.float64) @ np.swapaxes(np.abs(k), -1, -2)).max()) * d**-0.5
    check(whole, wanted, magnitude, peak, n)
    tiles = boxes(rng, whole.shape, int(rng.integers(2, 9)))
    with np.errstate(all="ignore"):
        assert same_bits(whole, run("ATTENTION", out, [q, k, v], p, tiles, isa)), f"tiles {tiles}"


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("keys", [7, 700])
def test_rows_that_see_nothing(isa, keys):
    """-inf everywhere: NaN, or 0 with a guard. A finite fill everywhere: the mean of all values, masked ones included."""
    rng = np.random.default_rng(3)
    q, k = rng.standard_normal((3, 8)).astype(np.float32), rng.standard_normal((keys, 8)).astype(np.float32)
    v, out = rng.standard_normal((keys, 5)).astype(np.float32), np.empty((3, 5), np.float32)
    see = np.ones((3, keys), np.bool_)
    see[1] = False
    added = np.where(see, np.float32(0), np.float32(-np.inf))
    for mask in (see, added):
        plain = run("ATTENTION", out, [q, k, v, mask], params(), isa=isa)
        assert np.isnan(plain[1]).all()
        assert not np.isnan(plain[[0, 2]]).any()
        for guard in (1, 2):
            assert (run("ATTENTION", out, [q, k, v, mask], params(guard=guard), isa=isa)[1] == 0).all()
    for fill in (LOWEST, -1e4):
        mean = run("ATTENTION", out, [q, k, v, see], params(fill=fill), isa=isa)[1]
        np.testing.assert_allclose(mean, v.mean(0), rtol=1e-5, atol=1e-6)
    # All that a causal row sees is padding: with a finite fill, keys that it may not see and that are no padding weigh as much.
    padding = np.zeros((1, keys), np.float32)
    padding[0, :2] = LOWEST
    p = params(causal=True, fill=LOWEST)
    result = run("ATTENTION", out, [q, k, v, np.broadcast_to(padding, (3, keys))], p, isa=isa)
    wanted, magnitude = attend(q, k, v, np.broadcast_to(padding, (3, keys)), p)
    check(result, wanted, magnitude, 10.0, keys)
    np.testing.assert_allclose(result[0], np.delete(v, 1, 0).mean(0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("isa", ISAS)
def test_nan_and_infinity(isa):
    rng = np.random.default_rng(4)
    q, k, v = (rng.standard_normal((9, 4)).astype(np.float32) for _ in range(3))
    q[2, 1], q[5, 0] = np.nan, np.inf
    out = np.empty((9, 4), np.float32)
    result = run("ATTENTION", out, [q, k, v], params(), isa=isa)
    assert np.isnan(result[[2, 5]]).all()
    assert np.isfinite(np.delete(result, [2, 5], 0)).all()
    guarded = run("ATTENTION", out, [q, k, v], params(guard=1), isa=isa)
    assert (guarded[[2, 5]] == 0).all()


def test_bad_arguments_are_refused():
    x = np.ones((2, 4), np.float32)
    assert _kernels.call("ATTENTION", [np.empty((2, 4), np.float64), x, x, x], params(), [0, 0], [2, 4]) == 2
    assert _kernels.call("ATTENTION", [np.empty((2, 4), np.float32), x, x, x, np.ones((2, 2), np.int32)], params(), [0, 0], [2, 4]) == 2
