"""Kernels of ai.onnx.ml: a row of the output comes of the same row of the input, and of whole tables."""

from __future__ import annotations

from aspen_mp.planner.ir.graph import Node, Shape
from aspen_mp.planner.ops.regions.boxes import Boxes, Region, Rule, whole


def _rows(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    out_lo, out_hi = whole(shape, len(lo))
    if i == 0:
        out_lo[:, 0], out_hi[:, 0] = lo[:, 0], hi[:, 0]
    return out_lo, out_hi


def _scores(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    """Without a transform over all classes, one column of each."""
    out_lo, out_hi = _rows(node, i, shape, lo, hi)
    if not node.attrs["second"] and not node.attrs["transform"].startswith("SOFTMAX"):
        out_lo[:, 1], out_hi[:, 1] = lo[:, 1], hi[:, 1]
    return out_lo, out_hi


def _rbf(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    out_lo, out_hi = _rows(node, i, shape, lo, hi)
    if i == 1:
        out_lo[:, 0], out_hi[:, 0] = lo[:, 1] // shape[2], -(-hi[:, 1] // shape[2])
    return out_lo, out_hi


RULES: dict[str, Rule] = {
    "TREES": _rows,
    "SCORES": _scores,
    "LABELS": _rows,
    "RBF": _rbf,
    "DUELS": _rows,
    "COUPLE": _rows,
}
