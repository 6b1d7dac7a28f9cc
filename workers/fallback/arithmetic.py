"""Operators that bodies of loops are made of, as numpy calls: functions, means and parts. `numpy_operators` lacks them because a graph has
kernels for them. `onnx.reference` computes the same, with several times the bookkeeping."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate, pairwise
from typing import Any, Final

import numpy as np
from onnx import NodeProto, helper

from aspen_mp.workers.fallback.numpy_operators import SMALLEST_OPSET, Array, Attrs, Call

UNEVEN: Final = 18
"""Opset from which on the last part of Split may be shorter."""
ONE_AXIS: Final = 13
"""Opset from which on Softmax is over one axis."""


def compile_node(node: NodeProto, opset: int) -> Call | None:
    """Compiles as `numpy_operators.compile_node` does."""
    made = _TABLE.get(node.op_type) if node.domain in {"", "ai.onnx"} and opset >= SMALLEST_OPSET else None
    if made is None or any(attribute.ref_attr_name for attribute in node.attribute):
        return None
    return made({a.name: helper.get_attribute_value(a) for a in node.attribute}, opset, node)


def _function(function: Call) -> Callable[[Attrs, int, NodeProto], Call]:
    """A function for real numbers alone."""
    return lambda a, opset, node: lambda x: function(x) if x.dtype.kind == "f" else NotImplemented


def _split(a: Attrs, opset: int, node: NodeProto) -> Call | None:
    """Into as many parts as there are outputs, the last of them perhaps shorter."""
    if "split" in a or any(node.input[1:]):
        return None
    axis, outputs = a.get("axis", 0), len(node.output)
    parts = a.get("num_outputs", outputs)

    slices: dict[int, list[tuple[slice, ...]]] = {}  # by length of the axis, which is the same in all rounds

    def run(x: Array, *_: None) -> Any:
        dim = x.shape[axis]
        if dim not in slices:
            if parts != outputs or (opset < UNEVEN and dim % parts):
                raise ValueError(f"an axis of {dim} cannot be split into {parts} parts for {outputs} outputs")
            ends = [min(end, dim) for end in accumulate([0, *[-(-dim // parts)] * parts])]
            before = (slice(None),) * (axis % x.ndim)
            slices[dim] = [(*before, slice(i, j)) for i, j in pairwise(ends)]
        return tuple([x[part] for part in slices[dim]])

    return run


def _softmax(a: Attrs, opset: int, node: NodeProto) -> Call | None:
    axis = a.get("axis", -1)
    if opset < ONE_AXIS:
        return None

    def run(x: Array) -> Any:
        if x.dtype.kind != "f" or x.dtype.itemsize < 4 or not x.size:
            return NotImplemented
        exponents = np.exp(x - np.maximum.reduce(x, axis, keepdims=True))
        return exponents / np.add.reduce(exponents, axis, keepdims=True)

    return run


def _mean(a: Attrs, opset: int, node: NodeProto) -> Call:
    keep, nothing = bool(a.get("keepdims", 1)), bool(a.get("noop_with_empty_axes", 0))

    def run(x: Array, axes: Array | None = None) -> Any:
        which = tuple(axes.tolist()) if axes is not None else tuple(a.get("axes", ()))
        if x.dtype.kind != "f" or not x.size or not x.ndim or (not which and nothing):
            return NotImplemented
        return np.mean(x, which or None, keepdims=keep)

    return run


def _power(a: Attrs, opset: int, node: NodeProto) -> Call:
    return lambda x, y: np.power(x, y) if x.dtype == y.dtype and x.dtype.kind == "f" else NotImplemented


_TABLE: Final[dict[str, Callable[[Attrs, int, NodeProto], Call | None]]] = {
    "Tanh": _function(np.tanh),
    "Sin": _function(np.sin),
    "Cos": _function(np.cos),
    "Reciprocal": _function(np.reciprocal),
    "Pow": _power,
    "Split": _split,
    "Softmax": _softmax,
    "ReduceMean": _mean,
}
