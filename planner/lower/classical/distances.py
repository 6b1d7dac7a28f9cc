"""Distances between all rows of two tables, as skl2onnx writes them for nearest neighbours and Gaussian processes. There they are a Scan
over the rows of one. Its body subtracts a row from all rows of the other and sums squares or absolute values."""

from __future__ import annotations

from typing import Final

from onnx import GraphProto, NodeProto, helper, numpy_helper

from aspen_mp.planner.ir.graph import Node, Tensor
from aspen_mp.planner.lower.builder import F32, F64, Builder, NoKernel, one_float
from aspen_mp.planner.lower.elementwise import data
from aspen_mp.planner.lower.registry import rule
from aspen_mp.planner.ops.params import NO_ACT

_TERMS: Final = {"ReduceSumSquare": "square", "ReduceL1": "absolute"}


@rule("Scan")
def _scan(b: Builder, node: Node) -> list[Tensor]:
    """The table that is the state, as it is, and the distances [rows of the other, its rows]."""
    ordinary = len(node.inputs) == 2 and node.attrs.get("num_scan_inputs") == 1 and node.source is not None and node.source.version >= 9
    turned = [f"scan_{end}_{what}" for end in ("input", "output") for what in ("axes", "directions")]
    if not ordinary or any(any(node.attrs.get(name) or []) for name in turned):
        raise NoKernel("no kernel computes this Scan")
    term = _term(node.attrs["body"])
    whole, rows = data(node), data(node, 1)
    dtype = one_float(whole, rows)
    if term is None or len(whole.shape) != 2 or len(rows.shape) != 2 or whole.size == 0 or rows.size == 0:
        raise NoKernel("the Scan computes more than distances")
    x, y = b.cast(rows, F64), b.transpose(b.cast(whole, F64), (1, 0))
    if x.shape[1] != y.shape[0]:
        raise NoKernel("only some rows have a single column")
    apart = b.emit("DGEMM", [x, y], (x.shape[0], y.shape[1]), F64, alpha=1.0, act=NO_ACT, term=term)
    return [whole, b.cast(apart, dtype) if dtype == F32 else apart]


def _term(body: GraphProto) -> str | None:
    """The distances that a body computes: (table, row) → (the table, distances of its rows from that one)."""
    made = {name: node for node in body.node for name in node.output}
    constants = {t.name: t for t in body.initializer}

    def source(name: str) -> str:
        while (node := made.get(name)) is not None and node.op_type == "Identity" and not node.domain:
            name = node.input[0]
        return name

    if len(body.input) != 2 or len(body.output) != 2 or any(node.domain or (node.attribute and _nested(node)) for node in body.node):
        return None
    table, row = (value.name for value in body.input)
    total = made.get(source(body.output[1].name))
    if source(body.output[0].name) != table or total is None or total.op_type not in _TERMS:
        return None
    attrs = {a.name: helper.get_attribute_value(a) for a in total.attribute}
    axes = attrs.get("axes")
    if len(total.input) > 1 and total.input[1]:
        given = constants.get(total.input[1])
        constant = made.get(total.input[1])
        if given is None and constant is not None and constant.op_type == "Constant":
            given = next((a.t for a in constant.attribute if a.name == "value"), None)
        axes = None if given is None else numpy_helper.to_array(given).reshape(-1).tolist()
    apart = made.get(source(total.input[0]))
    if axes not in ([1], [-1]) or attrs.get("keepdims", 1) or apart is None or apart.op_type != "Sub":
        return None
    return _TERMS[total.op_type] if {source(name) for name in apart.input} == {table, row} else None


def _nested(node: NodeProto) -> bool:
    return any(a.HasField("g") or a.graphs for a in node.attribute)
