"""SCORES, LABELS, RBF, DUELS and COUPLE on every ISA against float64."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_tools import ISAS, Array, check_tiles, filled, layout, pack_panels, run

NONE, LOGISTIC, SOFTMAX, SOFTMAX_ZERO, PROBIT = range(5)
ONE_MINUS, MINUS = 1, 2
GREATEST, ABOVE, VOTES = range(3)


def transformed(s: Array, transform: int) -> Array:
    s = s.astype(np.float64)
    if transform == LOGISTIC:
        return 1 / (1 + np.exp(-s))
    if transform == SOFTMAX:
        e = np.exp(s - s.max(1, keepdims=True))
        return e / e.sum(1, keepdims=True)
    if transform == SOFTMAX_ZERO:
        zero, most = np.abs(s) <= 1e-7, s.max(1, keepdims=True)
        e = np.where(zero, s * np.exp(-most), np.exp(s - most))
        return e / np.where(zero, 0, e).sum(1, keepdims=True)
    if transform == PROBIT:  # Winitzki's approximation, whose constants are onnxruntime's
        x = 2 * s - 1
        log = np.log((1 - x) * (1 + x))
        a, b = 2 / (3.14159 * 0.147) + 0.5 * log, log / 0.147
        return np.sqrt(2) * np.where(x < 0, -1, 1) * np.sqrt(np.sqrt(a * a - b) - a)
    return s


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    rows=st.sampled_from([1, 5, 64, 700]),
    columns=st.sampled_from([1, 2, 3, 17, 1500]),
    transform=st.sampled_from([NONE, LOGISTIC, SOFTMAX, SOFTMAX_ZERO, PROBIT]),
    second=st.sampled_from([0, 0, ONE_MINUS, MINUS]),
    kind=st.sampled_from([np.float32, np.float64]),
)
def test_scores(isa, seed, rows, columns, transform, second, kind):
    rng = np.random.default_rng(seed)
    columns = 1 if second else columns
    rows = min(rows, 7) if columns > 100 else rows
    s = (rng.uniform(0.02, 0.98, (rows, columns)) if transform == PROBIT else rng.normal(0, 4, (rows, columns))).astype(kind)
    if transform == SOFTMAX_ZERO:
        s[:, 1:][rng.random((rows, columns - 1)) < 0.3] = 0
    first = 1 - s.astype(np.float32) if second == ONE_MINUS else -s
    both = np.concatenate([first, s], 1) if second else s
    if transform == PROBIT and second == MINUS:
        both = both * 0 + 0.5
        s = s * 0 + 0.5
        transform = NONE
        both[:, 0] = -0.5
    wanted = transformed(both, transform)
    out = layout(rng, wanted.shape)
    params = [transform, second]
    result = run("SCORES", out, [filled(rng, s)], params, isa=isa)
    np.testing.assert_allclose(result, wanted, rtol=1e-5, atol=1e-6)
    check_tiles(rng, result, "SCORES", out, [filled(rng, s)], params, isa)


def elected(s: Array, classes: int) -> Array:
    votes = np.zeros((len(s), classes), int)
    pairs = [(i, j) for i in range(classes) for j in range(i + 1, classes)]
    for p, (i, j) in enumerate(pairs):
        votes[np.arange(len(s)), np.where(s[:, p] > 0, i, j)] += 1
    return votes.argmax(1)


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    rows=st.sampled_from([1, 6, 90]),
    classes=st.sampled_from([2, 3, 8]),
    mode=st.sampled_from([GREATEST, ABOVE, VOTES]),
    kind=st.sampled_from([np.float32, np.float64]),
)
def test_labels(isa, seed, rows, classes, mode, kind):
    rng = np.random.default_rng(seed)
    s = (rng.integers(-3, 4, (rows, classes * (classes - 1) // 2 if mode == VOTES else classes)) / 2).astype(kind)
    column, threshold = int(rng.integers(s.shape[1])), float(rng.choice([0.0, 0.5]))
    table = rng.integers(-(2**40), 2**40, 2 if mode == ABOVE else classes)
    index = {GREATEST: lambda: s.argmax(1), ABOVE: lambda: (s[:, column] > threshold).astype(int), VOTES: lambda: elected(s, classes)}[
        mode
    ]()
    out = layout(rng, (rows,), np.int64)
    operands, params = [filled(rng, s), filled(rng, table)], [mode, column, threshold]
    result = run("LABELS", out, operands, params, isa=isa)
    assert (result == table[index]).all()
    check_tiles(rng, result, "LABELS", out, operands, params, isa)


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    rows=st.sampled_from([1, 4, 9]),
    vectors=st.sampled_from([1, 32, 45, 96]),
    features=st.sampled_from([1, 5, 30]),
)
def test_rbf(isa, seed, rows, vectors, features):
    rng = np.random.default_rng(seed)
    x, v = (rng.standard_normal((n, features)).astype(np.float32) for n in (rows, vectors))
    gamma = 0.3
    wanted = np.exp(-np.float64(np.float32(gamma)) * ((x[:, None].astype(np.float64) - v) ** 2).sum(-1))
    out = layout(rng, wanted.shape)
    operands = [filled(rng, x), pack_panels(v.T)]
    result = run("RBF", out, operands, [gamma], isa=isa)
    np.testing.assert_allclose(result, wanted, rtol=2e-5, atol=1e-12)
    check_tiles(rng, result, "RBF", out, operands, [gamma], isa)


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), rows=st.sampled_from([1, 6]), classes=st.sampled_from([2, 3, 5]))
def test_duels_and_couples(isa, seed, rows, classes):
    rng = np.random.default_rng(seed)
    starts = np.r_[0, np.cumsum(rng.integers(0, 12, classes))]
    pairs = [(i, j) for i in range(classes) for j in range(i + 1, classes)]
    k, coef = (rng.standard_normal((n, int(starts[-1]))).astype(np.float32) for n in (rows, classes - 1))
    rho, a, b = (rng.standard_normal(len(pairs)).astype(np.float32) for _ in range(3))
    wanted = np.zeros((rows, len(pairs)))
    for p, (i, j) in enumerate(pairs):
        of_i, of_j = slice(starts[i], starts[i + 1]), slice(starts[j], starts[j + 1])
        wanted[:, p] = (k[:, of_i].astype(np.float64) @ coef[j - 1, of_i] + k[:, of_j].astype(np.float64) @ coef[i, of_j]) + rho[p]
    out = layout(rng, wanted.shape)
    operands = [filled(rng, k), filled(rng, coef), starts, rho]
    scores = run("DUELS", out, operands, [], isa=isa)
    np.testing.assert_allclose(scores, wanted, rtol=1e-6, atol=1e-6)
    check_tiles(rng, scores, "DUELS", out, operands, [], isa)

    out = layout(rng, (rows, classes))
    operands = [filled(rng, scores), a, b]
    result = run("COUPLE", out, operands, [], isa=isa)
    check_tiles(rng, result, "COUPLE", out, operands, [], isa)
    r = np.zeros((rows, classes, classes))
    for p, (i, j) in enumerate(pairs):
        r[:, i, j] = np.clip(1 / (1 + np.exp(scores[:, p].astype(np.float64) * a[p] + b[p])), 1e-7, 1 - 1e-7)
        r[:, j, i] = 1 - r[:, i, j]
    for row in range(rows):  # the minimum of the sum of (r[j, i] p[i] - r[i, j] p[j])^2 over p with sum 1
        q = -r[row].T * r[row]
        np.fill_diagonal(q, (r[row].T ** 2).sum(1))
        system = np.block([[q, np.ones((classes, 1))], [np.ones((1, classes)), np.zeros((1, 1))]])
        exact = np.linalg.solve(system, np.r_[np.zeros(classes), 1])[:classes]
        np.testing.assert_allclose(result[row], exact, atol=0.02)
        assert abs(result[row].sum() - 1) < 1e-5
