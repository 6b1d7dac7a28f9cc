"""Products of constant weights that are computed by Strassen's algorithm (`algorithms.strassen_pays`). Its left factors become a node of
their own, made once for all products that read the same rows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from aspen_mp.planner.cost.algorithms import STRASSEN, strassen_refused
from aspen_mp.planner.cost.tile_cost import whole_ns
from aspen_mp.planner.ir.graph import Graph, Node, Tensor
from aspen_mp.planner.job import reasons
from aspen_mp.planner.job.options import Vectors
from aspen_mp.planner.job.reasons import Reason, Tried
from aspen_mp.planner.ops.products import left_factors
from aspen_mp.planner.passes.rewrite import Rewriter


def use_strassen(graph: Graph, vectors: Vectors, longest: Sequence[bool] | None = None) -> list[bool]:
    """After all rewrites of GEMM: none of them knows of left factors. Returns of each product that could take them whether it does.

    `longest`: of a graph for a shape bucket, the result of this where it is longest, empty for that one itself. All its graphs have the
    same nodes then. A product that takes left factors at the longest length does without them where it has too few rows for that length
    alone."""
    rewriter, made, taken = Rewriter(graph), dict[Tensor, Tensor](), list[bool]()
    decided = iter(longest or ())
    for node in rewriter.live():
        if not _takes_factors(node):
            continue
        a, shape = node.inputs[0], node.output.shape
        assert a is not None
        refused = strassen_refused(shape[-2], a.shape[-1], shape[-1], vectors) if a.shape[:-1] == shape[:-1] else "its rows are broadcast"
        takes = not refused
        if longest is not None and node.op == "GEMM":
            takes = next(decided, takes)
            if takes:
                node.attrs["least_rows"] = STRASSEN[vectors].rows
        taken.append(takes)
        if not takes:
            reasons.tell(partial(_direct, node, refused or "fewer rows than where the bucket is longest"))
            continue
        if a not in made:
            made[a] = rewriter.insert(node, "STRASSEN", [a], left_factors(a.shape), {})
        direct = whole_ns(node) if reasons.asked() else 0.0
        inputs = [*node.inputs, *[None] * (6 - len(node.inputs)), made[a]]
        rewriter.replace(node, node.op, inputs, node.attrs)
        reasons.tell(partial(_reason, node, direct))
    rewriter.finish()
    return taken


def _direct(node: Node, rule: str) -> Reason:
    tried = (Tried("Strassen's algorithm", rule),)
    return Reason("algorithm", "direct sums", rule, whole_ns(node) * 1e-6, "one core", tried, node=node.name)


def _reason(node: Node, direct: float) -> Reason:
    tried = (Tried("direct sums", "8 products of halves in place of 7", direct * 1e-6),)
    rule = "enough rows, terms and columns"
    return Reason("algorithm", "Strassen's algorithm", rule, whole_ns(node) * 1e-6, "one core", tried, node=node.name)


def _takes_factors(node: Node) -> bool:
    """Constant weights of 32 or 16 bits, whose sums may be taken."""
    if node.op == "QNBITGEMM":
        return bool(node.attrs["bits"] == 16)
    return node.op == "GEMM" and bool(node.attrs["packed_b"]) and not node.attrs.get("exact", False)
