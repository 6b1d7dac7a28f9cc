"""Linear quantisation, said in element-wise kernels. Results are those of ONNX's definition; integer arithmetic is not used."""

from __future__ import annotations

import numpy as np

from aspen_mp.planner.ir import Node, Tensor
from aspen_mp.planner.lower.builder import F32, Builder, NoKernel, axis_of, require_f32
from aspen_mp.planner.lower.elementwise import data, optional
from aspen_mp.planner.lower.registry import rule

_STORED = {"int8", "uint8", "int16", "uint16"}


def _parameter(b: Builder, tensor: Tensor, node: Node, rank: int) -> Tensor:
    """Scale or zero point beside the data: one for all, or one for each index of an axis."""
    if tensor.size == 1:
        return b.reshape(tensor, (1,) * rank)
    if len(tensor.shape) != 1 or node.attrs.get("block_size", 0):
        raise NoKernel("scales by blocks")
    return b.insert_axes(tensor, [axis_of(node.attrs.get("axis", 1), rank)], rank)


@rule("QuantizeLinear")
def _quantize(b: Builder, node: Node) -> Tensor:
    x, scale, zero = data(node), data(node, 1), optional(node, 2)
    require_f32(x, scale)
    to = node.output.dtype
    if to.name not in _STORED:
        raise NoKernel(f"no kernel for {to}")
    rank = len(x.shape)
    out = b.unary("ROUND", b.binary("DIV", x, _parameter(b, scale, node, rank)))
    if zero is not None:
        out = b.binary("ADD", out, b.cast(_parameter(b, zero, node, rank), F32))
    info = np.iinfo(to)
    return b.cast(b.unary("CLIP", out, float(info.min), float(info.max)), to)


@rule("DequantizeLinear")
def _dequantize(b: Builder, node: Node) -> Tensor:
    x, scale, zero = data(node), data(node, 1), optional(node, 2)
    require_f32(scale)
    if x.dtype.name not in _STORED | {"int32"}:
        raise NoKernel(f"no kernel for {x.dtype}")
    rank = len(x.shape)
    out = b.cast(x, F32)
    if zero is not None:
        out = b.binary("SUB", out, b.cast(_parameter(b, zero, node, rank), F32))
    return b.binary("MUL", out, _parameter(b, scale, node, rank))
