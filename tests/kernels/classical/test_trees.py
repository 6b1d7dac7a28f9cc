"""TREES on every ISA against walks that numpy makes one by one over the same tables, and tables that lead nowhere."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_tools import ISAS, Array, boxes, check_tiles, filled, layout, run, same_bits

from aspen_mp.workers import _kernels

EQUAL, MISSING = 1 << 29, 1 << 30
SUM, AVERAGE, LEAST, GREATEST = range(4)
CAST = {4: np.float32, 6: np.float64}


def records(dtype: type) -> np.dtype:
    word = np.uint32 if dtype is np.float32 else np.uint64
    return np.dtype({"names": ["value", "weight", "row", "feature", "child"], "formats": [dtype, dtype, word, np.uint32, np.uint32],
                     "offsets": [0, (n := np.dtype(dtype).itemsize), n, 2 * n, 2 * n + 4], "itemsize": 2 * n + 8})  # fmt: skip


class Forest:
    """Random tables: each tree grows from its root until it is deep enough or chance ends a branch."""

    def __init__(self, rng: np.random.Generator, dtype: type, trees: int, depth: int, features: int, targets: int, flags: int, gaps: bool):
        self.dtype, self.rows, self.weights = dtype, [], []
        self.table = np.zeros((trees, 4), np.int32)
        for k in range(trees):
            first = int(rng.integers(targets))
            count = int(rng.integers(1, targets - first + 1))
            root = len(self.rows)
            self.rows += [None, (np.nan, 0.0, 0, root + 1)]
            todo, deepest = [(root, 0)], 0
            while todo:
                at, level = todo.pop(0)
                deepest = max(deepest, level)
                if level == depth or (level and rng.random() < 0.25):
                    none = gaps and rng.random() < 0.3
                    if count == 1:
                        weight: float | int = np.nan if none else float(rng.standard_normal())
                    else:
                        weight = len(self.weights)
                        self.weights += [np.nan if none else float(v) for v in rng.standard_normal(count)]
                    self.rows[at] = (np.nan, weight, 0, at)
                    continue
                pair = len(self.rows)
                self.rows += [None, None]
                flag = int(rng.choice([[0], [0, MISSING], [0, EQUAL, MISSING, EQUAL | MISSING]][flags]))
                value = np.nan if rng.random() < 0.05 else float(rng.integers(-3, 4)) / 2
                self.rows[at] = (value, 0.0, int(rng.integers(features)) | flag, pair)
                todo += [(pair, level + 1), (pair + 1, level + 1)]
            self.table[k] = root, deepest, first, count
        self.most = int(self.table[:, 1].max())

    def nodes(self) -> Array:
        out = np.zeros(len(self.rows), records(self.dtype))
        for at, (value, weight, feature, child) in enumerate(self.rows):
            out[at]["value"], out[at]["feature"], out[at]["child"] = value, feature, child
            out[at]["row" if isinstance(weight, int) else "weight"] = weight
        return out.view(np.int32).reshape(len(out), -1)

    def reference(self, x: Array, targets: int, aggregate: int, base: Array | None) -> Array:
        """Row by row, tree by tree, in the type of the thresholds."""
        out = np.zeros((len(x), targets), self.dtype)
        for r, row in enumerate(x.astype(self.dtype)):
            sums = np.zeros(targets, self.dtype) if aggregate <= AVERAGE else np.full(targets, np.nan, self.dtype)
            for root, _, first, count in self.table.tolist():
                at = root
                while self.rows[at][3] != at:
                    value, _, feature, child = self.rows[at]
                    v = row[feature & (EQUAL - 1)]
                    right = v == value if feature & EQUAL else v <= value
                    at = child + bool((feature & MISSING) if np.isnan(v) else right)
                weight = self.rows[at][1]
                given = self.weights[weight : weight + count] if count > 1 else [weight]
                for t, w in enumerate(np.array(given, self.dtype), first):
                    if aggregate <= AVERAGE:
                        sums[t] += w
                    elif not np.isnan(w):
                        better = w < sums[t] if aggregate == LEAST else w > sums[t]
                        sums[t] = w if np.isnan(sums[t]) or better else sums[t]
            if aggregate == AVERAGE:
                sums /= self.dtype(len(self.table))
            sums[np.isnan(sums)] = 0
            out[r] = sums if base is None else sums + base
        return out


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    rows=st.sampled_from([1, 2, 7, 8, 9, 31, 70]),
    trees=st.sampled_from([1, 3, 8, 21]),
    depth=st.sampled_from([0, 1, 4, 7]),
    targets=st.sampled_from([1, 1, 2, 5]),
    double=st.booleans(),
    kind=st.sampled_from([np.float32, np.float64, np.int32, np.int64]),
    flags=st.integers(0, 2),
    missing=st.booleans(),
    aggregate=st.sampled_from([SUM, SUM, AVERAGE, LEAST, GREATEST]),
)
def test_trees(isa, seed, rows, trees, depth, targets, double, kind, flags, missing, aggregate):
    rng = np.random.default_rng(seed)
    features, dtype = int(rng.integers(1, 9)), np.float64 if double else np.float32
    forest = Forest(rng, dtype, trees, depth, features, targets, flags, aggregate > AVERAGE)
    x = (rng.integers(-4, 5, (rows, features)) / (1 if np.issubdtype(kind, np.integer) else 2)).astype(kind)
    if x.dtype.kind == "f":
        if missing:
            x[rng.random(x.shape) < 0.1] = np.nan
        x[rng.random(x.shape) < 0.05] = np.inf
        x[rng.random(x.shape) < 0.05] = -np.inf
    base = rng.standard_normal(targets).astype(dtype) if rng.random() < 0.5 else None
    weights = np.array(forest.weights, dtype) if forest.weights else None
    wanted = forest.reference(x, targets, aggregate, base)
    out = layout(rng, wanted.shape, np.float64 if double and rng.random() < 0.5 else np.float32)
    operands = [filled(rng, x, bool(rng.random() < 0.5)), forest.nodes(), forest.table, weights, base]
    params = [aggregate, flags, forest.most]
    result = run("TREES", out, operands, params, isa=isa)
    assert same_bits(result, wanted.astype(out.dtype))
    check_tiles(rng, result, "TREES", out, operands, params, isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("words", [4, 6])
def test_tables_of_nonsense(isa, words):
    """Whatever tables say, a call ends and touches nothing but its operands; behind each of these lies memory that would show it."""
    rng = np.random.default_rng(words)
    for _ in range(40):
        n, t, features, targets = (int(v) for v in rng.integers(1, 9, 4))
        nodes = rng.integers(-(2**31), 2**31, (n, words)).astype(np.int32)
        nodes[rng.random(n) < 0.5, -1] = rng.integers(0, n)
        trees = rng.integers(-(2**31), 2**31, (t, 4)).astype(np.int32)
        trees[rng.random(t) < 0.7, 0] = rng.integers(0, n)
        weights = rng.standard_normal(int(rng.integers(0, 4))).astype(CAST[words])
        x = rng.standard_normal((int(rng.integers(1, 20)), features)).astype(CAST[words])
        out = np.empty((len(x), targets), np.float32)
        run("TREES", out, [x, nodes, trees, weights if len(weights) else None], [int(rng.integers(4)), int(rng.integers(3)), 12], isa=isa)


@pytest.mark.parametrize("isa", ISAS)
def test_wide_rows(isa):
    """Rows of so many features that few fit a block, copied or not."""
    rng = np.random.default_rng(3)
    forest = Forest(rng, np.float32, 5, 3, 40_000, 2, 0, False)
    x = rng.standard_normal((11, 40_000)).astype(np.float32)
    wanted = forest.reference(x, 2, SUM, None)
    operands = [None, forest.nodes(), forest.table, np.array(forest.weights or [0], np.float32)]
    for source in (x, np.asfortranarray(x), x.astype(np.float64)):
        operands[0] = source
        out = np.empty(wanted.shape, np.float32)
        assert same_bits(run("TREES", out, operands, [SUM, 0, forest.most], boxes(rng, out.shape, 3), isa), wanted)


def test_arguments_that_fit_no_kernel():
    x, out = np.zeros((2, 3), np.float32), np.zeros((2, 1), np.float32)
    nodes, trees = np.zeros((1, 4), np.int32), np.zeros((1, 4), np.int32)
    assert _kernels.call("TREES", [out, x, nodes[:0], trees], [0, 0, 1], [0, 0], [2, 1]) != 0
    assert _kernels.call("TREES", [out, x[:, :0], nodes, trees], [0, 0, 1], [0, 0], [2, 1]) != 0
