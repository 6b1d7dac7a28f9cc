"""Tree ensembles of ai.onnx.ml: TREES gives the scores. LABELS and SCORES turn them into a classifier's results.

onnxruntime's rules are followed where ONNX leaves them open. Two classes of which only the first has weights have one score. Whether all
weights are positive decides how it is read (`_two_classes`).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from aspen_mp.planner.ir.graph import Node, Tensor
from aspen_mp.planner.lower.builder import F32, F64, I32, I64, Builder, NoKernel
from aspen_mp.planner.lower.classical import tree_tables
from aspen_mp.planner.lower.elementwise import data
from aspen_mp.planner.lower.registry import rule
from aspen_mp.planner.ops.classical import TRANSFORMS
from aspen_mp.shm.errors import ModelInvalidError

NUMBERS = (F32, F64, I32, I64)
_AGGREGATES_BY_NUMBER = ("AVERAGE", "SUM", "MIN", "MAX")
_TRANSFORMS_BY_NUMBER = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


def rows_of(b: Builder, node: Node) -> Tensor:
    """The input as rows of features."""
    x = data(node)
    if x.dtype not in NUMBERS:
        raise NoKernel(f"no kernel computes {x.dtype}")
    if x.size == 0:
        raise NoKernel("a tensor is empty")
    if len(x.shape) == 1:
        return b.reshape(x, (1, x.shape[0]))
    if len(x.shape) != 2:
        raise NoKernel(f"the input has {len(x.shape)} axes")
    return x


def of_model(name: str, value: npt.NDArray[Any]) -> Tensor:
    """A constant that follows from the model alone."""
    value = np.ascontiguousarray(value)
    digest = hashlib.sha256(f"{value.dtype}{value.shape}".encode() + value.tobytes()).hexdigest()[:32]
    return Tensor(f"{name}|{digest}", value.shape, value.dtype, data=value, weight_key=f"ml:{digest}")


def text(node: Node, name: str, default: str) -> str:
    value = node.attrs.get(name, default)
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def scores(b: Builder, s: Tensor, transform: str, second: str = "") -> Tensor:
    """Transforms the scores [N, C] for the output, f32. `second`: how two are made of one, "1 - s" or "-s"."""
    if transform not in TRANSFORMS:
        raise NoKernel(f"no kernel has the transform {transform}")
    if second and transform == "LOGISTIC":
        second = "-s"
    elif second:
        transform = "NONE" if transform != "PROBIT" else transform
    if not second and transform == "NONE":
        return b.cast(s, F32)
    if second and transform == "PROBIT":
        raise NoKernel("no kernel has PROBIT of one score for two classes")
    columns = 2 if second else s.shape[1]
    return b.emit("SCORES", [s], (s.shape[0], columns), F32, transform=transform, second=second)


def labels(b: Builder, s: Tensor, table: npt.NDArray[np.int64], mode: str, column: int = 0, threshold: float = 0.0) -> Tensor:
    """Labels [N] of rows, see LABELS in `params`."""
    return b.emit("LABELS", [s, b.constant(table, I64)], (s.shape[0],), I64, mode=mode, column=column, threshold=threshold)


def _emit(
    b: Builder, x: Tensor, trees: tree_tables.Trees, targets: int, aggregate: str, base: npt.NDArray[Any] | None, dtype: np.dtype[Any]
) -> Tensor:
    """TREES over rows `x`; `dtype`: of the result."""
    if aggregate not in tree_tables.AGGREGATES:
        raise NoKernel(f"no kernel aggregates by {aggregate}")
    try:
        last = tree_tables.features(trees)
    except ModelInvalidError as error:
        raise ModelInvalidError(f"node {b.name!r} ({b.onnx_op}): {error}") from None
    if last > x.shape[1]:
        raise ModelInvalidError(f"node {b.name!r} ({b.onnx_op}) looks at feature {last - 1} of {x.shape[1]}")
    if x.shape[1] >= tree_tables.MOST_FEATURES:
        raise NoKernel(f"no kernel takes {x.shape[1]} features")
    own = F64 if x.dtype == F64 else F32
    try:
        packed = tree_tables.pack(trees, targets, aggregate, own)
    except ModelInvalidError as error:
        raise ModelInvalidError(f"node {b.name!r} ({b.onnx_op}): {error}") from None
    tables: list[Tensor | None] = [of_model("nodes", packed.nodes), of_model("trees", packed.trees)]
    tables.append(None if packed.weights is None else of_model("weights", packed.weights))
    tables.append(None if base is None or not base.any() else of_model("base", base.astype(own)))
    attrs = {"aggregate": aggregate, "flags": packed.flags, "most": packed.most, "steps": packed.steps}
    return b.emit("TREES", [x, *tables], (x.shape[0], targets), dtype, **attrs)


def _trees(node: Node, weights: str) -> tree_tables.Trees:
    try:
        return tree_tables.from_nodes(node.attrs, weights)
    except ModelInvalidError as error:
        raise ModelInvalidError(f"node {node.name!r} ({node.onnx_op}): {error}") from None


def _base(attrs: dict[str, Any], targets: int) -> npt.NDArray[Any] | None:
    """Base values of a regressor: as many as targets, or none."""
    base = tree_tables.base_values(attrs)
    if len(base) not in (0, targets):
        raise NoKernel(f"there are {len(base)} base values for {targets} targets")
    return base if len(base) else None


@rule("ai.onnx.ml.TreeEnsembleRegressor")
def _regressor(b: Builder, node: Node) -> Tensor:
    x, targets = rows_of(b, node), int(node.attrs.get("n_targets", 1))
    transform = text(node, "post_transform", "NONE")
    if transform not in TRANSFORMS:
        raise NoKernel(f"no kernel has the transform {transform}")
    if targets == 1 and transform != "PROBIT":
        transform = "NONE"
    aggregate = text(node, "aggregate_function", "SUM")
    dtype = F32 if transform == "NONE" or x.dtype != F64 else F64
    trees = _trees(node, "target")
    _check_scores(trees, targets)
    return scores(b, _emit(b, x, trees, targets, aggregate, _base(node.attrs, targets), dtype), transform)


def _check_scores(trees: tree_tables.Trees, targets: int) -> None:
    """Raise NoKernel where a row may end without a weight for one of several targets.

    onnxruntime gives 0 for such a target, without its base value; TREES does not know which targets a row has met.
    """
    if targets > 1 and len(_always(trees, list(range(targets)))) < targets:
        raise NoKernel("rows may have no score for a target")


@rule("ai.onnx.ml.TreeEnsemble")
def _ensemble(b: Builder, node: Node) -> Tensor:
    x, attrs, targets = rows_of(b, node), node.attrs, int(node.attrs.get("n_targets", 1))
    aggregate, transform = int(attrs.get("aggregate_function", 1)), int(attrs.get("post_transform", 0))
    if not (0 <= aggregate < len(_AGGREGATES_BY_NUMBER) and 0 <= transform < len(_TRANSFORMS_BY_NUMBER)):
        raise NoKernel("the aggregate or transform is not known")
    name = _TRANSFORMS_BY_NUMBER[transform]
    if targets == 1 and name != "PROBIT":
        name = "NONE"
    if name != "NONE" and x.dtype == F64:
        raise NoKernel("no kernel transforms doubles")
    try:
        trees = tree_tables.from_leaves(attrs)
    except ModelInvalidError as error:
        raise ModelInvalidError(f"node {node.name!r} ({node.onnx_op}): {error}") from None
    if name != "NONE":
        _check_scores(trees, targets)
    y = _emit(b, x, trees, targets, _AGGREGATES_BY_NUMBER[aggregate], None, node.output.dtype)
    return y if name == "NONE" else scores(b, y, name)


@dataclass(frozen=True, slots=True)
class _Reading:
    """How the scores of classes are read. `base`: the scores before any tree. `second`: see `scores`. `column`, `threshold`: the second of
    `table` where that score is above. Without a column, the label of the greatest score."""

    base: npt.NDArray[Any] | None
    table: npt.NDArray[np.int64]
    second: str = ""
    column: int | None = None
    threshold: float = 0.0


@rule("ai.onnx.ml.TreeEnsembleClassifier")
def _classifier(b: Builder, node: Node) -> list[Tensor]:
    x, attrs = rows_of(b, node), node.attrs
    table = np.array(attrs.get("classlabels_int64s") or [], np.int64)
    transform, base = text(node, "post_transform", "NONE"), tree_tables.base_values(attrs)
    if attrs.get("classlabels_strings") or len(table) < 2 or len(base) > len(table):
        raise NoKernel("labels are strings, or fewer than two")
    trees = _trees(node, "class")
    used = sorted(set(trees.target.tolist()))
    always = _always(trees, used)
    if len(table) > 2:
        if len(always) < len(table) and len(base) < len(table):
            raise NoKernel("classes have no score")
        reading = _Reading(np.r_[base, np.zeros(len(table) - len(base), base.dtype)], table)
    elif always != used or not used:
        raise NoKernel("rows may have no score")
    else:
        reading = _two_classes(used, base, table, bool((trees.weight >= 0).all()))
    columns = 1 if reading.second else len(table)
    s = _emit(b, x, trees, columns, "SUM", reading.base, F64 if x.dtype == F64 else F32)
    if reading.column is None:
        label = labels(b, s, reading.table, "greatest")
    else:
        label = labels(b, s, reading.table, "above", reading.column, reading.threshold)
    return [label, scores(b, s, transform, reading.second)]


def _always(trees: tree_tables.Trees, used: list[int]) -> list[int]:
    """Targets that some tree gives a weight to whatever leaf a row ends in."""
    leaves = np.flatnonzero(trees.mode == tree_tables.LEAF)
    owner = np.searchsorted(trees.roots, np.arange(len(trees.mode)), side="right") - 1
    total = np.bincount(owner[leaves], minlength=len(trees.roots))
    found = []
    for target in used:
        having = np.unique(trees.leaf[trees.target == target])
        if (np.bincount(owner[having], minlength=len(trees.roots)) == total).any():
            found.append(target)
    return found


def _two_classes(used: list[int], base: npt.NDArray[Any], table: npt.NDArray[np.int64], positive: bool) -> _Reading:
    threshold = 0.5 if positive else 0.0
    if used == [0] and len(base) < 2:
        return _Reading(base if len(base) else None, table, "1 - s" if positive else "-s", 0, threshold)
    if len(base) == 2:
        raise NoKernel("two classes with weights have base values")
    if used == [1]:
        return _Reading(None, table, "", 1, threshold)
    numbers = np.array([0, 1], np.int64)  # onnxruntime's labels where both classes have weights
    return _Reading(np.r_[base, np.float32(0)] if len(base) else None, numbers, "", 1)
