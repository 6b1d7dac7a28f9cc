"""Half precision is how values are stored, not how they are computed. Operators with kernels take and give f32, from where f16 and bf16
come in to where they go out. Nothing is rounded in between, so results are nearer to the model's meaning than steps of half precision.
Every rewrite for f32 serves such models, too. onnxruntime does the same on a CPU.

A value of half precision has up to two forms here. *Stored*: as the model has it; inputs, constants, results of operators without kernels
and of Cast. *Wide*: in f32; results of kernels, and what a Cast was made from. Operators that only move elements take stored ones as they
are. So tables and caches of keys and values are not widened as a whole. An operator that depends on the rounding itself (a conversion to
integers, one to f32 right behind one from f32) reads the stored form.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any, Final

import ml_dtypes
import numpy as np
import numpy.typing as npt
from onnx import helper

from aspen_mp.planner.ir.graph import Graph, Node, Stored, Tensor
from aspen_mp.planner.job import reasons
from aspen_mp.planner.job.reasons import Reason, Tried

_F32: Final = np.dtype(np.float32)
_ROUNDING: Final = {np.dtype(np.float16): 2.0**-11, np.dtype(ml_dtypes.bfloat16): 2.0**-8}
"""Half precision, and the relative error of its rounding."""
_WIDER: Final = frozenset({_F32, np.dtype(np.float64), *_ROUNDING})
_CASTS: Final = frozenset({"Cast", "CastLike"})
_MOVES: Final = frozenset({"Concat", "DepthToSpace", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Identity", "Pad"}) | {
    *("Reshape", "ScatterElements", "ScatterND", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze", "Where"),
}
_AS_THEY_ARE: Final = frozenset({*_CASTS, "QuantizeLinear", "DequantizeLinear", "OPAQUE", "Scan"})
"""Their results depend on types, besides rounding."""
_SMALL: Final = 1 << 16
"""Constants of at most this many bytes are widened at once."""


def compute_in_f32(graph: Graph, kernels: Collection[str]) -> None:
    """Rewrites the graph, at ONNX level. `kernels`: operators that have some."""
    dtypes = {t.dtype for t in (*graph.inputs, *graph.outputs)}
    for node in graph.nodes:
        dtypes.update([t.dtype for t in node.inputs if t is not None])
        dtypes.update([t.dtype for t in node.outputs])
    if not dtypes.isdisjoint(_ROUNDING):
        _Halves(graph, kernels).rewrite()


class _Halves:
    def __init__(self, graph: Graph, kernels: Collection[str]) -> None:
        self.graph, self.kernels = graph, kernels
        self.nodes: list[Node] = []
        self.computed: dict[Tensor, Tensor] = {}  # what exists in f32, by what the model has …
        self.cast: set[Tensor] = set()  # … and of that what a Cast of the model's rounds: its stored form is itself
        self.rounded: dict[Tensor, Tensor] = {}
        self.widened: dict[Tensor, Tensor] = {}
        self.same: dict[Tensor, Tensor] = {}  # results of conversions that need none

    def rewrite(self) -> None:
        for node in self.graph.nodes:
            node.inputs = [None if t is None else self.same.get(t, t) for t in node.inputs]
            if node.op not in _CASTS or not self._cast(node):
                self._node(node)
        self.graph.outputs = [self._stored(self.same.get(t, t)) for t in self.graph.outputs]
        self.graph.nodes = self.nodes

    def _node(self, node: Node) -> None:
        halves = [t for t in node.inputs if t is not None and t.dtype in _ROUNDING]
        as_they_are = node.op in _AS_THEY_ARE and not _of_levels(node)
        if not halves or as_they_are or node.op not in self.kernels or self._moves(node, halves):
            node.inputs = [None if t is None else self._stored(t) for t in node.inputs]
        else:
            reasons.tell(partial(_reason, node.name, str(halves[0].dtype)))
            node.inputs = [None if t is None else self._wide(t) for t in node.inputs]
            for k, out in enumerate(node.outputs):
                if out.dtype in _ROUNDING:
                    node.outputs[k] = self.computed[out] = Tensor(out.name, out.shape, _F32, producer=node)
        self.nodes.append(node)

    def _moves(self, node: Node, halves: list[Tensor]) -> bool:
        """Whether it moves elements of which most are stored."""
        if node.op not in _MOVES or node.attrs.get("reduction", "none") != "none":
            return False
        wide = sum(t.size for t in halves if t in self.computed)
        return not wide or wide < sum(t.size for t in halves if t not in self.computed and not t.is_const)

    def _cast(self, node: Node) -> bool:
        """Whether a conversion needs no more than what is noted here."""
        x, out = node.inputs[0], node.output
        if x is None or x.dtype not in _WIDER or out.dtype not in _WIDER:
            return False
        if x in self.computed and x not in self.cast:
            if out.dtype == _F32:
                self.same[out] = self.computed[x]
                return True
            x = node.inputs[0] = self.computed[x]
        if x.dtype == _F32 and out.dtype in _ROUNDING:
            self.computed[out] = x
            self.cast.add(out)
        return False

    def _stored(self, tensor: Tensor) -> Tensor:
        if tensor not in self.computed or tensor in self.cast:
            return tensor
        if tensor not in self.rounded:
            self.rounded[tensor] = self._converted(self.computed[tensor], tensor.dtype)
        return self.rounded[tensor]

    def _wide(self, tensor: Tensor) -> Tensor:
        if tensor.dtype not in _ROUNDING:
            return tensor
        if tensor in self.computed:
            return self.computed[tensor]
        if tensor not in self.widened:
            if tensor.is_const:
                self.graph.rounding = max(self.graph.rounding, _ROUNDING[tensor.dtype])
                self.widened[tensor] = _constant(tensor)
            else:
                self.widened[tensor] = self._converted(tensor, _F32)
        return self.widened[tensor]

    def _converted(self, tensor: Tensor, dtype: np.dtype[Any]) -> Tensor:
        out = Tensor(f"{tensor.name}|{dtype}", tensor.shape, dtype)
        out.producer = Node("Cast", out.name, [tensor], [out], {"to": helper.np_dtype_to_tensor_dtype(dtype)}, "Cast")
        self.nodes.append(out.producer)
        return out


def _of_levels(node: Node) -> bool:
    """Whether a node quantises to whole numbers, or back, in a precision that it does not name."""
    if node.op not in {"DequantizeLinear", "QuantizeLinear"}:
        return False
    levels, named = (node.inputs[0], "output_dtype") if node.op == "DequantizeLinear" else (node.output, "precision")
    return levels is not None and levels.dtype.kind in "iu" and node.attrs.get(named, 0) in {0, 1}  # 1: f32


def _reason(name: str, stored: str) -> Reason:
    rule = "kernels compute in f32, and round what is stored"
    return Reason("precision", "f32", rule, tried=(Tried(stored, "no kernel computes it"),), node=name)


def _constant(tensor: Tensor) -> Tensor:
    """A constant in f32; a large one is made when it is written. Products may take it as it is stored."""

    def pack(out: npt.NDArray[Any]) -> None:
        out[...] = tensor.value()

    name, stored = f"{tensor.name}|{_F32}", tensor.stored or Stored(tensor, None, None)
    if tensor.weight_key is None or tensor.nbytes <= _SMALL:
        return Tensor(name, tensor.shape, _F32, data=tensor.value().astype(_F32), weight_key=_key(tensor), stored=stored)
    return Tensor(name, tensor.shape, _F32, pack=pack, weight_key=_key(tensor), stored=stored)


def _key(tensor: Tensor) -> str | None:
    return None if tensor.weight_key is None else f"{tensor.weight_key}|{_F32}"
