"""Products and convolutions whose factors may be rounded to bf16 multiply them in pairs: BGEMM and BCONV."""

from __future__ import annotations

from aspen_mp.planner.cost.algorithms import bf16_pays
from aspen_mp.planner.ir.graph import Graph, Node, Tensor
from aspen_mp.planner.ops.packing.bf16 import of_halves, packed
from aspen_mp.planner.passes.rewrite import Rewriter

_WINDOW = ("kernel", "strides", "dilations", "pads")


def use_bf16(graph: Graph) -> None:
    """After all rewrites of GEMM and CONV, which need to know of no other kernels so; before Strassen's products, which gain less. What
    multiplies no weights of the model, sums integers, has groups, planes or few channels stays as it is, and so do convolutions by
    Winograd's algorithm."""
    rewriter, made = Rewriter(graph), dict[tuple[Tensor, int], Tensor]()
    for node in rewriter.live():
        w = node.inputs[1] if node.op in ("GEMM", "QNBITGEMM", "CONV") else None
        if w is None or not w.is_const or w.weight_key is None or node.attrs.get("exact", False):
            continue
        if node.op == "CONV" and _convolves(node):
            _replace(rewriter, made, node, w, "BCONV", node.attrs["kernel"][0] * node.attrs["kernel"][1])
        elif (node.op == "GEMM" and node.attrs["packed_b"]) or (node.op == "QNBITGEMM" and node.attrs["bits"] == 16):
            _replace(rewriter, made, node, w, "BGEMM", 1)
    rewriter.finish()


def _convolves(node: Node) -> bool:
    x = node.inputs[0]
    assert x is not None
    return node.attrs["groups"] == 1 and len(x.shape) == 4 and bf16_pays(x.shape[1])


def _replace(rewriter: Rewriter, made: dict[tuple[Tensor, int], Tensor], node: Node, w: Tensor, op: str, taps: int) -> None:
    if (w, taps) not in made:
        made[w, taps] = _words(node, w, taps)
    kept = ("alpha", "act", "residual_last", "gated") if op == "BGEMM" else (*_WINDOW, "act", "residual_last", "in_act")
    attrs = {name: node.attrs[name] for name in kept if name in node.attrs}
    rewriter.replace(node, op, [node.inputs[0], made[w, taps], *node.inputs[2:]], attrs)


def _words(node: Node, w: Tensor, taps: int) -> Tensor:
    x = node.inputs[0]
    assert x is not None
    return of_halves(w, x.shape[-1], bool(node.attrs["zero"])) if node.op == "QNBITGEMM" else packed(w, taps)
