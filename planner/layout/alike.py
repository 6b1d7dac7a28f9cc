"""Steps of a graph that are alike in everything that tiles, their costs and their reads depend on. Layers repeat each other, and results
for one hold for all."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

from aspen_mp.planner.ir.graph import Node, Tensor
from aspen_mp.planner.ops.spec import OPAQUE
from aspen_mp.planner.ops.table import SPECS

if TYPE_CHECKING:
    from aspen_mp.planner.layout.storage import Storage


def kinds(storage: Storage) -> list[int]:
    """A number for each of ``storage.steps``, equal for steps that are alike. These have the same kernel and attributes, and operands of
    the same shapes, dtypes and strides, of which the same are constant. Worked out once for a storage."""
    if len(storage.kinds) != len(storage.steps):
        numbers: dict[Hashable, int] = {}
        storage.kinds[:] = [numbers.setdefault(_kind(node, storage), len(numbers)) for node in storage.steps]
    return storage.kinds


def _kind(node: Node, storage: Storage) -> Hashable:
    refs = storage.refs
    inputs = tuple([None if x is None else (x.shape, x.dtype.num, x.is_const, refs[x].strides, _held(node, x)) for x in node.inputs])
    outputs = tuple([(t.shape, t.dtype.num, refs[t].strides) for t in node.outputs])
    attrs = () if node.op == OPAQUE else tuple(node.attrs.items())
    kind = (node.op, node.batch_slice, inputs, outputs, attrs)
    try:
        hash(kind)
    except TypeError:  # an attribute that is a list or an array
        return id(node)
    return kind


def _held(node: Node, x: Tensor) -> int:
    return id(x) if x.data is not None and SPECS[node.op].by_value else 0
