"""Operators of ``ai.onnx.ml`` that have kernels: shapes, of which ONNX's inference knows few, and labels.

Kernels give classes as integers. Where a model names them by strings, its classifier gives places in the list of names, and a Gather
behind it takes the names: all that is left to do without a kernel (`named`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from onnx import NodeProto, helper

from aspen_mp.planner.frontends import tensors
from aspen_mp.planner.ir import Shape, Tensor

DOMAIN: Final = "ai.onnx.ml"
OPSET: Final = 13
"""Of the default domain, for models that import none."""
_LABELS: Final = {
    "TreeEnsembleClassifier": "classlabels_int64s",
    "LinearClassifier": "classlabels_ints",
    "SVMClassifier": "classlabels_ints",
}
"""Classifiers, and their attribute of labels that are integers."""
_NUMBERS: Final = frozenset({"float32", "float64", "int32", "int64"})
_F32, _I64 = np.dtype(np.float32), np.dtype(np.int64)
Types = dict[str, tuple[np.dtype[Any], Shape]]


def named(proto: NodeProto, attrs: dict[str, Any], inputs: Sequence[Tensor | None]) -> tuple[list[NodeProto], Tensor] | None:
    """A classifier with strings for labels as one that gives their places, and a Gather of the names; and the names. None: this is none, or
    its labels are other ones than those it names."""
    own = _LABELS.get(proto.op_type)
    labels = [v.decode(errors="replace") if isinstance(v, bytes) else str(v) for v in attrs.get("classlabels_strings") or []]
    if (
        own is None
        or len(labels) < 2
        or not proto.output
        or not proto.output[0]
        or _scores(proto.op_type, attrs, len(labels)) != len(labels)
    ):
        return None
    place, names = f"{proto.output[0]}.place", f"{proto.output[0]}.names"
    classifier = NodeProto()
    classifier.CopyFrom(proto)
    del classifier.attribute[:]
    classifier.attribute.extend(a for a in proto.attribute if a.name not in {"classlabels_strings", own})
    classifier.attribute.append(helper.make_attribute(own, list(range(len(labels)))))
    classifier.output[0] = place
    gather = helper.make_node("Gather", [names, place], [proto.output[0]], name=f"{proto.name}.labels" if proto.name else "")
    return [classifier, gather], Tensor(names, (len(labels),), tensors.OBJECT, data=np.array(labels, object))


def _scores(op: str, attrs: dict[str, Any], labels: int) -> int:
    """How many classes the scores tell apart: with fewer than two, or other than labels, labels follow rules of their own."""
    if op == "LinearClassifier":
        scores = len(attrs.get("intercepts") or [])
        return labels if scores == labels or (scores == 1 and labels == 2) else 0
    if op == "TreeEnsembleClassifier" and labels == 2:
        return 2 if len(set(attrs.get("class_ids") or [])) == 1 else 0
    return labels


def types(proto: NodeProto, attrs: dict[str, Any], inputs: Sequence[Tensor | None]) -> Types | None:
    """Dtypes and shapes of the outputs; None where ONNX's own inference has to say them."""
    x = inputs[0] if inputs else None
    if x is None or x.dtype.name not in _NUMBERS or len(x.shape) not in (1, 2):
        return None
    op, rows = proto.op_type, x.shape[0] if len(x.shape) == 2 else 1
    found: list[tuple[np.dtype[Any], Shape]] | None = None
    if op == "TreeEnsembleRegressor":
        found = [(_F32, (rows, int(attrs.get("n_targets", 1))))]
    elif op == "LinearRegressor":
        found = [(_F32, (rows, int(attrs.get("targets", 1))))]
    elif op == "SVMRegressor":
        found = [(_F32, (rows, 1))]
    elif op in ("Scaler", "Normalizer"):
        found = [(_F32, x.shape)]
    elif op == "Imputer":
        found = [(x.dtype, x.shape)]
    elif op in _LABELS and attrs.get(_LABELS[op]) and not attrs.get("classlabels_strings"):
        columns = _columns(op, attrs, len(attrs[_LABELS[op]]))
        found = [(_I64, (rows,)), (_F32, (rows, columns))] if columns else None
    if found is None:
        return None
    return {name: kind for name, kind in zip(proto.output, found, strict=False) if name}


def _columns(op: str, attrs: dict[str, Any], labels: int) -> int:
    """Of a classifier's scores."""
    if op == "LinearClassifier":
        scores = len(attrs.get("intercepts") or [])
        return 2 if scores == 1 and labels == 2 else scores
    if op == "SVMClassifier" and attrs.get("vectors_per_class") and not attrs.get("prob_a"):
        return labels * (labels - 1) // 2 if labels > 2 else 2
    return labels
