"""GEMM on every ISA against float64, over drawn shapes, layouts, epilogues and tilings."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_tools import ACTIVATIONS, ISAS, boxes, broadcast, epilogue, filled, layout, pack_panels, run, same_bits

from aspen_mp.workers import _kernels

SIZES = st.one_of(st.integers(1, 40), st.sampled_from([1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 96, 100, 129]))


def params(packed: bool | int, alpha: float, activation: str, residual_last: int = 0) -> list[int | float]:
    return [int(packed), alpha, *ACTIVATIONS[activation], int(residual_last), 0, 0]


def check(result: np.ndarray, wanted: np.ndarray, magnitude: np.ndarray, terms: int) -> None:
    """Rounding of a sum of `terms` products of total magnitude `magnitude`, and a few ulp for the activation."""
    error = np.abs(result - wanted)
    bound = (terms + 8) * 2.0**-24 * magnitude * 1.5 + 8 * 2.0**-24 * np.abs(wanted) + 1e-7
    assert (error <= bound).all(), f"worst error {error.max():.3g}, bound there {bound.reshape(-1)[error.argmax()]:.3g}"


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=120, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    batch=st.lists(st.integers(1, 3), max_size=2),
    m=SIZES,
    k=SIZES,
    n=SIZES,
    packed=st.booleans(),
    plain=st.booleans(),
    alpha=st.sampled_from([1.0, 1.0, 0.125, -1.7]),
    activation=st.sampled_from(sorted(ACTIVATIONS)),
    bias=st.sampled_from([None, "n", "m", "one", "all"]),
    residual=st.sampled_from([None, None, "all", "n"]),
    residual_last=st.integers(0, 2),
    scaled=st.booleans(),
)
def test_against_float64(isa, seed, batch, m, k, n, packed, plain, alpha, activation, bias, residual, residual_last, scaled):
    rng = np.random.default_rng(seed)
    shape = (*batch, m, n)

    def values(*dims: int) -> np.ndarray:
        return rng.standard_normal(dims, dtype=np.float32)

    def stretched(dims: tuple[int, ...]) -> list[int]:
        return [int(d if rng.random() < 0.6 else 1) for d in dims]

    def addend(kind: str | None) -> np.ndarray | None:
        ones = (1,) * len(batch)
        dims = {None: None, "n": (*ones, 1, n), "m": (*ones, m, 1), "one": (*ones, 1, 1), "all": shape}[kind]
        return None if dims is None else broadcast(rng, values(*dims), shape, plain)

    a = broadcast(rng, values(*stretched(tuple(batch)), m, k), (*batch, m, k), plain)
    if packed:
        w = values(k, n)
        b, b64 = pack_panels(w), w.astype(np.float64)
    else:
        b = broadcast(rng, values(*stretched(tuple(batch)), k, n), (*batch, k, n), plain)
        b64 = b.astype(np.float64)
    bias_values, residual_values = addend(bias), addend(residual)
    out = layout(rng, shape, plain=plain)
    scale, shift = (values(n), values(n)) if scaled else (None, None)
    inputs = [a, b, bias_values, residual_values, scale, shift]
    p = params(packed, alpha, activation, residual_last)
    whole = run("GEMM", out, inputs, p, isa=isa)

    a64 = a.astype(np.float64)
    wanted, magnitude = alpha * (a64 @ b64), abs(alpha) * (np.abs(a64) @ np.abs(b64))
    wanted, magnitude = epilogue(wanted, magnitude, activation, bias_values, residual_values, scale, shift, residual_last)
    check(whole, wanted, magnitude, k)

    tiles = boxes(rng, shape, int(rng.integers(2, 9)))
    assert same_bits(whole, run("GEMM", out, inputs, p, tiles, isa))
    extras = [None if e is None else filled(rng, e) for e in (bias_values, residual_values)]
    relaid = [filled(rng, a), b if packed else filled(rng, b), *extras, scale, shift]
    assert same_bits(whole, run("GEMM", layout(rng, shape), relaid, p, tiles, isa)), "bits depend on the layout"


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("m", "k", "n"), [(1, 2048, 1000), (3, 300, 500), (6, 400, 300), (128, 768, 96), (77, 513, 130)])
def test_packed_raw_and_transposed_agree(isa, m, k, n):
    """One order of summation on every path: the bits are the same however B is stored and whatever the tile."""
    rng = np.random.default_rng(m)
    a, w = rng.standard_normal((m, k), dtype=np.float32), rng.standard_normal((k, n), dtype=np.float32)
    out = np.empty((m, n), np.float32)
    packed = run("GEMM", out, [a, pack_panels(w)], params(True, 1.0, "IDENTITY"), isa=isa)
    check(packed, a.astype(np.float64) @ w, np.abs(a).astype(np.float64) @ np.abs(w), k)
    for b in (w, np.asfortranarray(w)):
        assert same_bits(packed, run("GEMM", out, [a, b], params(False, 1.0, "IDENTITY"), isa=isa))
        rows = [([i, 0], [i + 1, n]) for i in range(m)]
        assert same_bits(packed, run("GEMM", out, [a, b], params(False, 1.0, "IDENTITY"), rows, isa=isa))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("n", range(1, 10))
def test_few_columns_have_the_bits_of_many(isa, n):
    """Vectors of rows, and of columns: where rows lie, what follows the sums and where the columns begin makes no difference."""
    rng = np.random.default_rng(n)
    for k in (1, 3, 20, 64, 65, 131):
        m, first = int(rng.integers(1, 70)), int(rng.integers(0, 60))
        activation = str(rng.choice(sorted(ACTIVATIONS)))
        a, w = rng.standard_normal((m, k), dtype=np.float32), pack_panels(rng.standard_normal((k, 70), dtype=np.float32))
        row, scale, shift = rng.standard_normal((3, 70), dtype=np.float32)
        inputs = [a, w, np.broadcast_to(row, (m, 70)), None, scale, shift]
        p = params(True, 0.75, activation)
        whole = run("GEMM", np.empty((m, 70), np.float32), inputs, p, isa=isa)
        columns = [([0, 0], [m, first]), ([0, first], [m, first + n]), ([0, first + n], [m, 70])]
        for out in (np.empty((m, 70), np.float32), layout(rng, (m, 70))):
            assert same_bits(whole, run("GEMM", out, [filled(rng, a), *inputs[1:]], p, columns, isa))
        alone = [a, pack_panels(pack_columns(w)[:, :n]), np.broadcast_to(row[:n], (m, n)), None, scale[:n], shift[:n]]
        assert same_bits(whole[:, :n], run("GEMM", np.empty((m, n), np.float32), alone, p, isa=isa))


def pack_columns(panels: np.ndarray) -> np.ndarray:
    """The matrix that was packed, with the zeros that fill its last panel."""
    return panels.transpose(1, 0, 2).reshape(panels.shape[1], -1)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("k", [1, 2, 127, 128, 129, 131, 515])
def test_weights_from_memory(isa, k):
    """What is fetched ahead changes no bit, whatever panels are taken together and wherever the box begins and ends."""
    rng = np.random.default_rng(k)
    for m in range(1, 17):
        for n in (1, 16, 24, 33, 64, 100, 128, 200, 256):
            a, w = rng.standard_normal((m, k), dtype=np.float32), pack_panels(rng.standard_normal((k, n), dtype=np.float32))
            out = np.empty((m, n), np.float32)
            wanted = run("GEMM", out, [a, w], params(1, 1.0, "IDENTITY"), isa=isa)
            assert same_bits(wanted, run("GEMM", out, [a, w], params(2, 1.0, "IDENTITY"), isa=isa))
            cut = [([0, 0], [m, n // 3]), ([0, n // 3], [m, n])]
            assert same_bits(wanted, run("GEMM", out, [a, w], params(2, 1.0, "IDENTITY"), cut, isa=isa))


@pytest.mark.parametrize("isa", ISAS)
def test_sum_is_ascending_from_zero(isa):
    """Terms whose sum depends on the order of summation."""
    k = 500
    rng = np.random.default_rng(5)
    a = (rng.standard_normal(k) * 10.0 ** rng.integers(-6, 6, k)).astype(np.float32)
    ones = np.ones((k, 40), np.float32)
    wanted = np.float32(0)
    for x in a:
        wanted = np.float32(wanted + x)
    for m in (1, 2, 3, 5, 8, 19):
        out = np.empty((m, 40), np.float32)
        assert (run("GEMM", out, [np.tile(a, (m, 1)), pack_panels(ones)], params(True, 1.0, "IDENTITY"), isa=isa) == wanted).all()


@pytest.mark.parametrize("isa", ISAS)
def test_nan_and_infinity_reach_the_output(isa):
    a = np.array([[np.nan, 1], [np.inf, 1], [-np.inf, 1], [1, 1]], np.float32)
    b = np.ones((2, 33), np.float32)
    expected = {"RELU": [np.nan, np.inf, 0, 2], "IDENTITY": [np.nan, np.inf, -np.inf, 2], "CLIP": [np.nan, 1.5, -0.5, 1.5]}
    for activation, wanted in expected.items():
        result = run("GEMM", np.empty((4, 33), np.float32), [a, b], params(False, 1.0, activation), isa=isa)
        np.testing.assert_array_equal(result, np.tile(np.array(wanted, np.float32)[:, None], (1, 33)))


@pytest.mark.parametrize("isa", ISAS)
def test_empty_sum_is_zero(isa):
    a, b = np.empty((3, 0), np.float32), np.empty((0, 5), np.float32)
    assert (run("GEMM", np.empty((3, 5), np.float32), [a, b], params(False, 1.0, "IDENTITY"), isa=isa) == 0).all()


def test_bad_arguments_are_refused():
    a, b = np.ones((2, 2), np.float32), np.ones((2, 2), np.float32)
    assert _kernels.call("GEMM", [np.empty((2, 2), np.float64), a, b], params(False, 1.0, "IDENTITY"), [0, 0], [2, 2]) == 2
    assert _kernels.call("GEMM", [np.empty((2, 2), np.float32), a, b], [0, 1.0, 4000, 0.0, 0.0, 0, 0, 0], [0, 0], [2, 2]) == 2
    ok = [np.empty((2, 2), np.float32), a, b, None, None]
    scale = np.ones(2, np.float32)
    for extra in ([scale], [scale, np.ones(3, np.float32)], [scale, np.ones(2)], [np.ones(4, np.float32)[::2], scale]):
        assert _kernels.call("GEMM", [*ok, *extra], params(False, 1.0, "IDENTITY"), [0, 0], [2, 2]) == 2
