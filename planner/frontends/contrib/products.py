"""Products with the operators that the optimizer puts behind them, and functions of one argument."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from aspen_mp.planner.frontends.contrib.body import Body, Rule

ACTIVATIONS: Final = {"Relu": (), "Tanh": (), "Sigmoid": (), "LeakyRelu": ("alpha",), "HardSigmoid": ("alpha", "beta")}
"""Activations that may follow a fused product → their attributes, in order."""


def _order(rank: int, batch: bool, swap: bool) -> list[int]:
    """The source of each axis of a factor. With `batch` the first one goes before the last (they are rows); with `swap` the last two are
    exchanged afterwards."""
    order = [*range(1, rank - 1), 0, rank - 1] if batch else list(range(rank))
    return [*order[:-2], order[-1], order[-2]] if swap else order


def _fused_matmul(b: Body) -> list[str]:
    """Also of a sparse factor, which is dense here."""
    names = []
    for k, letter in enumerate("AB"):
        rank, name = len(b.tensor(k).shape), b.name(k)
        order = _order(rank, rank > 2 and bool(b.get(f"transBatch{letter}", 0)), rank > 1 and bool(b.get(f"trans{letter}", 0)))
        names.append(name if order == list(range(rank)) else b.emit("Transpose", name, perm=order))
    product, alpha = b.emit("MatMul", *names), b.get("alpha", 1.0)
    return [product if alpha == 1 else b.emit("Mul", product, b.number(alpha))]


def _activated(b: Body, x: str, parameters: Sequence[float]) -> str:
    kind = b.get("activation", b"").decode()
    if kind == "Clip":
        return b.emit("Clip", x, *map(b.number, parameters))
    attributes: dict[str, Any] = dict(zip(ACTIVATIONS.get(kind, ()), parameters, strict=False))
    return b.emit(kind, x, **attributes) if kind else x


def _fused_conv(b: Body) -> list[str]:
    attributes = b.kept(("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"))
    y = b.emit("Conv", *map(b.name, range(3)), **attributes)
    return [_activated(b, b.plus(y, b.name(3)), b.get("activation_params", []))]


def _fused_gemm(b: Body) -> list[str]:
    y = b.emit("Gemm", *map(b.name, range(3)), **b.kept(("alpha", "beta", "transA", "transB")))
    given = [b.attributes[name] for name in ("activation_alpha", "activation_beta") if name in b.attributes]
    return [_activated(b, y, given)]


def _gelu(b: Body) -> list[str]:
    return [b.emit("Gelu", b.plus(b.name(0), b.name(1)))]


def _fast_gelu(b: Body) -> list[str]:
    return [b.emit("Gelu", b.plus(b.name(0), b.name(1)), approximate="tanh")]


def _quick_gelu(b: Body) -> list[str]:
    gate = b.emit("Sigmoid", b.emit("Mul", b.name(0), b.number(b.get("alpha", 1.702))))
    return [b.emit("Mul", b.name(0), gate)]


def _split_gelu(b: Body) -> list[str]:
    """One half of the columns, times Gelu of the other."""
    shape = b.tensor(0).shape
    left, gate = b.split(b.plus(b.name(0), b.name(1)), len(shape) - 1, [shape[-1] // 2] * 2)
    return [b.emit("Mul", left, b.emit("Gelu", gate))]


def _bias_add(b: Body) -> list[str]:
    return [b.plus(b.plus(b.name(0), b.name(1)), b.name(2))]


RULES: Final[dict[str, Rule]] = {
    "BiasAdd": _bias_add,
    "BiasGelu": _gelu,
    "BiasSplitGelu": _split_gelu,
    "FastGelu": _fast_gelu,
    "FusedConv": _fused_conv,
    "FusedGemm": _fused_gemm,
    "FusedMatMul": _fused_matmul,
    "Gelu": _gelu,
    "QuickGelu": _quick_gelu,
    "SparseToDenseMatMul": _fused_matmul,
    "TransposeMatMul": _fused_matmul,
}
