"""Region maps: which part of an input a part of the output needs.

`input_region` is the one place where an op says this. Tile edges, halos of fused stacks, incremental execution and streaming input follow
from it. A region is a box in the logical axes (ONNX order) of the input: the smallest box around the elements read wherever that can be
computed, and never less than them. A box with hi ≤ lo on any axis is empty: nothing is read.
"""

from __future__ import annotations

from aspen_mp.planner.ir.graph import Node
from aspen_mp.planner.ops.regions import axes, elementwise, images, indexing, padding, products, recurrent, rows, sampling, views
from aspen_mp.planner.ops.regions.boxes import Boxes, Region, Rule

__all__ = ["input_region"]

_FAMILIES = (views, products, images, elementwise, axes, indexing, padding, sampling, recurrent, rows)
_RULES: dict[str, Rule] = {op: rule for family in _FAMILIES for op, rule in family.RULES.items()}


def input_region(node: Node, i: int, lo: Boxes, hi: Boxes) -> Region:
    """What input `i` of a kernel-level `node` must hold before boxes [lo, hi) of its first output can be computed.

    `lo`, `hi`: int64 [n, rank of the output], boxes within the output and not empty. Returns the same for the input: int64 [n, rank of the
    input], within the input. An OPAQUE node reads all of every input.
    """
    tensor = node.inputs[i]
    if tensor is None:
        raise ValueError(f"{node.name} has no input {i}")
    rule = _RULES.get(node.op)
    if rule is None:
        raise KeyError(f"{node.name}: no region map for {node.op}")
    return rule(node, i, tensor.shape, lo, hi)
