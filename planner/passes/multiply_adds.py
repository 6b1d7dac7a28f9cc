"""A product element by element and the sum behind it become one FMA: one pass over memory instead of two, and one rounding."""

from __future__ import annotations

from aspen_mp.planner.ir.graph import Graph, Node
from aspen_mp.planner.passes.rewrite import Rewriter, no_act


def fuse_multiply_adds(graph: Graph) -> None:
    """Only where nothing else reads the product, and only in float32."""
    rewriter = Rewriter(graph)
    for node in rewriter.live():
        if not rewriter.alive(node) or node.op != "BINARY" or node.attrs["opcode"] != "ADD":
            continue
        for k in range(2):
            product = _product(rewriter, node, k)
            if product is not None:
                attrs = {"opcode": "FMA", "act": node.attrs["act"]}
                rewriter.replace(node, "TERNARY", [*product.inputs, node.inputs[1 - k]], attrs, f"{product.onnx_op} + {node.onnx_op}")
                break
    rewriter.finish()


def _product(rewriter: Rewriter, node: Node, k: int) -> Node | None:
    x = node.inputs[k]
    product = rewriter.made_by(x, "BINARY")
    if product is None or x is None or product.attrs["opcode"] != "MUL" or not no_act(product):
        return None
    if x.dtype != "float32" or x.shape != node.output.shape or not rewriter.only_use(x):
        return None
    return product
