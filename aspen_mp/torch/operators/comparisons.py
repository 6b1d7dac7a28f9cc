"""Comparisons, logic, bits and casts."""

from __future__ import annotations

from typing import Any, Final

import torch

from aspen_mp.torch.builder import Builder, Scalar, Value
from aspen_mp.torch.operators.creation import filled
from aspen_mp.torch.registry import Unsupported, aten

Operand = Value | Scalar

_COMPARISONS: Final = {"eq": "Equal", "lt": "Less", "gt": "Greater", "le": "LessOrEqual", "ge": "GreaterOrEqual"}
_LOGIC: Final = {"and": "And", "or": "Or", "xor": "Xor"}


def promoted(x: Operand, y: Operand) -> Any:
    """The type in which two operands meet: a number, or a tensor without dimensions, counts where its kind is the higher one."""
    if not isinstance(x, Value) or not isinstance(y, Value):
        tensor, number = (x, y) if isinstance(x, Value) else (y, x)
        assert isinstance(tensor, Value)
        kind = torch.bool if isinstance(number, bool) else torch.float32 if isinstance(number, float) else torch.int64
        return tensor.dtype if _kind(tensor.dtype) >= _kind(kind) else kind
    low, high = sorted((x, y), key=lambda value: min(value.rank, 1))
    if low.rank or not high.rank:
        return torch.promote_types(x.dtype, y.dtype)
    return high.dtype if _kind(high.dtype) >= _kind(low.dtype) else low.dtype


def _kind(dtype: Any) -> int:
    return 2 if dtype.is_floating_point else int(dtype != torch.bool)


def _pair(b: Builder, x: Operand, y: Operand) -> tuple[Value, Value]:
    dtype = promoted(x, y)
    return b.operand(x, dtype), b.operand(y, dtype)


def _comparison(name: str, op: str) -> None:
    @aten(f"{name}.Tensor", f"{name}.Scalar")
    def rule(b: Builder, x: Operand, y: Operand) -> Value:
        left, right = _pair(b, x, y)
        if left.dtype == torch.bool and name != "eq":
            left, right = b.cast(left, torch.int32), b.cast(right, torch.int32)
        return b.emit(op, left, right, dtype=torch.bool)


for _name, _op in _COMPARISONS.items():
    _comparison(_name, _op)


@aten("ne.Tensor", "ne.Scalar")
def _ne(b: Builder, x: Operand, y: Operand) -> Value:
    return b.emit("Not", b.emit("Equal", *_pair(b, x, y), dtype=torch.bool))


def _logical(name: str, op: str) -> None:
    @aten(f"logical_{name}.default")
    def logical(b: Builder, x: Value, y: Value) -> Value:
        return b.emit(op, b.cast(x, torch.bool), b.cast(y, torch.bool))

    @aten(f"bitwise_{name}.Tensor", f"bitwise_{name}.Scalar")
    def bitwise(b: Builder, x: Operand, y: Operand) -> Value:
        left, right = b.operand(x, b.dtype), b.operand(y, b.dtype)
        return b.emit(op if b.dtype == torch.bool else f"Bitwise{op}", left, right)


for _name, _op in _LOGIC.items():
    _logical(_name, _op)


@aten("logical_not.default")
def _not(b: Builder, x: Value) -> Value:
    return b.emit("Not", b.cast(x, torch.bool))


@aten("isnan.default")
def _isnan(b: Builder, x: Value) -> Value:
    if not x.dtype.is_floating_point:
        return filled(b, x.shape, False, torch.bool)
    return b.emit("Not", b.emit("Equal", x, x, dtype=torch.bool)) if x.dtype == torch.float64 else b.emit("IsNaN", x, dtype=torch.bool)


@aten("isinf.default")
def _isinf(b: Builder, x: Value) -> Value:
    if not x.dtype.is_floating_point:
        return filled(b, x.shape, False, torch.bool)
    return b.emit("Equal", b.emit("Abs", x), b.constant(float("inf"), x.dtype), dtype=torch.bool)


@aten("_to_copy.default", "prims.convert_element_type.default")
def to_copy(b: Builder, x: Value, dtype: Any = None, **layout: Any) -> Value:
    if layout.get("layout") not in (None, torch.strided):
        raise Unsupported(f"layout {layout['layout']}")
    return converted(b, x, b.dtype)


def converted(b: Builder, x: Value, dtype: Any) -> Value:
    """A cast as PyTorch rounds: floats towards zero."""
    return b.cast(x, dtype)


@aten("clone.default", "alias.default", "detach.default", "lift_fresh_copy.default")
def _same(b: Builder, x: Value, **_: Any) -> Value:
    return x


@aten("copy.default")
def _copy(b: Builder, to: Value, source: Value, non_blocking: bool = False) -> Value:
    return b.expand(b.cast(source, to.dtype), b.shape)
