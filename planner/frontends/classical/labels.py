"""Labels of classifiers that are strings. Kernels give classes as integers. So a classifier gives places in the list of names, and a Gather
behind it takes the names. Only that is left to do without a kernel."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np
from onnx import NodeProto, helper

from aspen_mp.planner.frontends import tensors
from aspen_mp.planner.ir.graph import Tensor

OPSET: Final = 13
"""The version of the default domain for models that import none."""
_LABELS: Final = {
    "TreeEnsembleClassifier": "classlabels_int64s",
    "LinearClassifier": "classlabels_ints",
    "SVMClassifier": "classlabels_ints",
}
"""Classifiers, and their attribute of labels that are integers."""


def named(proto: NodeProto, attrs: dict[str, Any]) -> tuple[list[NodeProto], Tensor] | None:
    """A classifier with strings for labels as one that gives their places, and a Gather of the names; and the names. None: this is none, or
    its labels are other ones than those it names."""
    labels = names(proto, attrs)
    if labels is None:
        return None
    place, listed = f"{proto.output[0]}.place", f"{proto.output[0]}.names"
    classifier = numbered(proto, range(len(labels)))
    classifier.output[0] = place
    gather = helper.make_node("Gather", [listed, place], [proto.output[0]], name=f"{proto.name}.labels" if proto.name else "")
    return [classifier, gather], Tensor(listed, (len(labels),), tensors.OBJECT, data=np.array(labels, object))


def names(proto: NodeProto, attrs: dict[str, Any]) -> list[str] | None:
    """The names of a classifier's labels; None as of `named`."""
    labels = [v.decode(errors="replace") if isinstance(v, bytes) else str(v) for v in attrs.get("classlabels_strings") or []]
    known = proto.op_type in _LABELS and len(labels) > 1 and proto.output and proto.output[0]
    return labels if known and _scores(proto.op_type, attrs, len(labels)) == len(labels) else None


def numbered(proto: NodeProto, numbers: Iterable[int]) -> NodeProto:
    """The classifier with these numbers for its labels."""
    own = _LABELS[proto.op_type]
    classifier = NodeProto()
    classifier.CopyFrom(proto)
    del classifier.attribute[:]
    classifier.attribute.extend(a for a in proto.attribute if a.name not in {"classlabels_strings", own})
    classifier.attribute.append(helper.make_attribute(own, list(numbers)))
    return classifier


def _scores(op: str, attrs: dict[str, Any], labels: int) -> int:
    """How many classes the scores tell apart: with fewer than two, or other than labels, labels follow rules of their own."""
    if op == "LinearClassifier":
        scores = len(attrs.get("intercepts") or [])
        return labels if scores == labels or (scores == 1 and labels == 2) else 0
    if op == "TreeEnsembleClassifier" and labels == 2:
        return 2 if len(set(attrs.get("class_ids") or [])) == 1 else 0
    return labels
