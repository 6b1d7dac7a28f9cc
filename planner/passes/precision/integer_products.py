"""Sums of products of bytes become floating point in the kernel that makes them. QGEMM, QMATMUL, QCONV or QDWCONV, CAST and a factor (the
scales of the quantised values) become one node. Every value is rounded as before."""

from __future__ import annotations

from aspen_mp.planner.ir.graph import Graph, Node, Tensor
from aspen_mp.planner.passes.rewrite import Rewriter, no_act

_F32 = "float32"
_BYTES = ("int8", "uint8")
PRODUCTS = ("QGEMM", "QMATMUL", "QCONV", "QDWCONV")
FACTOR = 4
"""The input that the sums are multiplied with, before anything is added."""


def fuse_factors(graph: Graph) -> None:
    rewriter = Rewriter(graph)
    for node in rewriter.live():
        if not rewriter.alive(node) or node.output.dtype != _F32:
            continue
        if node.op == "CAST":
            _convert(rewriter, node)
        elif node.op == "BINARY" and node.attrs["opcode"] == "MUL" and no_act(node):
            _multiply(rewriter, node)
    rewriter.finish()


def _convert(rewriter: Rewriter, node: Node) -> None:
    sums = node.inputs[0]
    product = rewriter.made_by(sums, *PRODUCTS)
    if product is not None and sums is not None and sums.dtype == "int32" and rewriter.only_use(sums):
        _absorb(rewriter, node, product, {})


def _multiply(rewriter: Rewriter, node: Node) -> None:
    for k in (0, 1):
        sums, factor = node.inputs[k], node.inputs[1 - k]
        product = rewriter.made_by(sums, *PRODUCTS)
        if product is None or sums is None or factor is None or sums is factor or not rewriter.only_use(sums):
            continue
        free = no_act(product) and all(x is None for x in product.inputs[2:5]) and not product.attrs.get("gated", False)
        if free and sums.dtype == _F32 and sums.shape == node.output.shape and len(factor.shape) == len(sums.shape):
            _absorb(rewriter, node, product, {FACTOR: factor})
            return


def fuse_levels(graph: Graph) -> None:
    """Products of bytes write bytes, where they are quantised at once and for all: after all else that they can take."""
    rewriter = Rewriter(graph)
    for node in rewriter.live():
        if not rewriter.alive(node) or node.op != "QUANTIZE" or node.output.dtype not in _BYTES:
            continue
        x, scale, zero = node.inputs[0], node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else None
        product, level = rewriter.made_by(x, *PRODUCTS), 0.0 if zero is None else _value(zero)
        if product is None or x is None or scale is None or level is None or not rewriter.only_use(x):
            continue
        attrs = {"zero": int(level), "scale": 1.0}
        if not node.attrs["times"]:
            step = _value(scale)
            if x.dtype == _F32 and step is not None:
                _absorb(rewriter, node, product, {}, **{**attrs, "scale": step})
        elif x.dtype == "int32" and len(scale.shape) == len(x.shape):
            _absorb(rewriter, node, product, {FACTOR: scale}, **attrs)
    rewriter.finish()


def _value(tensor: Tensor) -> float | None:
    return float(tensor.value().reshape(())) if tensor.is_const and tensor.size == 1 else None


def _absorb(rewriter: Rewriter, node: Node, product: Node, more: dict[int, Tensor], **attrs: float) -> None:
    """`node` becomes the product, at its own place in the order."""
    label, name = f"{product.onnx_op} + {node.onnx_op}", product.name
    inputs = [*product.inputs, *[None] * (6 - len(product.inputs))]
    rewriter.replace(node, product.op, [more.get(i, x) for i, x in enumerate(inputs)], {**product.attrs, **attrs}, label)
    node.name = name
