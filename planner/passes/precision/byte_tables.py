"""Functions of quantised values as tables. Operators that compute each element of a result from one byte have 256 results.

Tools quantise GELU or SiLU operator by operator, with levels in between. All of these operators together are one table: from bytes to the
bytes that the next product reads, or to floats. The table's entries are those that the model's operators give, rounding included.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from aspen_mp.planner.frontends.evaluate import NotComputed, evaluate
from aspen_mp.planner.ir.graph import Graph, Node, Tensor
from aspen_mp.planner.job import reasons
from aspen_mp.planner.job.reasons import Reason, Tried

LOOK_UP: Final = "LookUp"
"""A node of our own: of bytes, and a table [256] whose first entry is that of the lowest byte."""
_BYTES: Final = frozenset({np.dtype(np.int8), np.dtype(np.uint8)})
_F32: Final = np.dtype(np.float32)
_CHEAP: Final = frozenset({"Add", "Clip", "DequantizeLinear", "Max", "Min", "Mul", "Neg", "QuantizeLinear", "Relu", "Sub"})
_COSTLY: Final = frozenset({"Abs", "Celu", "Div", "Elu", "Erf", "Exp", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Log", "Mish"})
_COSTLIER: Final = frozenset({"Pow", "PRelu", "Reciprocal", "Selu", "Sigmoid", "Softplus", "Softsign", "Sqrt", "Swish", "Tanh"})
_WORTH: Final = _COSTLY | _COSTLIER
"""A chain without any of these is about as fast in the kernels around it."""


@dataclass(eq=False, slots=True)
class _Function:
    """A function of the bytes `of`, which `node` makes of functions and scalars."""

    of: Tensor
    node: Node
    inputs: list[_Function | Tensor | None]
    worth: bool
    values: npt.NDArray[Any] | None = field(default=None, init=False)

    def table(self) -> npt.NDArray[Any]:
        """Its value for each byte, the lowest first. NotComputed where the operator cannot be computed here."""
        if self.values is None:
            source = self.node.source
            assert source is not None
            given = [x.table() if isinstance(x, _Function) else None if x is None else x.value().reshape(-1) for x in self.inputs]
            if self.inputs[0] is None:  # bytes become floats
                info = np.iinfo(self.of.dtype)
                given[0] = np.arange(info.min, info.max + 1).astype(self.of.dtype)
            if self.node.op in {"DequantizeLinear", "QuantizeLinear"}:
                given[1:] = [x if x is None else x.reshape(()) for x in given[1:]]
            (found,) = evaluate(source.proto, source.opsets, given[: len(source.proto.input)])
            self.values = np.asarray(found, self.node.output.dtype).reshape(-1)
        return self.values


def look_up(graph: Graph) -> None:
    """Replaces what others read of such functions."""
    if not graph.has("DequantizeLinear"):
        return
    functions: dict[Tensor, _Function] = {}
    for node in graph.nodes:
        found = _function(node, functions)
        if found is not None:
            functions[node.output] = found
    wanted = dict.fromkeys(_wanted(graph, functions))
    if not wanted:
        return
    graph.nodes = [_replaced(node, functions[node.output]) if node.outputs and node.output in wanted else node for node in graph.nodes]
    graph.nodes = graph.read_nodes()


def _function(node: Node, functions: dict[Tensor, _Function]) -> _Function | None:
    """The function of one tensor of bytes that a node computes, if it is one."""
    if node.source is None or len(node.outputs) != 1 or node.op not in _CHEAP | _WORTH or not _plain(node):
        return None
    x = node.inputs[0]
    if node.op == "DequantizeLinear" and x is not None and x not in functions and not x.is_const and x.dtype in _BYTES:
        return _Function(x, node, [None, *node.inputs[1:]], worth=False)
    given: list[_Function | Tensor | None] = [t if t is None or t.is_const else functions.get(t, t) for t in node.inputs]
    made = [f for f in given if isinstance(f, _Function)]
    if not made or any(f.of is not made[0].of for f in made) or node.output.shape != made[0].of.shape:
        return None
    if any(isinstance(t, Tensor) and (not t.is_const or t.size != 1) for t in given) or node.output.dtype not in _BYTES | {_F32}:
        return None
    return _Function(made[0].of, node, given, worth=node.op in _WORTH or any(f.worth for f in made))


def _plain(node: Node) -> bool:
    """Whether scales and zero points, where there are any, are one for all elements."""
    if node.op not in {"DequantizeLinear", "QuantizeLinear"}:
        return True
    return all(t is None or (t.is_const and t.size == 1) for t in node.inputs[1:])


def _wanted(graph: Graph, functions: dict[Tensor, _Function]) -> Iterator[Tensor]:
    """The functions that are worth a table and are read by anything else."""
    for tensor in graph.outputs:
        if tensor in functions and functions[tensor].worth:
            yield _as_bytes(tensor, functions)
    for node in graph.nodes:
        for x in node.inputs:
            if x is not None and x in functions and functions[x].worth and (not node.outputs or node.output not in functions):
                yield _as_bytes(x, functions)


def _as_bytes(x: Tensor, functions: dict[Tensor, _Function]) -> Tensor:
    """The levels that are given back as x, or x: who reads them may take bytes, and whole bytes are found faster than floats."""
    node = functions[x].node
    inner = functions[x].inputs[0]
    return inner.node.output if node.op == "DequantizeLinear" and isinstance(inner, _Function) and inner.worth else x


def _replaced(node: Node, function: _Function) -> Node:
    try:
        table = function.table()
    except NotComputed:
        return node
    values = Tensor(f"{node.output.name}|table", table.shape, table.dtype, data=table)
    made = Node(LOOK_UP, node.name, [function.of, values], node.outputs, {}, node.onnx_op)
    node.output.producer = made
    reasons.tell(partial(_told, node))
    return made


def _told(node: Node) -> Reason:
    tried = (Tried("its operators one by one", "256 results are known before any request"),)
    return Reason("precision", "a table of bytes", "a function of one quantised tensor", tried=tried, node=node.name)
