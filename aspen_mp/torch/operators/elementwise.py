"""Arithmetic, element by element: operands of mixed types become the result's type first, as PyTorch promotes them."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import torch

from aspen_mp.torch import sizes
from aspen_mp.torch.builder import HALVES, NUMPY_TYPES, Builder, Scalar, Value, holds, in_float32
from aspen_mp.torch.registry import Unsupported, aten

Operand = Value | Scalar

_UNARY: Final = {
    "abs": "Abs",
    "neg": "Neg",
    "sign": "Sign",
    "ceil": "Ceil",
    "floor": "Floor",
    "round": "Round",
    "bitwise_not": "BitwiseNot",
}
_UNARY_FLOAT: Final = {
    "exp": "Exp",
    "log": "Log",
    "sqrt": "Sqrt",
    "reciprocal": "Reciprocal",
    "sin": "Sin",
    "cos": "Cos",
    "tan": "Tan",
    "asin": "Asin",
    "acos": "Acos",
    "atan": "Atan",
    "sinh": "Sinh",
    "cosh": "Cosh",
    "asinh": "Asinh",
    "acosh": "Acosh",
    "atanh": "Atanh",
    "tanh": "Tanh",
    "erf": "Erf",
    "sigmoid": "Sigmoid",
}
"""These give floats for ints."""


def _same_type(name: str, op: str) -> None:
    @aten(f"{name}.default")
    def rule(b: Builder, x: Value) -> Value:
        if x.dtype == torch.bool:
            if name == "bitwise_not":
                return b.emit("Not", x)
            raise Unsupported(f"{name} of bool")
        if not x.dtype.is_floating_point and name in {"ceil", "floor", "round"}:
            return x
        if name == "sign" and x.dtype.is_floating_point:  # 0 of NaN and of -0, without a sign
            zero = b.constant(0, x.dtype)
            return b.emit("Sub", *[b.cast(b.emit(side, x, zero, dtype=torch.bool), x.dtype) for side in ("Greater", "Less")])
        return b.emit(op, x)


def _to_float(name: str, op: str) -> None:
    @aten(f"{name}.default")
    def rule(b: Builder, x: Value) -> Value:
        return b.emit(op, b.cast(x, b.dtype))


for _name, _op in _UNARY.items():
    _same_type(_name, _op)
for _name, _op in _UNARY_FLOAT.items():
    _to_float(_name, _op)


@aten("round.decimals")
@in_float32
def _round_decimals(b: Builder, x: Value, *, decimals: int = 0) -> Value:
    if not x.dtype.is_floating_point:
        raise Unsupported("rounding whole numbers to decimals")
    if decimals == 0:
        return b.emit("Round", x)
    scale = b.constant(10.0 ** abs(decimals), x.dtype)
    there, back = ("Mul", "Div") if decimals > 0 else ("Div", "Mul")
    return b.emit(back, b.emit("Round", b.emit(there, x, scale)), scale)


@aten("trunc.default")
def _trunc(b: Builder, x: Value) -> Value:
    return truncated(b, x) if x.dtype.is_floating_point else x


def truncated(b: Builder, x: Value) -> Value:
    """Towards zero, which keeps its sign."""
    negative = b.emit("Less", x, b.constant(0.0, x.dtype), dtype=torch.bool)
    return b.emit("Where", negative, b.emit("Ceil", x), b.emit("Floor", x), dtype=x.dtype)


@aten("frac.default")
@in_float32
def _frac(b: Builder, x: Value) -> Value:
    return b.emit("Sub", x, truncated(b, x))


@aten("rsqrt.default")
@in_float32
def _rsqrt(b: Builder, x: Value) -> Value:
    return b.emit("Reciprocal", b.emit("Sqrt", b.cast(x, b.dtype)))


@aten("log2.default", "log10.default")
@in_float32
def _log_of_base(b: Builder, x: Value) -> Value:
    base = 2.0 if b.made_for("log2") else 10.0
    return b.emit("Mul", b.emit("Log", b.cast(x, b.dtype)), b.constant(1.0 / math.log(base), b.dtype))


@aten("log1p.default", "expm1.default")
def _near_zero(b: Builder, x: Value) -> Value:
    """In double precision, where what cancels is beyond the results' precision except for the smallest arguments; those stand for
    themselves."""
    x = b.cast(x, b.dtype)
    if b.dtype == torch.float64:
        raise Unsupported("precision would be lost in float64")
    wide, one = b.cast(x, torch.float64), b.constant(1.0, torch.float64)
    value = b.emit("Log", b.emit("Add", wide, one)) if b.made_for("log1p") else b.emit("Sub", b.emit("Exp", wide), one)
    tiny = b.emit("LessOrEqual", b.emit("Abs", x), b.constant(1e-8, x.dtype), dtype=torch.bool)  # in float16, this constant is 0
    return b.emit("Where", tiny, x, b.cast(value, b.dtype), dtype=b.dtype)


@aten("exp2.default")
def _exp2(b: Builder, x: Value) -> Value:
    return b.emit("Pow", b.constant(2.0, b.dtype), b.cast(x, b.dtype), dtype=b.dtype)


# ---- two operands


@aten("add.Tensor", "add.Scalar")
def _add(b: Builder, x: Operand, y: Operand, alpha: Scalar = 1) -> Value:
    return _sum(b, "Add", x, y, alpha)


@aten("sub.Tensor", "sub.Scalar")
def _sub(b: Builder, x: Operand, y: Operand, alpha: Scalar = 1) -> Value:
    return _sum(b, "Sub", x, y, alpha)


@aten("rsub.Scalar")
def _rsub(b: Builder, x: Operand, y: Operand, alpha: Scalar = 1) -> Value:
    return _sum(b, "Sub", y, x, alpha)


def _sum(b: Builder, op: str, x: Operand, y: Operand, alpha: Scalar) -> Value:
    if b.dtype == torch.bool:
        if op == "Sub" or not sizes.same(alpha, 1):
            raise Unsupported("differences of bools")
        return b.emit("Or", b.operand(x, torch.bool), b.operand(y, torch.bool))
    left, right = operands(b, x, y)
    return b.emit(op, left, right) if sizes.same(alpha, 1) else in_float32(_scaled_sum)(b, op, left, right, alpha)


def _scaled_sum(b: Builder, op: str, x: Value, y: Value, alpha: Scalar) -> Value:
    return b.emit(op, x, scaled(b, y, alpha))


def operands(b: Builder, x: Operand, y: Operand) -> tuple[Value, Value]:
    """Both in the result's type. A number that it does not hold becomes infinite."""
    left, right = (_limited(value, b.dtype) if b.dtype.is_floating_point else value for value in (x, y))
    return b.operand(left, b.dtype), b.operand(right, b.dtype)


def factors(b: Builder, x: Operand, y: Operand) -> tuple[Value, Value]:
    """The same of products and quotients. PyTorch computes those of halves in float32, which has more numbers."""
    dtype = b.dtype if _fits(x, b.dtype) and _fits(y, b.dtype) else torch.float32
    return b.operand(x, dtype), b.operand(y, dtype)


def _fits(value: Operand, dtype: Any) -> bool:
    """Whether a half has exactly this number; other types are taken as they are."""
    if not isinstance(value, int | float) or dtype not in HALVES:
        return True
    with np.errstate(over="ignore"):
        return float(np.asarray(value).astype(NUMPY_TYPES[dtype])) == value


def scaled(b: Builder, x: Value, factor: Scalar) -> Value:
    if sizes.same(factor, 1):
        return x
    dtype = x.dtype if _fits(factor, x.dtype) else torch.float32
    return b.cast(b.emit("Mul", b.cast(x, dtype), b.number(factor, dtype), shape=x.shape), x.dtype)


@aten("mul.Tensor", "mul.Scalar")
def _mul(b: Builder, x: Operand, y: Operand) -> Value:
    left, right = factors(b, x, y)
    return b.cast(b.emit("And" if b.dtype == torch.bool else "Mul", left, right), b.dtype)


@aten("div.Tensor", "div.Scalar")
def _div(b: Builder, x: Operand, y: Operand) -> Value:
    return b.cast(b.emit("Div", *factors(b, x, y)), b.dtype)


@aten("div.Tensor_mode", "div.Scalar_mode")
def _div_mode(b: Builder, x: Operand, y: Operand, *, rounding_mode: str | None) -> Value:
    if rounding_mode is None:
        return _div(b, x, y)  # type: ignore[no-any-return]
    if rounding_mode == "floor":
        return _floored(b, x, y)
    _refuse_halves(b)
    quotient = b.emit("Div", *operands(b, x, y))
    return truncated(b, quotient) if b.dtype.is_floating_point else quotient


@aten("floor_divide.default")
def _floor_divide(b: Builder, x: Operand, y: Operand) -> Value:
    return _floored(b, x, y)


def _floored(b: Builder, x: Operand, y: Operand) -> Value:
    _refuse_halves(b)
    return floor_divided(b, *operands(b, x, y))


def _refuse_halves(b: Builder) -> None:
    if b.dtype in HALVES:
        raise Unsupported("whole quotients of halves: PyTorch rounds to the type before it cuts off")


def floor_divided(b: Builder, x: Value, y: Value) -> Value:
    """As Python's `//`: from the remainder, so that the quotient's rounding does not carry it over a whole number."""
    dtype = x.dtype
    zero, one = b.constant(0, dtype), b.constant(1, dtype)
    if not dtype.is_floating_point:
        quotient = b.emit("Div", x, y)
        rest = b.emit("Sub", x, b.emit("Mul", quotient, y))
        return b.emit("Where", _unlike(b, rest, y), b.emit("Sub", quotient, one), quotient, dtype=dtype)
    rest = b.emit("Mod", x, y, fmod=1)
    quotient = b.emit("Div", b.emit("Sub", x, rest), y)
    quotient = b.emit("Where", _unlike(b, rest, y), b.emit("Sub", quotient, one), quotient, dtype=dtype)
    floor = b.emit("Floor", quotient)
    above = b.emit("Greater", b.emit("Sub", quotient, floor), b.constant(0.5, dtype), dtype=torch.bool)
    floor = b.emit("Where", above, b.emit("Add", floor, one), floor, dtype=dtype)
    return b.emit("Where", b.emit("Equal", y, zero, dtype=torch.bool), b.emit("Div", x, y), floor, dtype=dtype)


def _unlike(b: Builder, rest: Value, divisor: Value) -> Value:
    """Where a remainder is not 0 and its sign is not the divisor's."""
    zero = b.constant(0, rest.dtype)
    signs = b.emit("Xor", b.emit("Less", rest, zero, dtype=torch.bool), b.emit("Less", divisor, zero, dtype=torch.bool))
    return b.emit("And", signs, b.emit("Not", b.emit("Equal", rest, zero, dtype=torch.bool)))


@aten("fmod.Tensor", "fmod.Scalar")
def _fmod(b: Builder, x: Operand, y: Operand) -> Value:
    return b.emit("Mod", *operands(b, x, y), fmod=1)


@aten("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor")
def _remainder(b: Builder, x: Operand, y: Operand) -> Value:
    return _rest(b, *operands(b, x, y))


@in_float32
def _rest(b: Builder, x: Value, y: Value) -> Value:
    """The sign is the divisor's, as of Python's `%`."""
    if not b.dtype.is_floating_point:
        return b.emit("Mod", x, y)
    rest = b.emit("Mod", x, y, fmod=1)
    return b.emit("Where", _unlike(b, rest, y), b.emit("Add", rest, y), rest, dtype=rest.dtype)


@aten("pow.Tensor_Scalar")
@in_float32
def _pow_scalar(b: Builder, x: Value, exponent: Scalar) -> Value:
    x, exponent = b.cast(x, b.dtype), sizes.plain(exponent)
    if not isinstance(exponent, int | float):
        return b.emit("Pow", x, b.number(exponent, b.dtype))
    if exponent == 2:
        return b.emit("Mul", x, x)
    if exponent == 3:
        return b.emit("Mul", b.emit("Mul", x, x), x)
    if exponent == 1:
        return b.emit("Identity", x)
    if b.dtype.is_floating_point:
        if exponent == 0.5 and b.out.dtype != torch.float16:  # as of other powers, that of -inf is inf in float16
            return b.emit("Sqrt", x)
        if exponent == -0.5 and b.out.dtype != torch.float16:
            return b.emit("Reciprocal", b.emit("Sqrt", x))
        if exponent == -1:
            return b.emit("Reciprocal", x)
        if exponent == -2:
            return b.emit("Reciprocal", b.emit("Mul", x, x))
    return b.emit("Pow", x, b.constant(exponent, b.dtype))


@aten("pow.Tensor_Tensor", "pow.Scalar")
def _pow(b: Builder, x: Operand, exponent: Operand) -> Value:
    return b.emit("Pow", b.operand(x, b.dtype), b.operand(exponent, b.dtype))


@aten("maximum.default", "minimum.default")
def _extreme(b: Builder, x: Value, y: Value) -> Value:
    greatest = b.made_for("maximum")
    left, right = b.operand(x, b.dtype), b.operand(y, b.dtype)
    if b.dtype == torch.bool:
        return b.emit("Or" if greatest else "And", left, right)
    return b.emit("Max" if greatest else "Min", left, right)


@aten("addcmul.default", "addcdiv.default")
@in_float32
def _add_product(b: Builder, x: Value, first: Value, second: Value, *, value: Scalar = 1) -> Value:
    op = "Mul" if b.made_for("addcmul") else "Div"
    product = b.emit(op, b.operand(first, b.dtype), b.operand(second, b.dtype))
    return b.emit("Add", b.operand(x, b.dtype), scaled(b, product, value))


@aten("lerp.Scalar", "lerp.Tensor")
@in_float32
def _lerp(b: Builder, start: Value, end: Value, weight: Operand) -> Value:
    weight = b.operand(weight, b.dtype)
    return b.emit("Add", start, b.emit("Mul", weight, b.emit("Sub", end, start)))


# ---- limits


@aten("clamp.default", "clamp_min.default", "clamp_max.default", "clamp.Tensor")
def _clamp(b: Builder, x: Value, min: Any = None, max: Any = None) -> Value:
    if b.made_for("clamp_max"):
        min, max = None, min
    return clamped(b, b.cast(x, b.dtype), min, max)


def clamped(b: Builder, x: Value, low: Any, high: Any) -> Value:
    """Where the limits cross, the upper one holds."""
    numbers = [_limited(limit, x.dtype) for limit in (low, high)]
    if not all(limit is None or limit == limit for limit in numbers):  # noqa: PLR0124  # a limit that is NaN makes all of it NaN
        return b.expand(b.constant(math.nan, x.dtype), x.shape)
    if any(isinstance(limit, Value | torch.SymInt | torch.SymFloat) for limit in numbers):
        x = x if low is None else b.emit("Max", x, b.operand(numbers[0], x.dtype))
        return x if high is None else b.emit("Min", x, b.operand(numbers[1], x.dtype))
    least, most = numbers
    least = most if least is not None and most is not None and least > most else least
    limits = [None if limit is None else b.constant(limit, x.dtype) for limit in (least, most)]
    return b.emit("Clip", x, *limits) if any(limits) else x


def _limited(limit: Any, dtype: Any) -> Any:
    """A limit as the type holds it: an integer wraps, as PyTorch's do."""
    if not isinstance(sizes.plain(limit), int | float):
        return limit
    if dtype.is_floating_point:
        return limit if holds(limit, dtype) else math.copysign(math.inf, limit)
    info = torch.iinfo(dtype)
    if math.isinf(limit):
        return int(info.max) if limit > 0 else int(info.min)
    return int(np.array(int(limit)).astype(NUMPY_TYPES[dtype]))


@aten("where.self")
def _where(b: Builder, condition: Value, x: Operand, y: Operand) -> Value:
    return b.emit("Where", b.cast(condition, torch.bool), b.operand(x, b.dtype), b.operand(y, b.dtype), dtype=b.dtype)


@aten("masked_fill.Scalar", "masked_fill.Tensor")
def _masked_fill(b: Builder, x: Value, mask: Value, value: Operand) -> Value:
    return b.emit("Where", mask, b.operand(value, x.dtype), x, dtype=x.dtype)


@aten("nan_to_num.default")
def _nan_to_num(b: Builder, x: Value, nan: float | None = None, posinf: float | None = None, neginf: float | None = None) -> Value:
    if not x.dtype.is_floating_point:
        return x
    info = torch.finfo(x.dtype)
    low, high = (info.min if neginf is None else neginf), (info.max if posinf is None else posinf)
    finite = b.emit("Where", b.emit("IsNaN", x, dtype=torch.bool), b.constant(nan or 0.0, x.dtype), x, dtype=x.dtype)
    for value, negative in ((high, False), (low, True)):
        found = _infinite(b, finite, negative)
        finite = b.emit("Where", found, b.constant(value, x.dtype), finite, dtype=x.dtype)
    return finite


def _infinite(b: Builder, x: Value, negative: bool) -> Value:
    return b.emit("Equal", x, b.constant(-math.inf if negative else math.inf, x.dtype), dtype=torch.bool)
