"""Prologues: nodes before a convolution, channel by channel, move into its reading of the input.

A normalisation with an activation in front of a 1×1 convolution (DenseNet, pre-activation ResNets) cannot be folded into the weights. The
kernel computes it on the small blocks of input that it copies to its cache, which saves writing and reading the whole tensor.
"""

from __future__ import annotations

from math import prod

from aspen_mp.planner.ir.graph import Graph, Node
from aspen_mp.planner.ops.convolutions import depth
from aspen_mp.planner.passes.epilogues import by_channel
from aspen_mp.planner.passes.rewrite import Rewriter

FEWEST_OUTPUTS = 16
"""Outputs a group for which a prologue pays: with fewer the convolution is no more than a pass over its input itself."""


def fuse_prologues(graph: Graph) -> None:
    """act(x * scale + shift) that only a 1×1 convolution reads."""
    rewriter = Rewriter(graph)
    for node in rewriter.live():
        if rewriter.alive(node) and node.op == "CONV" and prod(node.attrs["kernel"]) * depth(node.attrs)[0] == 1 and len(node.inputs) <= 6:
            _fuse(rewriter, node)
    rewriter.finish()


def _fuse(rewriter: Rewriter, node: Node) -> None:
    x = node.inputs[0]
    before = rewriter.made_by(x, "TERNARY")
    if x is None or before is None or before.attrs["opcode"] != "FMA" or not rewriter.only_use(x):
        return
    source = before.inputs[0]
    constants = [by_channel(t, 1, x.shape[1]) for t in before.inputs[1:]]
    if source is None or source.shape != x.shape or None in constants or node.output.shape[1] // node.attrs["groups"] < FEWEST_OUTPUTS:
        return
    inputs = [source, *node.inputs[1:], *[None] * (6 - len(node.inputs)), *constants]
    label = f"{before.onnx_op} + {node.onnx_op}"
    rewriter.replace(node, "CONV", inputs, {**node.attrs, "in_act": before.attrs["act"]}, label)
