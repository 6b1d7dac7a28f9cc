"""Normalisation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aspen_mp.torch import sizes
from aspen_mp.torch.builder import Builder, Value, static
from aspen_mp.torch.operators.creation import filled
from aspen_mp.torch.registry import Unsupported, aten


def _scale(b: Builder, weight: Value | None, shape: Sequence[Any], dtype: Any) -> Value:
    return filled(b, shape, 1, dtype) if weight is None else b.cast(weight, dtype)


@aten("native_layer_norm.default")
def _layer_norm(
    b: Builder, x: Value, normalized_shape: Sequence[Any], weight: Value | None, bias: Value | None, eps: float
) -> tuple[Value, Value | None, Value | None]:
    statistics = bool({1, 2} & b.used)
    if statistics:
        raise Unsupported("mean and deviation of a layer norm")
    scale = _scale(b, weight, normalized_shape, x.dtype)
    shift = None if bias is None else b.cast(bias, x.dtype)
    y = b.emit("LayerNormalization", x, scale, shift, axis=-len(normalized_shape), epsilon=float(eps))
    return y, None, None


@aten("native_group_norm.default")
def _group_norm(
    b: Builder, x: Value, weight: Value | None, bias: Value | None, n: Any, channels: Any, pixels: Any, groups: int, eps: float
) -> tuple[Value, Value | None, Value | None]:
    if {1, 2} & b.used:
        raise Unsupported("mean and deviation of a group norm")
    (count,) = static([channels], "the number of channels")
    scale = _scale(b, weight, [count], x.dtype)
    shift = filled(b, [count], 0, x.dtype) if bias is None else b.cast(bias, x.dtype)
    return b.emit("GroupNormalization", x, scale, shift, num_groups=int(groups), epsilon=float(eps)), None, None


@aten("_native_batch_norm_legit_no_training.default")
def _batch_norm(
    b: Builder, x: Value, weight: Value | None, bias: Value | None, mean: Value, var: Value, momentum: float, eps: float
) -> tuple[Value, Value | None, Value | None]:
    if {1, 2} & b.used:
        raise Unsupported("statistics of a batch norm")
    (count,) = static([x.shape[1]], "the number of channels")
    scale = _scale(b, weight, [count], x.dtype)
    shift = filled(b, [count], 0, x.dtype) if bias is None else b.cast(bias, x.dtype)
    y = b.emit("BatchNormalization", x, scale, shift, b.cast(mean, x.dtype), b.cast(var, x.dtype), epsilon=float(eps))
    return y, None, None


@aten("_native_batch_norm_legit.no_stats")
def _instance_norm(
    b: Builder, x: Value, weight: Value | None, bias: Value | None, training: bool, momentum: float, eps: float
) -> tuple[Value, Value | None, Value | None]:
    """Statistics of the batch at hand: of a batch of one, those of each instance."""
    if {1, 2} & b.used or not training:
        raise Unsupported("statistics of a batch norm")
    if not sizes.same(x.shape[0], 1):
        raise Unsupported("a batch norm over a batch of several")
    (count,) = static([x.shape[1]], "the number of channels")
    scale = _scale(b, weight, [count], x.dtype)
    shift = filled(b, [count], 0, x.dtype) if bias is None else b.cast(bias, x.dtype)
    return b.emit("InstanceNormalization", x, scale, shift, epsilon=float(eps)), None, None
