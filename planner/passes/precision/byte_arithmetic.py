"""Arithmetic of bytes without floats in memory. Sums, differences and products of two tensors of bytes that become bytes again are one
kernel, with the roundings of the kernels that it replaces. Averages over small windows are depthwise convolutions with weights of 1."""

from __future__ import annotations

import numpy as np

from aspen_mp.planner.ir.graph import Graph, Node, Tensor
from aspen_mp.planner.ops.packing import byte_taps
from aspen_mp.planner.ops.params import NO_ACT
from aspen_mp.planner.passes.precision.byte_epilogues import parameters, stored
from aspen_mp.planner.passes.rewrite import Rewriter, no_act

_BYTES = (np.dtype(np.int8), np.dtype(np.uint8))
_OPCODES = frozenset({"ADD", "SUB", "MUL"})
_MOST_AVERAGED = 64
"""Elements of a window, at most: a kernel that reduces whole images is faster than one that multiplies."""


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


def average_bytes(graph: Graph, sums_bytes: bool) -> None:
    """`sums_bytes`: whether an instruction sums products of bytes. Without it averages of floats are faster."""
    if not sums_bytes:
        return
    rewriter = Rewriter(graph)
    for node in rewriter.live():
        if not rewriter.alive(node) or not _averages(node):
            continue
        found = stored(rewriter, node.inputs[0])
        if found is None:
            continue
        x, scale, zero = found
        kernel, channels = node.attrs["kernel"], node.output.shape[1]
        ones = Tensor(f"{node.output.name}|ones", (channels, 1, *kernel), np.dtype(np.int8), data=np.ones((channels, 1, *kernel), np.int8))
        weights, parts = byte_taps.packed(ones, None)
        factor = np.full((1, 1, 1, 1), scale / (kernel[0] * kernel[1]), np.float32)
        operands = [None, None, Tensor(f"{node.output.name}|scale", factor.shape, factor.dtype, data=factor)]
        point = Tensor(f"{node.output.name}|zero", (1,), x.dtype, data=np.full(1, zero, x.dtype))
        window = {name: tuple(node.attrs[name][:2]) for name in ("kernel", "strides", "dilations", "pads")}
        rewriter.replace(node, "QDWCONV", [x, weights, *operands, point], {"parts": parts, "act": NO_ACT, **window})
    rewriter.finish()


def _averages(node: Node) -> bool:
    """Whether it averages small windows of images, each of as many elements. Windows of whole images change with them: one plan for many
    sizes has no weights for those."""
    if node.op != "POOL" or node.attrs["mode"] != "average" or len(node.inputs) != 1 or len(node.output.shape) != 4 or not no_act(node):
        return False
    kernel, pads, x = node.attrs["kernel"], node.attrs["pads"], node.inputs[0]
    if (
        x is None
        or kernel[0] * kernel[1] > _MOST_AVERAGED
        or tuple(kernel) == x.shape[2:]
        or not (node.attrs["count_include_pad"] or not any(pads))
    ):
        return False
    reach = [(node.output.shape[2 + k] - 1) * node.attrs["strides"][k] + (kernel[k] - 1) * node.attrs["dilations"][k] + 1 for k in (0, 1)]
    return all(reach[k] <= x.shape[2 + k] + pads[k] + pads[2 + k] for k in (0, 1))
