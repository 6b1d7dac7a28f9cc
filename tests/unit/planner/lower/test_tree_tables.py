"""Tables of trees say what the attributes of ONNX's operators say, and what is no tree is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from forests import MODES, attributes, reached, rows
from onnx import numpy_helper

from aspen_mp.planner.lower.builder import NoKernel
from aspen_mp.planner.lower.classical import tree_tables
from aspen_mp.planner.ops.call import Arg, Call, Misfit
from aspen_mp.planner.ops.table import check_call
from aspen_mp.shm.errors import ModelInvalidError
from aspen_mp.shm.tables import DTYPES

F32, F64 = np.dtype(np.float32), np.dtype(np.float64)


def walk(packed: tree_tables.Packed, x: np.ndarray, dtype: np.dtype[Any]) -> list[float]:
    """The weights of the leaves that a row ends in, of trees with one target."""
    layout = [("value", dtype), ("weight", dtype), ("feature", np.int32), ("child", np.int32)]
    nodes = np.ascontiguousarray(packed.nodes).view(np.dtype(layout)).reshape(-1)
    found = []
    for root, steps, _, _ in packed.trees.tolist():
        at = root
        for _ in range(steps):
            value, _, feature, child = nodes[at].tolist()
            v = x[feature & (tree_tables.EQUAL - 1)]
            right = bool(v <= value) and not (feature & tree_tables.EQUAL and v < value)
            at = child + (bool(feature & tree_tables.MISSING) if np.isnan(v) else right)
        assert nodes[at]["child"] == at
        found.append(float(nodes[at]["weight"]))
    return found


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("modes", [("BRANCH_LEQ",), ("BRANCH_GT",), MODES])
@pytest.mark.parametrize("seed", range(6))
def test_walks(dtype: np.dtype[Any], shared: bool, modes: tuple[str, ...], seed: int) -> None:
    rng = np.random.default_rng(seed)
    attrs = attributes(rng, modes=modes, shared=shared, missing=seed % 2 == 0)
    trees = tree_tables.from_nodes(attrs, "target")
    packed = tree_tables.pack(trees, 1, "SUM", dtype)
    given = dict(zip(zip(attrs["target_treeids"], attrs["target_nodeids"], strict=True), attrs["target_weights"], strict=True))
    assert packed.weights is None
    assert packed.most == packed.trees[:, 1].max()
    for row in rows(rng, 40, 5, dtype):
        assert walk(packed, row, dtype) == [given[leaf] for leaf in reached(attrs, row)]


def test_flags_are_told() -> None:
    rng = np.random.default_rng(1)
    for modes, flags in ((("BRANCH_LEQ", "BRANCH_LT"), 0), (("BRANCH_EQ",), 2), (("BRANCH_GT",), 1), (("BRANCH_GT", "BRANCH_NEQ"), 2)):
        attrs = attributes(rng, modes=modes, depth=3)
        assert tree_tables.pack(tree_tables.from_nodes(attrs, "target"), 1, "SUM", F32).flags == flags


@pytest.mark.parametrize("value", [-np.inf, np.inf, np.nan, 0.0, 1e-45])
@pytest.mark.parametrize("mode", MODES)
def test_thresholds_at_the_ends(mode: str, value: float) -> None:
    attrs = {"nodes_treeids": [0] * 3, "nodes_nodeids": [0, 1, 2], "nodes_featureids": [0] * 3, "nodes_values": [value, 0.0, 0.0]}
    attrs |= {"nodes_modes": [mode, "LEAF", "LEAF"], "nodes_truenodeids": [1, 0, 0], "nodes_falsenodeids": [2, 0, 0]}
    attrs |= {"target_treeids": [0, 0], "target_nodeids": [1, 2], "target_ids": [0, 0], "target_weights": [1.0, -1.0]}
    packed = tree_tables.pack(tree_tables.from_nodes(attrs, "target"), 1, "SUM", F32)
    for x in (-np.inf, np.inf, np.nan, 0.0, -0.0, 1e-45, 1.0):
        row = np.array([x], np.float32)
        assert walk(packed, row, F32) == [1.0 if reached(attrs, row) == [(0, 1)] else -1.0], (mode, value, x)


def test_long_chains() -> None:
    """As deep as nodes go, and in time that does not grow with the square of it."""
    n = 3000
    ids = list(range(2 * n + 1))
    attrs: dict[str, Any] = {"nodes_treeids": [0] * len(ids), "nodes_nodeids": ids, "nodes_featureids": [0] * len(ids)}
    attrs["nodes_values"] = [float(i) for i in ids]
    attrs["nodes_modes"] = ["BRANCH_LEQ" if i % 2 == 0 and i < 2 * n else "LEAF" for i in ids]
    attrs["nodes_truenodeids"] = [i + 1 if i % 2 == 0 and i < 2 * n else 0 for i in ids]
    attrs["nodes_falsenodeids"] = [i + 2 if i % 2 == 0 and i < 2 * n else 0 for i in ids]
    attrs |= {"target_treeids": [0] * (n + 1), "target_nodeids": [*range(1, 2 * n, 2), 2 * n], "target_ids": [0] * (n + 1)}
    attrs["target_weights"] = [float(i) for i in range(n + 1)]
    packed = tree_tables.pack(tree_tables.from_nodes(attrs, "target"), 1, "SUM", F32)
    assert packed.most == n
    assert walk(packed, np.array([1e9], np.float32), F32) == [float(n)]


def replaced(name: str, at: int, value: Any) -> Callable[[dict[str, Any]], None]:
    def damage(attrs: dict[str, Any]) -> None:
        attrs[name][at] = value

    return damage


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (replaced("nodes_truenodeids", 0, 99), "names node 99"),
        (replaced("nodes_truenodeids", 2, 0), "below itself"),
        (replaced("nodes_falsenodeids", 2, 2), "below itself"),
        (replaced("nodes_nodeids", 1, 2), "twice"),
        (replaced("nodes_modes", 0, "BRANCH_MAYBE"), "BRANCH_MAYBE"),
        (replaced("target_ids", 0, 1), "target 1 of 1"),
        (replaced("target_ids", 0, -1), "target -1"),
        (replaced("target_nodeids", 0, 77), "names node 77"),
        (lambda attrs: attrs["nodes_values"].pop(), "nodes_values has"),
        (lambda attrs: attrs["target_weights"].pop(), "target_weights"),
    ],
)
def test_what_is_no_tree_is_refused(damage: Callable[[dict[str, Any]], None], message: str) -> None:
    attrs: dict[str, Any] = {
        "nodes_treeids": [4] * 5,
        "nodes_nodeids": [0, 1, 2, 3, 4],
        "nodes_featureids": [0] * 5,
        "nodes_values": [0.5] * 5,
    }
    attrs |= {"nodes_modes": ["BRANCH_LEQ", "LEAF", "BRANCH_LEQ", "LEAF", "LEAF"], "nodes_truenodeids": [1, 0, 3, 0, 0]}
    attrs |= {"nodes_falsenodeids": [2, 0, 4, 0, 0], "target_treeids": [4] * 3, "target_nodeids": [1, 3, 4], "target_ids": [0] * 3}
    attrs["target_weights"] = [1.0, 2.0, 3.0]
    tree_tables.pack(tree_tables.from_nodes(attrs, "target"), 1, "SUM", F32)
    damage(attrs)
    with pytest.raises(ModelInvalidError, match=message):
        tree_tables.pack(tree_tables.from_nodes(attrs, "target"), 1, "SUM", F32)


def test_weights_far_apart_are_left_to_others() -> None:
    rng = np.random.default_rng(3)
    attrs = attributes(rng, depth=6, targets=(0, 100_000), sparse=True)
    with pytest.raises(NoKernel, match="spread"):
        tree_tables.pack(tree_tables.from_nodes(attrs, "target"), 100_001, "SUM", F32)


def test_sets() -> None:
    """Membership is a chain of comparisons; a set may be empty."""
    sets = [[1.0, 3.0, 8.0], [], [2.0]]
    members = np.array([v for s in sets for v in (*s, np.nan)], np.float32)
    attrs = {
        "nodes_splits": numpy_helper.from_array(np.zeros(3, np.float32)),
        "nodes_modes": numpy_helper.from_array(np.full(3, 6, np.uint8)),
        "nodes_featureids": [0, 0, 0],
        "nodes_truenodeids": [0, 1, 2],
        "nodes_trueleafs": [1, 1, 1],
        "nodes_falsenodeids": [1, 2, 3],
        "nodes_falseleafs": [0, 0, 1],
        "tree_roots": [0],
        "leaf_targetids": [0] * 4,
        "leaf_weights": numpy_helper.from_array(np.array([1.0, 2.0, 3.0, 4.0], np.float32)),
        "membership_values": numpy_helper.from_array(members),
    }
    packed = tree_tables.pack(tree_tables.from_leaves(attrs), 1, "SUM", F32)
    found = [walk(packed, np.array([x], np.float32), F32)[0] for x in (1, 3, 8, 2, 5, np.nan)]
    assert found == [1, 1, 1, 3, 4, 4]


def call(kernel: str, shapes: list[tuple[str, tuple[int, ...]] | None], params: list[int], change: tuple[int, Any] | None = None) -> None:
    """Checks a call; `change`: an operand, or a parameter behind them, that is another."""
    if change is not None and change[0] >= len(shapes):
        params = [*params[: change[0] - len(shapes)], change[1], *params[change[0] - len(shapes) + 1 :]]
    elif change is not None:
        shapes = [*shapes[: change[0]], change[1], *shapes[change[0] + 1 :]]
    out, *inputs = (None if s is None else Arg(DTYPES[s[0]], s[1], True) for s in shapes)
    assert out is not None
    check_call(kernel, Call(out, inputs, params))


CALLS: dict[str, tuple[list[tuple[str, tuple[int, ...]] | None], list[int], list[tuple[int, Any]]]] = {
    "TREES": (
        [("F32", (9, 2)), ("F32", (9, 5)), ("I32", (30, 4)), ("I32", (3, 4)), ("F32", (7,)), ("F32", (2,))],
        [0, 0, 6],
        [
            (0, ("F32", (8, 2))),
            (0, ("I32", (9, 2))),
            (0, ("F32", (9, 0))),
            (1, ("BOOL", (9, 5))),
            (1, ("F32", (9, 0))),
            (2, ("I32", (30, 5))),
            (2, ("I32", (0, 4))),
            (2, ("F32", (30, 4))),
            (3, ("I32", (3, 3))),
            (3, ("I32", (0, 4))),
            (4, ("F64", (7,))),
            (5, ("F32", (3,))),
            (6, 4),
            (7, 3),
            (8, -1),
            (8, 1 << 30),
        ],
    ),
    "SCORES": (
        [("F32", (9, 2)), ("F64", (9, 1))],
        [1, 2],
        [(0, ("F64", (9, 2))), (0, ("F32", (9, 3))), (1, ("F64", (9, 2))), (1, ("I32", (9, 1))), (2, 5), (3, 3), (3, 0)],
    ),
    "LABELS": (
        [("I64", (9,)), ("F32", (9, 3)), ("I64", (3,))],
        [2, 0, 0],
        [
            (0, ("I64", (8,))),
            (0, ("I32", (9,))),
            (1, ("F32", (9, 4))),
            (1, ("I64", (9, 3))),
            (2, ("I64", (4,))),
            (2, ("I32", (3,))),
            (3, 3),
            (3, 1),
        ],
    ),
    "DGEMM": (
        [("F64", (2, 9, 5)), ("F64", (2, 9, 4)), ("F64", (2, 4, 5)), ("F64", (2, 9, 5))],
        [0, 0, 0, 0, 2],
        [
            (0, ("F32", (2, 9, 5))),
            (1, ("F64", (2, 8, 4))),
            (1, ("F64", (9, 4))),
            (2, ("F64", (2, 3, 5))),
            (3, ("F64", (1, 1, 5))),
            (5, 99),
            (8, 3),
        ],
    ),
    "SOFTMAX": (
        [("F64", (9, 5)), ("F64", (9, 5))],
        [1, 0],
        [(0, ("F32", (9, 5))), (1, ("F32", (9, 5))), (1, ("F64", (9, 4))), (2, 2)],
    ),
    "RBF": (
        [("F32", (9, 40)), ("F32", (9, 5)), ("F32", (2, 5, 32))],
        [0],
        [(0, ("F32", (9, 70))), (1, ("F32", (8, 5))), (1, ("F64", (9, 5))), (2, ("F32", (2, 4, 32)))],
    ),
    "DUELS": (
        [("F32", (9, 3)), ("F32", (9, 6)), ("F32", (2, 6)), ("I64", (4,)), ("F32", (3,))],
        [],
        [(0, ("F32", (9, 2))), (1, ("F32", (9, 7))), (2, ("F32", (3, 6))), (3, ("I64", (3,))), (3, ("I32", (4,))), (4, ("F32", (2,)))],
    ),
    "COUPLE": (
        [("F32", (9, 3)), ("F32", (9, 3)), ("F32", (3,)), ("F32", (3,))],
        [],
        [(0, ("F32", (9, 4))), (1, ("F32", (8, 3))), (2, ("F32", (2,))), (3, ("F64", (3,)))],
    ),
}


@pytest.mark.parametrize("kernel", CALLS)
def test_operands_that_do_not_fit_are_refused(kernel: str) -> None:
    shapes, params, changes = CALLS[kernel]
    call(kernel, shapes, params)
    for change in changes:
        with pytest.raises(Misfit):
            call(kernel, shapes, params, change)
