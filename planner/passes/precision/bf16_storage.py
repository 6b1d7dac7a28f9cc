"""Activations between products of bf16 are stored as bf16: half the bytes, and nothing is left to round where they are read."""

from __future__ import annotations

from functools import partial

import ml_dtypes
import numpy as np

from aspen_mp.planner.ir.graph import VIEW_OPS, Graph, Node, Tensor
from aspen_mp.planner.job import reasons
from aspen_mp.planner.job.reasons import Reason, Tried
from aspen_mp.planner.ops.spec import COPY, Kind, OpSpec
from aspen_mp.planner.ops.table import SPECS

BF16 = np.dtype(ml_dtypes.bfloat16)
F32 = np.dtype(np.float32)
_MOVES = VIEW_OPS | {"concat", COPY}
"""Ops that give the elements of their inputs as they are: all that they read and write has one type."""


def store_as_bf16(graph: Graph) -> None:
    """Runs after `bf16.use_bf16`. Tensors that moves connect are stored alike. They become bf16 where every kernel that writes or reads
    them can do so, and one of them multiplies pairs of bf16. Others take longer to widen and round than they save. Inputs, outputs and
    constants keep their type."""
    groups = _Groups()
    for node in graph.nodes:
        if node.op in _MOVES:
            for tensor in (*node.inputs, *node.outputs):
                groups.join(node.output, tensor)
    kept, gains = set[Tensor](), set[Tensor]()
    for tensor in (*graph.inputs, *graph.outputs):
        kept.add(groups.of(tensor))
    for node in graph.nodes:
        _look_at(node, groups, kept, gains)
    for node in graph.nodes:
        for tensor in node.outputs:
            group = groups.of(tensor)
            if group in gains and group not in kept:
                tensor.dtype = BF16
                if node.op not in _MOVES:
                    reasons.tell(partial(_reason, node))


def _look_at(node: Node, groups: _Groups, kept: set[Tensor], gains: set[Tensor]) -> None:
    """Adds groups that stay as they are because of a node, and groups that gain from it."""
    spec = SPECS.get(node.op)
    for i, tensor in enumerate(node.inputs):
        if tensor is None:
            continue
        group = groups.of(tensor)
        if tensor.is_const or tensor.dtype != F32 or _is_volume(node):
            kept.add(group)
        if node.op in _MOVES:
            continue
        if spec is None or i >= len(spec.inputs) or not spec.inputs[i].halves:
            kept.add(group)
        elif i == 0 and _is_rounded(spec):
            gains.add(group)
    for k, tensor in enumerate(node.outputs):
        if tensor.dtype != F32 or _is_volume(node) or (node.op not in _MOVES and (spec is None or k or not spec.halves)):
            kept.add(groups.of(tensor))
        elif spec is not None and _is_rounded(spec):
            gains.add(groups.of(tensor))


def _is_rounded(spec: OpSpec) -> bool:
    """Whether a kernel multiplies pairs of bf16."""
    return spec.cost.item == BF16.itemsize


def _is_volume(node: Node) -> bool:
    """Whether it is a convolution or a pool over three axes."""
    spec = SPECS.get(node.op)
    return spec is not None and spec.kind is Kind.WINDOWED and len(node.output.shape) == 5


class _Groups:
    """Tensors that are stored alike, by one of them."""

    def __init__(self) -> None:
        self._parent = dict[Tensor, Tensor]()

    def of(self, tensor: Tensor) -> Tensor:
        root = tensor
        while root in self._parent:
            root = self._parent[root]
        while tensor is not root:
            self._parent[tensor], tensor = root, self._parent[tensor]
        return root

    def join(self, a: Tensor, b: Tensor | None) -> None:
        if b is not None and (one := self.of(a)) is not (other := self.of(b)):
            self._parent[other] = one


def _reason(node: Node) -> Reason:
    tried = (Tried("stored as f32", "twice the bytes, and products round them again"),)
    return Reason("precision", "stored as bf16", "all who read it can read bf16", tried=tried, node=node.name)
