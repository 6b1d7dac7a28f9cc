"""Random attributes of tree ensembles, and what they say, walked one node at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
Array = np.ndarray[Any, np.dtype[Any]]


def compare(mode: str, x: float, value: float) -> bool:
    """Whether a node's comparison holds."""
    return {
        "BRANCH_LEQ": x <= value,
        "BRANCH_LT": x < value,
        "BRANCH_GTE": x >= value,
        "BRANCH_GT": x > value,
        "BRANCH_EQ": x == value,
        "BRANCH_NEQ": x != value,
    }[mode]


def attributes(
    rng: np.random.Generator,
    *,
    trees: int = 4,
    depth: int = 4,
    features: int = 5,
    targets: Sequence[int] = (0,),
    modes: Sequence[str] = ("BRANCH_LEQ",),
    missing: bool = False,
    weights: str = "target",
    sparse: bool = False,
    shared: bool = False,
    positive: bool = False,
) -> dict[str, Any]:
    """Attributes of TreeEnsembleRegressor (or, `weights` "class", Classifier). Nodes of a tree have ids in any
    order; the root is first.
    `targets`: those that every leaf gives a weight to (`sparse`: some of them). `shared`: some nodes have a child that another node has."""
    rows: list[tuple[Any, ...]] = []
    leaves: list[tuple[int, int, int, float]] = []
    for tree in range(trees):
        count = 1
        nodes: dict[int, tuple[Any, ...]] = {}
        todo = [(0, 0)]
        while todo:
            at, level = todo.pop()
            if level == depth or (level and rng.random() < 0.2):
                nodes[at] = (0, 0.0, "LEAF", 0, 0, 0)
                for t in targets:
                    if not sparse or rng.random() < 0.6:
                        weight = float(rng.integers(-8, 9)) / 8
                        leaves.append((tree, at, t, abs(weight) / (2 * trees) if positive else weight))
                continue
            yes, no = count, count + 1
            count += 2
            todo += [(yes, level + 1), (no, level + 1)]
            nodes[at] = (
                int(rng.integers(features)),
                float(rng.integers(-3, 4)) / 2,
                str(rng.choice(modes)),
                yes,
                no,
                int(missing and rng.random() < 0.5),
            )
        if shared:  # a later node's child takes the place of one's own
            inner = [at for at in nodes if nodes[at][2] != "LEAF"]
            for at in inner[1:]:
                if rng.random() < 0.4:
                    f, v, m, yes, _, t = nodes[at]
                    nodes[at] = (f, v, m, yes, yes if rng.random() < 0.5 else max(nodes), t)
        names = {at: at if at == 0 else int(k) + 1 for at, k in zip(nodes, np.r_[0, rng.permutation(len(nodes) - 1)], strict=True)}
        for at, (feature, value, mode, yes, no, tracks) in nodes.items():
            rows.append(
                (
                    tree * 3 + 1,
                    names[at],
                    feature,
                    value,
                    mode,
                    names[yes] if mode != "LEAF" else 0,
                    names[no] if mode != "LEAF" else 0,
                    tracks,
                )
            )
        leaves = [(t, names[at] if t == tree and k >= 0 else at, target, w) for k, (t, at, target, w) in enumerate(leaves)]
    columns = ("treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids", "missing_value_tracks_true")
    out: dict[str, Any] = {f"nodes_{name}": list(column) for name, column in zip(columns, zip(*rows, strict=True), strict=True)}
    if not missing:
        del out["nodes_missing_value_tracks_true"]
    order = rng.permutation(len(leaves))
    for k, name in enumerate(("treeids", "nodeids", "ids", "weights")):
        out[f"{weights}_{name}"] = [leaves[i][k] * 3 + 1 if k == 0 else leaves[i][k] for i in order]
    return out


def reached(attrs: dict[str, Any], x: Array) -> list[tuple[int, int]]:
    """(tree, node) of the leaves that a row ends in, tree by tree."""
    columns = ("treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids")
    tracks = attrs.get("nodes_missing_value_tracks_true") or [0] * len(attrs["nodes_nodeids"])
    nodes = {(row[0], row[1]): row[2:] for row in zip(*(attrs[f"nodes_{c}"] for c in columns), tracks, strict=True)}
    found = []
    for tree in dict.fromkeys(attrs["nodes_treeids"]):
        at = next(n for t, n in nodes if t == tree)
        while nodes[tree, at][2] != "LEAF":
            feature, value, mode, yes, no, track = nodes[tree, at]
            v = x[feature]
            at = yes if compare(mode, v, x.dtype.type(value)) or (track and np.isnan(v)) else no
        found.append((tree, at))
    return found


def sums(attrs: dict[str, Any], x: Array, targets: int, aggregate: str = "SUM", weights: str = "target") -> Array:
    """[N, targets] in float64, without base values."""
    of_leaf: dict[tuple[int, int], list[tuple[int, float]]] = {}
    for tree, node, target, weight in zip(*(attrs[f"{weights}_{k}"] for k in ("treeids", "nodeids", "ids", "weights")), strict=True):
        of_leaf.setdefault((tree, node), []).append((target, weight))
    out = np.zeros((len(x), targets))
    for r, row in enumerate(x):
        given: list[list[float]] = [[] for _ in range(targets)]
        leaves = reached(attrs, row)
        for leaf in leaves:
            for target, weight in of_leaf.get(leaf, ()):
                given[target].append(weight)
        for t, values in enumerate(given):
            if values:
                out[r, t] = {"SUM": sum(values), "AVERAGE": sum(values) / len(leaves), "MIN": min(values), "MAX": max(values)}[aggregate]
    return out


def rows(rng: np.random.Generator, n: int, features: int, dtype: Any = np.float32, special: bool = True) -> Array:
    """Features that meet thresholds, with NaN and infinities where the type has them."""
    x = (rng.integers(-4, 5, (n, features)) / (2 if np.dtype(dtype).kind == "f" else 1)).astype(dtype)
    if special and np.dtype(dtype).kind == "f":
        for value, p in ((np.nan, 0.1), (np.inf, 0.03), (-np.inf, 0.03)):
            x[rng.random(x.shape) < p] = value
    return x
