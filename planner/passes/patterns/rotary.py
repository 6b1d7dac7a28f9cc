"""Rotary embedding as models write it: x · cos + concat(−x₂, x₁) · sin, x₁ and x₂ being the halves of x, becomes two kernels.

As in `planner/lower/rotary.py`, x is seen as two halves. Then concat(−x₂, x₁) · sin is the halves in opposite order, which is a view, times
sin with the sign changed in its first half. The sine of one table is changed once for all layers.
"""

from __future__ import annotations

import numpy as np

from aspen_mp.planner.ir.graph import Graph, Node, Tensor
from aspen_mp.planner.ops.params import NO_ACT
from aspen_mp.planner.passes.patterns.match import Call, Match, Operand, matches
from aspen_mp.planner.passes.rewrite import Rewriter

X, COS, SIN, FIRST, SECOND = Operand("x"), Operand("cos"), Operand("sin"), Operand("first"), Operand("second")
SWAPPED = Call("concat", None, (Call("UNARY", "NEG", (SECOND,)), FIRST))
SPELLINGS = {
    "halves": Call(
        "BINARY", "ADD", (Call("BINARY", "MUL", (X, COS), either=True), Call("BINARY", "MUL", (SWAPPED, SIN), either=True)), either=True
    ),
}
"""Hugging Face's `apply_rotary_pos_emb`, and all that is written like it."""


def fuse_rotary(graph: Graph) -> None:
    if not graph.has("concat"):
        return
    rewriter = Rewriter(graph)
    signed: dict[Tensor, Tensor] = {}
    for node in rewriter.live():
        if rewriter.alive(node) and node.op == "BINARY" and node.attrs["opcode"] == "ADD" and node.output.dtype == np.float32:
            for m in (m for pattern in SPELLINGS.values() for m in matches(rewriter, node.output, pattern)):
                if _fits(rewriter, node, m):
                    _rewrite(rewriter, node, m, signed)
                    break
    rewriter.finish()


def _fits(rewriter: Rewriter, node: Node, m: Match) -> bool:
    x, last = m.tensors["x"], len(node.output.shape) - 1
    width = x.shape[-1] if x.shape else 0
    if x.shape != node.output.shape or width % 2 or last > 6 or any(m.tensors[t].shape[-1:] != (width,) for t in ("cos", "sin")):
        return False
    joined = next(n for n in m.nodes if n.op == "concat")
    halves = _is_half(rewriter, m.tensors["first"], x, 0) and _is_half(rewriter, m.tensors["second"], x, width // 2)
    return halves and joined.attrs["axis"] == last and rewriter.only_use(joined.output)


def _is_half(rewriter: Rewriter, tensor: Tensor, x: Tensor, start: int) -> bool:
    node = rewriter.made_by(tensor, "view.slice")
    if node is None or node.inputs[0] is not x or tensor.shape != (*x.shape[:-1], x.shape[-1] // 2):
        return False
    begins = (*(0 for _ in x.shape[:-1]), start)
    return tuple(node.attrs["starts"]) == begins and all(step == 1 for step in node.attrs["steps"])


def _rewrite(rewriter: Rewriter, node: Node, m: Match, signed: dict[Tensor, Tensor]) -> None:
    x, cos, sin = m.tensors["x"], m.tensors["cos"], m.tensors["sin"]
    lead, half = x.shape[:-1], x.shape[-1] // 2

    def in_pairs(tensor: Tensor) -> Tensor:
        return rewriter.insert(node, "view.reshape", [tensor], (*tensor.shape[:-1], 2, half), {})

    if sin not in signed:
        shape = (*(1 for _ in lead), 2, 1)
        signs = np.array([-1.0, 1.0], np.float32).reshape(shape)
        if sin.is_const:
            value = sin.value().reshape(*sin.shape[:-1], 2, half) * signs
            signed[sin] = Tensor(f"{sin.name}|signed", value.shape, sin.dtype, data=value)
        else:
            pairs = in_pairs(sin)
            constant = Tensor("signs of a rotation", shape, sin.dtype, data=signs)
            signed[sin] = rewriter.insert(node, "BINARY", [pairs, constant], pairs.shape, {"opcode": "MUL", "act": NO_ACT})
    pairs = in_pairs(x)
    view = {"starts": (*(0 for _ in lead), 1, 0), "steps": (*(1 for _ in lead), -1, 1)}
    swapped = rewriter.insert(node, "view.slice", [pairs], pairs.shape, view)
    other = rewriter.insert(node, "BINARY", [swapped, signed[sin]], pairs.shape, {"opcode": "MUL", "act": NO_ACT})
    inner = rewriter.insert(node, "TERNARY", [pairs, in_pairs(cos), other], pairs.shape, {"opcode": "FMA", "act": NO_ACT})
    assert inner.producer is not None
    inner.producer.onnx_op = "Rotary embedding"
    rewriter.replace(node, "view.reshape", [inner], {})
