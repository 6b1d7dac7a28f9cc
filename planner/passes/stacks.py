"""Depth-first stacks: layers that run together on what is still in the cache, so that the tensor between them is never written.

BrainSlug's idea (Weber et al., 2018). A 1×1 convolution that widens its input and the depthwise convolution behind it do little arithmetic
a byte (MobileNet, EfficientNet, ShuffleNet). The kernel PWDW computes it a few rows at a time.
"""

from __future__ import annotations

from math import inf

from aspen_mp.planner.ir.graph import Graph, Node, Tensor
from aspen_mp.planner.job import reasons
from aspen_mp.planner.job.reasons import Reason, Tried
from aspen_mp.planner.ops.convolutions import WIDEST_WINDOW
from aspen_mp.planner.ops.params import NO_ACT
from aspen_mp.planner.passes.rewrite import Rewriter

_KEPT = ("kernel", "strides", "dilations", "pads", "act")


def fuse_depthwise(graph: Graph, most: float = inf) -> None:
    """A pointwise CONV, of up to so many channels, that only a DWCONV reads."""
    rewriter = Rewriter(graph)
    for node in rewriter.live():
        if rewriter.alive(node) and node.op == "DWCONV" and _plain(node):
            _fuse(rewriter, node, most)
    rewriter.finish()


def _plain(node: Node) -> bool:
    """Nothing but bias and activation behind the product, and no prologue."""
    return all(t is None for t in node.inputs[3:]) and node.attrs.get("in_act", NO_ACT) == NO_ACT


def _fuse(rewriter: Rewriter, node: Node, most: float) -> None:
    x = node.inputs[0]
    before = rewriter.made_by(x, "CONV")
    source = before.inputs[0] if before is not None else None
    if x is None or before is None or source is None:
        return
    refused = _refused(rewriter, node, before, source, x, most)
    if refused:
        tried = (Tried("PWDW, together with the convolution before it", refused),)
        reasons.tell(lambda: Reason("stack", "layer by layer", refused, tried=tried, node=node.name))
        return
    b = node.attrs
    inputs = [source, before.inputs[1], _bias(before), node.inputs[1], _bias(node)]
    attrs = {key: b[key] for key in _KEPT} | {"in_act": before.attrs["act"]}
    rewriter.replace(node, "PWDW", inputs, attrs, f"{before.onnx_op} + {node.onnx_op}")


def _refused(rewriter: Rewriter, node: Node, before: Node, source: Tensor, x: Tensor, most: float) -> str:
    """Why a depthwise convolution of `x` stays apart from the one before it, of `source`; "": it does not."""
    a, b = before.attrs, node.attrs
    pointwise = a["groups"] == 1 and tuple(a["kernel"]) == tuple(a["strides"]) == (1, 1) and tuple(a["pads"]) == (0, 0)
    spans = [max((k - 1) * d + 1, s) for k, d, s in zip(b["kernel"], b["dilations"], b["strides"], strict=True)]
    rules = {
        "others read what is between them": not rewriter.only_use(x),
        "the convolution before has absorbed more than bias and activation": not _plain(before),
        f"{source.shape[1]} channels are faster apart in bf16": source.shape[1] > most,
        "the convolution before is not of single pixels": not pointwise or source.shape[2:] != x.shape[2:],
        "not images": len(x.shape) != 4,
        "each channel becomes several": x.shape[1] != node.output.shape[1],
        "the window is too wide": max(spans) > WIDEST_WINDOW,
    }
    return next((rule for rule, holds in rules.items() if holds), "")


def _bias(node: Node) -> Tensor | None:
    return node.inputs[2] if len(node.inputs) > 2 else None
