"""Products of constant weights that are computed by Strassen's algorithm (`algorithms.seven_products`): its left factors become a node of
their own, made once for all products that read the same rows."""

from __future__ import annotations

from aspen_mp.planner.cost.algorithms import seven_products
from aspen_mp.planner.ir.graph import Graph, Node, Tensor
from aspen_mp.planner.job.options import Vectors
from aspen_mp.planner.ops.products import left_factors
from aspen_mp.planner.passes.rewrite import Rewriter


def use_seven_products(graph: Graph, vectors: Vectors) -> None:
    """After all rewrites of GEMM: none of them knows of left factors."""
    rewriter, made = Rewriter(graph), dict[Tensor, Tensor]()
    for node in rewriter.live():
        if not _takes_factors(node):
            continue
        a, shape = node.inputs[0], node.output.shape
        assert a is not None
        if a.shape[:-1] != shape[:-1] or not seven_products(shape[-2], a.shape[-1], shape[-1], vectors):
            continue
        if a not in made:
            made[a] = rewriter.insert(node, "STRASSEN", [a], left_factors(a.shape), {})
        inputs = [*node.inputs, *[None] * (6 - len(node.inputs)), made[a]]
        rewriter.replace(node, node.op, inputs, node.attrs)
    rewriter.finish()


def _takes_factors(node: Node) -> bool:
    """Constant weights of 32 or 16 bits, whose sums may be taken."""
    if node.op == "QNBITGEMM":
        return bool(node.attrs["bits"] == 16)
    return node.op == "GEMM" and bool(node.attrs["packed_b"]) and not node.attrs.get("exact", False)
