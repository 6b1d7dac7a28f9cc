"""Kernels of elements, and those that read all that there is."""

from __future__ import annotations

from aspen_mp.planner.ir import Node, Shape
from aspen_mp.planner.regions.boxes import Boxes, Region, Rule, broadcast, whole


def _elementwise(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    return broadcast(shape, lo, hi)


def _all_of_it(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    return whole(shape, len(lo))


RULES: dict[str, Rule] = {
    "view.expand": _elementwise,
    "UNARY": _elementwise,
    "BINARY": _elementwise,
    "TERNARY": _elementwise,
    "CAST": _elementwise,
    "COPY": _elementwise,
    "QUANTIZE": _elementwise,
    "DEQUANTIZE": _elementwise,
    "LEVELS": _all_of_it,
    "OPAQUE": _all_of_it,
}
