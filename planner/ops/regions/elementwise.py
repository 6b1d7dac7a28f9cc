"""Kernels of elements, and those that read all that there is."""

from __future__ import annotations

from aspen_mp.planner.ir.graph import Node, Shape
from aspen_mp.planner.ops.regions.boxes import Boxes, Region, Rule, broadcast, whole


def elementwise(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    """The same elements, as numpy broadcasts them."""
    return broadcast(shape, lo, hi)


def all_of_it(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    """Every element."""
    return whole(shape, len(lo))


RULES: dict[str, Rule] = {
    "UNARY": elementwise,
    "BINARY": elementwise,
    "TERNARY": elementwise,
    "CAST": elementwise,
    "COPY": elementwise,
    "QUANTIZE": elementwise,
    "DEQUANTIZE": elementwise,
    "OPAQUE": all_of_it,
}
