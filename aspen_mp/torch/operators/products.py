"""Matrix products."""

from __future__ import annotations

import torch

from aspen_mp.torch.builder import Builder, Scalar, Value
from aspen_mp.torch.registry import Unsupported, aten


def product(b: Builder, x: Value, y: Value) -> Value:
    if not x.dtype.is_floating_point and x.dtype not in (torch.int32, torch.int64):
        raise Unsupported(f"products of {x.dtype}")
    return b.emit("MatMul", x, y)


@aten("mm.default", "bmm.default", "mv.default", "dot.default")
def _mm(b: Builder, x: Value, y: Value) -> Value:
    return product(b, x, y)


@aten("addmm.default", "baddbmm.default", "addmv.default")
def _addmm(b: Builder, bias: Value, x: Value, y: Value, *, beta: Scalar = 1, alpha: Scalar = 1) -> Value:
    result = product(b, x, y)
    if alpha != 1:
        result = b.emit("Mul", result, b.constant(alpha, b.dtype))
    if beta == 0:
        return result
    if beta != 1:
        bias = b.emit("Mul", bias, b.constant(beta, b.dtype))
    return b.emit("Add", result, b.cast(bias, b.dtype))


@aten("_int_mm.default")
def _int_mm(b: Builder, x: Value, y: Value) -> Value:
    return b.emit("MatMulInteger", x, y, dtype=torch.int32)
