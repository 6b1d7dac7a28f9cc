"""Drawn models of trees, support vectors and linear models (`ai.onnx.ml`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import onnx
from onnx import TensorProto, helper

from aspen_mp.bench.drawn.case import ELEMENTS, I64, NUMBERS, Case, D, F, Rng, S, floats, table

TRANSFORMS: Final = ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO")


def labels(rng: Rng, count: int, ints: str) -> tuple[dict[str, Any], int]:
    if rng.random() < 0.4:
        return {"classlabels_strings": [f"c{k}" for k in rng.permutation(count)]}, S
    return {ints: [int(k) + 5 for k in rng.permutation(count)]}, I64


# ---- trees

_MODES: Final = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")


class _Grown:
    """Trees by chance, as the lists of versions 1 to 4."""

    def __init__(self, rng: Rng, columns: int, whole: bool) -> None:
        self.rng, self.columns, self.whole = rng, columns, whole
        self.modes = rng.choice(_MODES, int(rng.integers(1, 4)))
        names = ("treeids", "nodeids", "featureids", "modes", "values", "truenodeids", "falsenodeids", "missing_value_tracks_true")
        self.lists: dict[str, list[Any]] = {f"nodes_{name}": [] for name in names}
        self.leaves: list[tuple[int, int]] = []
        for tree in range(int(rng.integers(1, 6))):
            self._grow(tree, int(rng.integers(1, 5)), [0])
        if rng.random() < 0.4:
            del self.lists["nodes_missing_value_tracks_true"]

    def _grow(self, tree: int, depth: int, count: list[int]) -> int:
        rng, here, at = self.rng, count[0], len(self.lists["nodes_treeids"])
        count[0] += 1
        leaf = depth == 0 or rng.random() < 0.15
        value = float(rng.integers(-3, 4)) if self.whole else float(np.float32(rng.standard_normal()))
        row = (tree, here, int(rng.integers(self.columns)), "LEAF" if leaf else str(rng.choice(self.modes)), 0.0 if leaf else value, 0, 0)
        for values, item in zip(self.lists.values(), (*row, int(rng.integers(2))), strict=True):
            values.append(item)
        if leaf:
            self.leaves.append((tree, here))
            return here
        for side in ("true", "false"):
            self.lists[f"nodes_{side}nodeids"][at] = self._grow(tree, depth - 1, count)
        return here

    def weights(self, kind: str, targets: list[list[int]], positive: bool) -> dict[str, Any]:
        """`targets`: of each leaf."""
        entries = [(tree, node, target) for (tree, node), mine in zip(self.leaves, targets, strict=True) for target in mine]
        drawn = self.rng.random(len(entries)) if positive else self.rng.standard_normal(len(entries))
        names = [f"{kind}_treeids", f"{kind}_nodeids", f"{kind}_ids"]
        return {name: [e[k] for e in entries] for k, name in enumerate(names)} | {f"{kind}_weights": floats(drawn)}


def _rows_for_trees(rng: Rng, columns: int, dtype: str, whole: bool) -> Any:
    shape = (int(rng.integers(1, 70)), columns)
    x = (rng.integers(-3, 4, shape) if whole or dtype.startswith("int") else rng.standard_normal(shape)).astype(dtype)
    if x.dtype.kind == "f" and rng.random() < 0.3:
        x[rng.random(shape) < 0.2] = np.nan
    return x


def _as_doubles(rng: Rng, attributes: dict[str, Any], x: Any, kind: str) -> None:
    """Lists of floats as tensors of doubles, which belong to inputs of doubles."""
    if x.dtype == np.float64 and rng.random() < 0.5:
        for name in ("nodes_values", f"{kind}_weights", "base_values"):
            if name in attributes:
                values = attributes.pop(name)
                attributes[f"{name}_as_tensor"] = helper.make_tensor(name, D, [len(values)], values)


def tree_regressor(rng: Rng) -> Case:
    columns, targets, whole = int(rng.integers(1, 5)), int(rng.integers(1, 4)), bool(rng.integers(2))
    trees = _Grown(rng, columns, whole)
    each = [list(range(targets)) if rng.random() < 0.3 else [int(rng.integers(targets))] for _ in trees.leaves]
    a = trees.lists | trees.weights("target", each, positive=False)
    a |= {"n_targets": targets, "aggregate_function": str(rng.choice(["SUM", "AVERAGE", "MIN", "MAX"]))}
    a["post_transform"] = str(rng.choice(TRANSFORMS))
    if rng.random() < 0.4:
        a["base_values"] = floats(rng.standard_normal(targets))
    x = _rows_for_trees(rng, columns, str(rng.choice(NUMBERS[:2])), whole)
    _as_doubles(rng, a, x, "target")
    return Case("TreeEnsembleRegressor", {"x": x}, [F], a, 3)


def tree_classifier(rng: Rng) -> Case:
    """Two classes, whose rules are their own, half of the time."""
    columns, whole, positive = int(rng.integers(1, 5)), bool(rng.integers(2)), bool(rng.integers(2))
    classes = int(rng.choice([2, 2, 2, 3, 4, 5]))
    trees = _Grown(rng, columns, whole)
    alone = int(rng.integers(classes)) if rng.random() < 0.5 else None
    everywhere = rng.random() < 0.4
    each = [[alone] if alone is not None else list(range(classes)) if everywhere else [int(rng.integers(classes))] for _ in trees.leaves]
    a = trees.lists | trees.weights("class", each, positive)
    a["post_transform"] = str(rng.choice(TRANSFORMS))
    if rng.random() < 0.4:
        a["base_values"] = floats(rng.standard_normal(classes) * 0.3)
    named, kind = labels(rng, classes, "classlabels_int64s")
    x = _rows_for_trees(rng, columns, str(rng.choice(NUMBERS)), whole)
    _as_doubles(rng, a, x, "class")
    return Case("TreeEnsembleClassifier", {"x": x}, [kind, F], a | named, 3)


class _Version5:
    """Trees by chance, as the lists of version 5, with sets of members."""

    def __init__(self, rng: Rng, columns: int, targets: int) -> None:
        self.rng, self.columns, self.targets = rng, columns, targets
        names = ("featureids", "truenodeids", "falsenodeids", "trueleafs", "falseleafs", "missing_value_tracks_true")
        self.lists: dict[str, list[int]] = {f"nodes_{name}": [] for name in names}
        self.modes: list[int] = []
        self.splits: list[float] = []
        self.leaf_targets: list[int] = []
        self.members: dict[int, list[float]] = {}
        self.reach = 40 if rng.random() < 0.3 else 5
        self.roots = [self._grow(int(rng.integers(1, 5))) for _ in range(int(rng.integers(1, 4)))]

    def _grow(self, depth: int) -> int:
        rng, here = self.rng, len(self.modes)
        mode = 6 if rng.random() < 0.3 else int(rng.integers(6))
        self.modes.append(mode)
        self.splits.append(0.0 if mode == 6 else float(rng.integers(-2, 3)))
        for values, item in zip(self.lists.values(), (int(rng.integers(self.columns)), 0, 0, 0, 0, int(rng.integers(2))), strict=True):
            values.append(item)
        if mode == 6:
            self.members[here] = np.unique(rng.integers(0, self.reach, int(rng.integers(1, 6)))).astype(float).tolist()
        for side in ("true", "false"):
            if depth > 1 and rng.random() < 0.7:
                self.lists[f"nodes_{side}nodeids"][here] = self._grow(depth - 1)
            else:
                self.lists[f"nodes_{side}nodeids"][here] = len(self.leaf_targets)
                self.lists[f"nodes_{side}leafs"][here] = 1
                self.leaf_targets.append(int(rng.integers(self.targets)))
        return here

    def attributes(self, kind: int) -> dict[str, Any]:
        def tensor(values: list[Any], elements: int = kind) -> onnx.TensorProto:
            return helper.make_tensor("t", elements, [len(values)], values)

        weights = floats(self.rng.standard_normal(len(self.leaf_targets)))
        a: dict[str, Any] = {"nodes_modes": tensor(self.modes, TensorProto.UINT8), "nodes_splits": tensor(self.splits)}
        a |= {"leaf_targetids": self.leaf_targets, "leaf_weights": tensor(weights), "tree_roots": self.roots}
        if self.members:
            a["membership_values"] = tensor([v for k in sorted(self.members) for v in (*self.members[k], float("nan"))])
        return a | self.lists


def tree_ensemble(rng: Rng) -> Case:
    """Without LOGISTIC and SOFTMAX, whose numbers the standard and onnxruntime give the other way round."""
    columns, targets = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    dtype = str(rng.choice(NUMBERS[:2]))
    a = _Version5(rng, columns, targets).attributes(ELEMENTS[np.dtype(dtype)])
    a |= {"n_targets": targets, "aggregate_function": int(rng.integers(4)), "post_transform": int(rng.choice([0, 0, 3]))}
    x = rng.integers(-3, 6, (int(rng.integers(1, 60)), columns)).astype(dtype)
    if rng.random() < 0.3:
        x[rng.random(x.shape) < 0.2] = np.nan
    return Case("TreeEnsemble", {"x": x}, [ELEMENTS[x.dtype]], a, 5)


# ---- support vectors, linear models


def _kernel(rng: Rng) -> dict[str, Any]:
    parameters = [rng.random(), rng.random(), int(rng.integers(1, 5))]
    return {"kernel_type": str(rng.choice(["LINEAR", "POLY", "RBF", "SIGMOID"])), "kernel_params": floats(parameters)}


def svm_classifier(rng: Rng) -> Case:
    columns, classes = int(rng.integers(1, 5)), int(rng.integers(2, 6))
    pairs = classes * (classes - 1) // 2
    named, kind = labels(rng, classes, "classlabels_ints")
    a = _kernel(rng) | named | {"post_transform": str(rng.choice(TRANSFORMS))}
    counts = [int(n) for n in rng.integers(1, 4, classes)] if rng.random() < 0.75 else []
    coefficients = rng.standard_normal((classes - 1) * sum(counts) if counts else classes * columns)
    a["coefficients"] = floats(np.abs(coefficients) if rng.random() < 0.3 else coefficients)
    a["rho"] = floats(rng.standard_normal(pairs if counts else 1))
    if counts:
        a |= {"vectors_per_class": counts, "support_vectors": floats(rng.standard_normal(sum(counts) * columns))}
        if rng.random() < 0.5:
            a |= {"prob_a": floats(-rng.random(pairs) * 2), "prob_b": floats(rng.standard_normal(pairs) * 0.2)}
    x = table(rng, columns, str(rng.choice(NUMBERS)))
    return Case("SVMClassifier", {"x": x}, [kind, F], a, 1, tolerance=2e-4)


def svm_regressor(rng: Rng) -> Case:
    columns, count = int(rng.integers(1, 5)), int(rng.integers(0, 6))
    a = _kernel(rng) | {"n_supports": count, "rho": floats(rng.standard_normal(1)), "one_class": int(rng.integers(2))}
    a["post_transform"] = str(rng.choice(TRANSFORMS))
    a["coefficients"] = floats(rng.standard_normal(count or columns))
    if count:
        a["support_vectors"] = floats(rng.standard_normal(count * columns))
    return Case("SVMRegressor", {"x": table(rng, columns, "float32")}, [F], a, 1, tolerance=2e-4)


def linear_classifier(rng: Rng) -> Case:
    columns, classes = int(rng.integers(1, 5)), int(rng.integers(1, 5))
    named, kind = labels(rng, max(classes, 2), "classlabels_ints")
    a = named | {"multi_class": int(rng.integers(2)), "post_transform": str(rng.choice(TRANSFORMS))}
    a |= {"coefficients": floats(rng.standard_normal(classes * columns)), "intercepts": floats(rng.standard_normal(classes))}
    return Case("LinearClassifier", {"x": table(rng, columns, str(rng.choice(NUMBERS)))}, [kind, F], a, 1)


def linear_regressor(rng: Rng) -> Case:
    columns, targets = int(rng.integers(1, 5)), int(rng.integers(1, 4))
    a: dict[str, Any] = {"targets": targets, "post_transform": str(rng.choice(TRANSFORMS))}
    a["coefficients"] = floats(rng.standard_normal(targets * columns))
    if rng.random() < 0.7:
        a["intercepts"] = floats(rng.standard_normal(targets))
    return Case("LinearRegressor", {"x": table(rng, columns, "float32")}, [F], a, 1)


DRAWS: Final[dict[str, Callable[[Rng], Case]]] = {
    "TreeEnsembleRegressor": tree_regressor,
    "TreeEnsembleClassifier": tree_classifier,
    "TreeEnsemble": tree_ensemble,
    "SVMClassifier": svm_classifier,
    "SVMRegressor": svm_regressor,
    "LinearClassifier": linear_classifier,
    "LinearRegressor": linear_regressor,
}
