"""Matrix products."""

from __future__ import annotations

import torch

from aspen_mp.torch import sizes
from aspen_mp.torch.builder import Builder, Scalar, Value
from aspen_mp.torch.operators.elementwise import scaled
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
    if sizes.same(alpha, 0):
        raise Unsupported("no product, whatever its factors")
    result = scaled(b, product(b, x, y), alpha)
    return result if sizes.same(beta, 0) else b.emit("Add", result, scaled(b, b.cast(bias, b.dtype), beta))


@aten("_int_mm.default")
def _int_mm(b: Builder, x: Value, y: Value) -> Value:
    return b.emit("MatMulInteger", x, y, dtype=torch.int32)
