"""Products of constant weights that are computed by Strassen's algorithm (`algorithms.strassen_pays`): its left factors become a node of
their own, made once for all products that read the same rows."""

from __future__ import annotations

from collections.abc import Sequence

from aspen_mp.planner.cost.algorithms import STRASSEN, strassen_pays
from aspen_mp.planner.ir.graph import Graph, Node, Tensor
from aspen_mp.planner.job.options import Vectors
from aspen_mp.planner.ops.products import left_factors
from aspen_mp.planner.passes.rewrite import Rewriter


def use_strassen(graph: Graph, vectors: Vectors, longest: Sequence[bool] | None = None) -> list[bool]:
    """After all rewrites of GEMM: none of them knows of left factors. Returns of each product that could take them whether it does.

    `longest`: of a graph for a shape bucket, what this returned where it is longest, empty for that one itself. All its graphs have the
    same nodes then: a product that takes left factors at the longest length does without them where it has too few rows, as it would if
    planned for that length alone."""
    rewriter, made, taken = Rewriter(graph), dict[Tensor, Tensor](), list[bool]()
    decided = iter(longest or ())
    for node in rewriter.live():
        if not _takes_factors(node):
            continue
        a, shape = node.inputs[0], node.output.shape
        assert a is not None
        takes = a.shape[:-1] == shape[:-1] and strassen_pays(shape[-2], a.shape[-1], shape[-1], vectors)
        if longest is not None and node.op == "GEMM":
            takes = next(decided, takes)
            if takes:
                node.attrs["least_rows"] = STRASSEN[vectors].rows
        taken.append(takes)
        if not takes:
            continue
        if a not in made:
            made[a] = rewriter.insert(node, "STRASSEN", [a], left_factors(a.shape), {})
        inputs = [*node.inputs, *[None] * (6 - len(node.inputs)), made[a]]
        rewriter.replace(node, node.op, inputs, node.attrs)
    rewriter.finish()
    return taken


def _takes_factors(node: Node) -> bool:
    """Constant weights of 32 or 16 bits, whose sums may be taken."""
    if node.op == "QNBITGEMM":
        return bool(node.attrs["bits"] == 16)
    return node.op == "GEMM" and bool(node.attrs["packed_b"]) and not node.attrs.get("exact", False)
