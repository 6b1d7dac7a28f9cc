"""Activation functions, in the spelling that the planner finds kernels for."""

from __future__ import annotations

import math

import torch

from aspen_mp.torch.builder import Builder, Scalar, Value, in_float32
from aspen_mp.torch.operators.elementwise import clamped
from aspen_mp.torch.registry import Unsupported, aten


@aten("relu.default")
def _relu(b: Builder, x: Value) -> Value:
    return b.emit("Relu", x) if x.dtype.is_floating_point else b.emit("Max", x, b.constant(0, x.dtype))


@aten("hardtanh.default")
def _hardtanh(b: Builder, x: Value, low: Scalar = -1, high: Scalar = 1) -> Value:
    return clamped(b, x, low, high)


@aten("gelu.default")
def _gelu(b: Builder, x: Value, *, approximate: str = "none") -> Value:
    return b.emit("Gelu", x, approximate=approximate)


@aten("silu.default")
@in_float32
def _silu(b: Builder, x: Value) -> Value:
    return b.emit("Mul", x, b.emit("Sigmoid", x))


@aten("hardswish.default")
def _hardswish(b: Builder, x: Value) -> Value:
    return b.emit("HardSwish", x)


@aten("hardsigmoid.default")
def _hardsigmoid(b: Builder, x: Value) -> Value:
    return b.emit("HardSigmoid", x, alpha=1.0 / 6.0, beta=0.5)


@aten("mish.default")
def _mish(b: Builder, x: Value) -> Value:
    return b.emit("Mish", x)


@aten("elu.default")
@in_float32
def _elu(b: Builder, x: Value, alpha: Scalar = 1, scale: Scalar = 1, input_scale: Scalar = 1) -> Value:
    if input_scale == 1 and alpha == 1 and scale == 1:
        return b.emit("Elu", x, alpha=1.0)
    if input_scale == 1:
        y = b.emit("Elu", x, alpha=float(alpha))
        return y if scale == 1 else b.emit("Mul", y, b.constant(scale, x.dtype))
    zero = b.constant(0, x.dtype)
    bent = b.emit("Elu", b.emit("Mul", x, b.constant(input_scale, x.dtype)), alpha=float(alpha))
    y = b.emit("Where", b.emit("Greater", x, zero, dtype=torch.bool), x, bent, dtype=x.dtype)
    return y if scale == 1 else b.emit("Mul", y, b.constant(scale, x.dtype))


@aten("celu.default")
def _celu(b: Builder, x: Value, alpha: Scalar = 1) -> Value:
    return b.emit("Celu", x, alpha=float(alpha))


@aten("leaky_relu.default")
def _leaky_relu(b: Builder, x: Value, negative_slope: Scalar = 0.01) -> Value:
    return b.emit("LeakyRelu", x, alpha=float(negative_slope))


@aten("_prelu_kernel.default")
def _prelu(b: Builder, x: Value, weight: Value) -> Value:
    if weight.rank == 1 and x.rank > 2:
        weight = b.reshape(weight, [*weight.shape, *[1] * (x.rank - 2)])
    return b.emit("PRelu", x, weight)


@aten("softplus.default")
@in_float32
def _softplus(b: Builder, x: Value, beta: Scalar = 1, threshold: Scalar = 20) -> Value:
    if not math.isfinite(beta):
        raise Unsupported(f"a factor of {beta}")
    scaled = x if beta == 1 else b.emit("Mul", x, b.constant(beta, x.dtype))
    y = b.emit("Softplus", scaled)
    y = y if beta == 1 else b.emit("Div", y, b.constant(beta, x.dtype))
    large = b.emit("Greater", scaled, b.constant(threshold, x.dtype), dtype=torch.bool)
    return b.emit("Where", large, x, y, dtype=x.dtype) if threshold < 20 else y


@aten("log_sigmoid_forward.default")
@in_float32
def _log_sigmoid(b: Builder, x: Value) -> tuple[Value, None]:
    return b.emit("Neg", b.emit("Softplus", b.emit("Neg", x))), None


@aten("threshold.default")
def _threshold(b: Builder, x: Value, threshold: Scalar, value: Scalar) -> Value:
    """What is NaN stays."""
    low = b.emit("LessOrEqual", x, b.constant(threshold, x.dtype), dtype=torch.bool)
    return b.emit("Where", low, b.constant(value, x.dtype), x, dtype=x.dtype)


@aten("glu.default")
@in_float32
def _glu(b: Builder, x: Value, dim: int = -1) -> Value:
    half, gate = b.emit_all("Split", [x], [x.dtype, x.dtype], axis=dim, num_outputs=2)
    return b.emit("Mul", half, b.emit("Sigmoid", gate))


@aten("_softmax.default", "_safe_softmax.default")
@in_float32
def _softmax(b: Builder, x: Value, dim: int, half_to_float: object = None, **_: object) -> Value:
    x = b.cast(x, b.dtype)
    if x.rank == 0:
        return b.constant(1, b.dtype)
    y = b.emit("Softmax", x, axis=dim)
    if b.made_for("_safe_softmax"):
        y = b.emit("Where", b.emit("IsNaN", y, dtype=torch.bool), b.constant(0, y.dtype), y, dtype=y.dtype)
    return y


@aten("_log_softmax.default")
@in_float32
def _log_softmax(b: Builder, x: Value, dim: int, half_to_float: object = None) -> Value:
    x = b.cast(x, b.dtype)
    return b.constant(0, b.dtype) if x.rank == 0 else b.emit("LogSoftmax", x, axis=dim)
