"""BGEMM on every ISA, with the processor's instruction for pairs of bf16 and without it, against float64 over rounded factors; whole tiles
against drawn ones, bit by bit."""

from __future__ import annotations

import numpy as np
import pytest
from byte_tools import check_without
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_tools import ACTIVATIONS, ISAS, boxes, broadcast, epilogue, filled, layout, run, same_bits
from pair_tools import HALVES, SWITCH, both_ways, pack_pairs, rounded
from test_gemm import SIZES, check

from aspen_mp.workers import _isa, _kernels

BAD_ARGUMENT, SCRATCH = 2, 3
PLAIN = [1.0, *ACTIVATIONS["IDENTITY"], 0, 0]
AMX = [*PLAIN[:-1], 1]


def pack(w: np.ndarray) -> np.ndarray:
    return pack_pairs(w[np.newaxis])


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=120, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    batch=st.lists(st.integers(1, 3), max_size=2),
    m=SIZES,
    k=st.one_of(SIZES, st.sampled_from([511, 512, 1024])),  # rows compete for the same sets of L1
    n=SIZES,
    plain=st.booleans(),
    alpha=st.sampled_from([1.0, 1.0, 0.125, -1.7]),
    activation=st.sampled_from(sorted(ACTIVATIONS)),
    bias=st.sampled_from([None, "n", "m", "one", "all"]),
    residual=st.sampled_from([None, None, "all", "n"]),
    residual_last=st.integers(0, 2),
    scaled=st.booleans(),
    amx=st.booleans(),
)
def test_against_float64(isa, seed, batch, m, k, n, plain, alpha, activation, bias, residual, residual_last, scaled, amx):
    rng = np.random.default_rng(seed)
    shape = (*batch, m, n)

    def values(*dims: int) -> np.ndarray:
        return rng.standard_normal(dims, dtype=np.float32)

    def addend(kind: str | None) -> np.ndarray | None:
        ones = (1,) * len(batch)
        dims = {None: None, "n": (*ones, 1, n), "m": (*ones, m, 1), "one": (*ones, 1, 1), "all": shape}[kind]
        return None if dims is None else broadcast(rng, values(*dims), shape, plain)

    stretched = [int(d if rng.random() < 0.6 else 1) for d in batch]
    a = broadcast(rng, values(*stretched, m, k), (*batch, m, k), plain)
    w = values(k, n)
    bias_values, residual_values = addend(bias), addend(residual)
    scale, shift = (values(n), values(n)) if scaled else (None, None)
    inputs = [a, pack(w), bias_values, residual_values, scale, shift]
    p = [alpha, *ACTIVATIONS[activation], residual_last, int(amx)]
    whole = run("BGEMM", layout(rng, shape, plain=plain), inputs, p, isa=isa)

    a64, w64 = rounded(a).astype(np.float64), rounded(w).astype(np.float64)
    wanted, magnitude = alpha * (a64 @ w64), abs(alpha) * (np.abs(a64) @ np.abs(w64))
    wanted, magnitude = epilogue(wanted, magnitude, activation, bias_values, residual_values, scale, shift, residual_last)
    check(whole, wanted, magnitude, k)

    tiles = boxes(rng, shape, int(rng.integers(2, 9)))
    extras = [None if e is None else filled(rng, e) for e in (bias_values, residual_values)]
    relaid = [filled(rng, a), inputs[1], *extras, scale, shift]
    assert same_bits(whole, run("BGEMM", layout(rng, shape), relaid, p, tiles, isa)), "bits depend on the tile or on the layout"


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("p", [PLAIN, AMX])
@pytest.mark.parametrize(("m", "k", "n"), [(1, 2048, 1000), (14, 768, 96), (300, 2048, 40), (128, 3072, 70), (1000, 513, 33)])
def test_blocks_of_rows(isa, m, k, n, p):
    """More rows than are rounded at a time, and every row by itself."""
    rng = np.random.default_rng(m)
    a, w = rng.standard_normal((m, k), dtype=np.float32), rng.standard_normal((k, n), dtype=np.float32)
    whole = run("BGEMM", np.empty((m, n), np.float32), [a, pack(w)], p, isa=isa)
    check(whole, rounded(a).astype(np.float64) @ rounded(w), np.abs(rounded(a)).astype(np.float64) @ np.abs(rounded(w)), k)
    rows = [([i, 0], [i + 1, n]) for i in range(m)]
    assert same_bits(whole, run("BGEMM", np.empty((m, n), np.float32), [a, pack(w)], p, rows, isa=isa))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("p", [PLAIN, AMX])
def test_columns_of_the_same_rows(isa, p):
    """What a tile has rounded the next may use: of the same rows, and no others."""
    rng = np.random.default_rng(2)
    a, w = rng.standard_normal((2, 60, 130), dtype=np.float32), pack(rng.standard_normal((130, 96), dtype=np.float32))
    whole = run("BGEMM", np.empty((2, 60, 96), np.float32), [a, w], p, isa=isa)
    out = np.empty_like(whole)
    spans = [(0, 1, 0, 20), (0, 1, 20, 60), (1, 2, 0, 20), (1, 2, 20, 60)]
    tiles = [([n, top, c], [stop, end, c + 32]) for n, stop, top, end in spans for c in (0, 32, 64)]
    _kernels.time_tiles("BGEMM", [out, a, w], p, np.array(tiles, np.int64), 1, isa)
    assert same_bits(out, whole)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("p", [PLAIN, AMX])
def test_rounding(isa, p):
    """To nearest even, of factors of any size; NaN and infinities stay what they are."""
    a = np.stack([HALVES, np.zeros_like(HALVES)], axis=1)
    out = run("BGEMM", np.empty((len(HALVES), 1), np.float32), [a, pack(np.ones((2, 1), np.float32))], p, isa=isa)
    np.testing.assert_array_equal(out[:, 0], rounded(HALVES))


@pytest.mark.parametrize("isa", ISAS)
def test_what_a_call_may_be(isa):
    a, w, out = np.zeros((3, 7), np.float32), np.zeros((1, 4, 32), np.uint32), np.ones((3, 5), np.float32)

    def call(args, p=PLAIN, room=None):
        return _kernels.call("BGEMM", args, p, [0] * out.ndim, out.shape, isa, room)

    asked = _kernels.scratch("BGEMM", [out, a, w], PLAIN, [0, 0], out.shape)
    assert call([out, a, w]) == call([out, a, w], room=asked) == 0
    assert (out == 0).all()
    assert call([out, a, w], room=asked - 1) == SCRATCH
    assert call([out, a, w.view(np.float32)]) == BAD_ARGUMENT
    assert call([out, a.astype(np.float64), w]) == BAD_ARGUMENT
    assert call([out, a, w, np.zeros(5, np.float32)]) == BAD_ARGUMENT
    assert call([out, a, w], [1.0, 4000, 0.0, 0.0, 0, 0]) == BAD_ARGUMENT
    assert call([out, a, w, None, None, np.zeros(5, np.float32)]) == BAD_ARGUMENT
    empty = np.empty((3, 0), np.float32)
    for p in (PLAIN, AMX):
        out[...] = 1
        assert call([out, empty, np.empty((1, 0, 32), np.uint32)], p) == 0
        assert (out == 0).all()


@both_ways
def test_without_the_instruction(tmp_path):
    """The other tests of this file."""
    check_without(tmp_path, __file__, SWITCH, has=_isa.sums_pairs)
