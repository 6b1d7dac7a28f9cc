"""Products and convolutions whose factors may be rounded to bf16 multiply them in pairs: BGEMM and BCONV."""

from __future__ import annotations

from functools import partial

from aspen_mp.planner.cost.algorithms import BF16_LEAST_CHANNELS, bf16_pays
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
    by Winograd's algorithm. `amx`: sums are to have the order of AMX's instructions."""
    rewriter, made = Rewriter(graph), dict[tuple[Tensor, int], Tensor]()
    for node in rewriter.live():
        w = node.inputs[1] if node.op in _ROUNDED else None
        if w is None:
            continue
        refused = _refused(node, w)
        reasons.tell(partial(_precision, node, refused))
        if refused:
            continue
        if node.op == "CONV":
            _replace(rewriter, made, node, w, "BCONV", node.attrs["kernel"][0] * node.attrs["kernel"][1], amx)
        else:
            _replace(rewriter, made, node, w, "BGEMM", 1, amx)
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
        return "" if bf16_pays(x.shape[1]) else f"{x.shape[1]} channels; it needs {BF16_LEAST_CHANNELS}"
    if node.op == "GEMM":
        return "" if attrs["packed_b"] else "the weights are not packed"
    return "" if attrs["bits"] == 16 else f"weights of {attrs['bits']} bits stay as they are"


def _precision(node: Node, refused: str) -> Reason:
    if refused:
        return Reason("precision", "f32 factors", refused, tried=(Tried("bf16 factors", refused),), node=node.name)
    tried = (Tried("f32 factors", "half as many products at a time"),)
    return Reason("precision", "bf16 factors", "the precision asked for", tried=tried, node=node.name)


def _replace(rewriter: Rewriter, made: dict[tuple[Tensor, int], Tensor], node: Node, w: Tensor, op: str, taps: int, amx: bool) -> None:
    if (w, taps) not in made:
        made[w, taps] = _words(node, w, taps)
    kept = ("alpha", "act", "residual_last", "gated") if op == "BGEMM" else (*_WINDOW, "act", "residual_last", "in_act")
    attrs = {name: node.attrs[name] for name in kept if name in node.attrs}
    if amx:
        attrs["amx"] = 1
    rewriter.replace(node, op, [node.inputs[0], made[w, taps], *node.inputs[2:]], attrs)


def _words(node: Node, w: Tensor, taps: int) -> Tensor:
    x = node.inputs[0]
    assert x is not None
    return of_halves(w, x.shape[-1], bool(node.attrs["zero"])) if node.op == "QNBITGEMM" else packed(w, taps)
