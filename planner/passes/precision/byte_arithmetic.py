"""Sums, differences and products of two tensors of bytes that become bytes again are one kernel. Its roundings are those of the kernels that
it replaces."""

from __future__ import annotations

import numpy as np

from aspen_mp.planner.ir.graph import Graph
from aspen_mp.planner.passes.precision.byte_epilogues import parameters, stored
from aspen_mp.planner.passes.rewrite import Rewriter

_BYTES = (np.dtype(np.int8), np.dtype(np.uint8))
_OPCODES = frozenset({"ADD", "SUB", "MUL"})


def combine_bytes(graph: Graph) -> None:
    rewriter = Rewriter(graph)
    for node in rewriter.live():
        if not rewriter.alive(node) or node.op != "QUANTIZE" or node.output.dtype not in _BYTES or node.attrs["times"]:
            continue
        pair, out = rewriter.made_by(node.inputs[0], "BINARY"), parameters(node)
        if pair is None or out is None or pair.attrs["opcode"] not in _OPCODES or not rewriter.only_use(pair.output):
            continue
        x, y = (stored(rewriter, value) for value in pair.inputs)
        if x is None or y is None:
            continue
        attrs = {"opcode": pair.attrs["opcode"], "act": pair.attrs["act"], "out_scale": out[0], "out_zero": out[1]}
        for name, (_, scale, zero) in zip("xy", (x, y), strict=True):
            attrs |= {f"{name}_scale": scale, f"{name}_zero": zero}
        rewriter.replace(node, "QBINARY", [x[0], y[0]], attrs, f"{pair.onnx_op} + {node.onnx_op}")
        node.name = pair.name
    rewriter.finish()
