"""Products and convolutions whose factors may be rounded to bf16 multiply them in pairs: BGEMM and BCONV."""

from __future__ import annotations

from functools import partial
from math import prod

import numpy as np

from aspen_mp.planner.cost import tile_cost
from aspen_mp.planner.cost.algorithms import bf16_product_refused, bf16_refused
from aspen_mp.planner.ir.graph import Graph, Node, Tensor
from aspen_mp.planner.job import reasons
from aspen_mp.planner.job.reasons import Reason, Tried
from aspen_mp.planner.ops.packing.bf16 import of_halves, packed
from aspen_mp.planner.passes.rewrite import Rewriter

_ROUNDED = ("GEMM", "QNBITGEMM", "CONV")
_WINDOW = ("kernel", "strides", "dilations", "pads")


def use_bf16(graph: Graph, amx: bool = False) -> None:
    """Runs after all rewrites of GEMM and CONV, which need to know no other kernels so, and before Strassen's products, which gain less. A
    node stays as it is if it multiplies no weights of the model, sums integers, or has groups, planes or few channels. So do convolutions
    by Winograd's algorithm, and nodes that the cost model has no slower in f32. `amx`: sums are to have the order of AMX's instructions,
    whose rates the cost model does not know."""
    rewriter, made = Rewriter(graph), dict[tuple[Tensor, int], Tensor]()
    for node in rewriter.live():
        w = node.inputs[1] if node.op in _ROUNDED else None
        if w is None:
            continue
        refused = _refused(node, w)
        if refused:
            reasons.tell(partial(_precision, node, refused))
            continue
        rounded = _rounded(made, node, w, amx)
        times = _nominal_ns(node), _nominal_ns(rounded)
        if times[1] >= times[0] and not amx:
            refused = "the cost model has it no faster in bf16"
        reasons.tell(partial(_precision, node, refused, times))
        if not refused:
            rewriter.replace(node, rounded.op, rounded.inputs, rounded.attrs)
    rewriter.finish()


def _refused(node: Node, w: Tensor) -> str:
    """Why the factors of a node are not rounded; "": they are."""
    x, attrs = node.inputs[0], node.attrs
    assert x is not None
    if not w.is_const or w.weight_key is None:
        return "the weights are not the model's alone"
    if attrs.get("exact", False):
        return "sums of integers are exact"
    if node.op == "CONV":
        if attrs["groups"] != 1 or len(x.shape) != 4:
            return "a convolution of groups or planes"
        return bf16_refused(x.shape[1], node.output.shape[1], prod(attrs["kernel"]), tuple(attrs["strides"]))
    if node.op == "GEMM" and not attrs["packed_b"]:
        return "the weights are not packed"
    if node.op == "QNBITGEMM" and attrs["bits"] != 16:
        return f"weights of {attrs['bits']} bits stay as they are"
    return bf16_product_refused(x.shape[-1], node.output.shape[-1])


ROWS, SIDE = 1024, 56
"""Rows of a product and sides of an image for which both ways are compared. They are not those of the node, because plans for several sizes
of a model choose alike."""


def _nominal_ns(node: Node) -> float:
    """The time of a product of `ROWS` rows, or a convolution of `SIDE`² pixels, with all data at hand."""
    columns = node.output.shape[1] if node.op in ("CONV", "BCONV") else node.output.shape[-1]
    sides = (1, SIDE, SIDE, columns) if node.op in ("CONV", "BCONV") else (1, ROWS, columns)
    return float(tile_cost.of(node)([np.array([side]) for side in sides])[0])


def _precision(node: Node, refused: str, times: tuple[float, float] = (0.0, 0.0)) -> Reason:
    f32, bf16 = (ns * 1e-6 or None for ns in times)
    if refused:
        return Reason(
            "precision",
            "f32 factors",
            refused,
            f32,
            "one core" if f32 else "",
            tried=(Tried("bf16 factors", refused, bf16),),
            node=node.name,
        )
    tried = (Tried("f32 factors", "half as many products at a time", f32),)
    return Reason("precision", "bf16 factors", "the precision asked for", bf16, "one core" if bf16 else "", tried=tried, node=node.name)


def _rounded(made: dict[tuple[Tensor, int], Tensor], node: Node, w: Tensor, amx: bool) -> Node:
    """The node that multiplies the same in bf16."""
    op, taps = ("BCONV", prod(node.attrs["kernel"])) if node.op == "CONV" else ("BGEMM", 1)
    if (w, taps) not in made:
        made[w, taps] = _words(node, w, taps)
    kept = ("alpha", "act", "residual_last", "gated") if op == "BGEMM" else (*_WINDOW, "act", "residual_last", "in_act")
    attrs = {name: node.attrs[name] for name in kept if name in node.attrs}
    if amx:
        attrs["amx"] = 1
    return Node(op, node.name, [node.inputs[0], made[w, taps], *node.inputs[2:]], list(node.outputs), attrs)


def _words(node: Node, w: Tensor, taps: int) -> Tensor:
    x = node.inputs[0]
    assert x is not None
    return of_halves(w, x.shape[-1], bool(node.attrs["zero"])) if node.op == "QNBITGEMM" else packed(w, taps)
