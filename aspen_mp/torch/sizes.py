"""Sizes that are not fixed: what PyTorch knows as SymInts, as ONNX nodes over the shapes of inputs, and as Python functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from aspen_mp.torch.registry import Unsupported

if TYPE_CHECKING:
    from aspen_mp.torch.builder import Builder, Value

_REPEATED: Final = {"Add": "Add", "Mul": "Mul", "Max": "Max", "Min": "Min"}
_FLOORS: Final = {"FloorDiv", "CleanDiv"}
_MODULI: Final = {"Mod", "PythonMod"}


def plain(value: Any) -> Any:
    """A number where a SymInt or SymFloat turns out to be one; everything else as it is."""
    if isinstance(value, torch.SymInt):
        expr = value.node.expr
        return int(expr) if expr.is_Integer else value
    if isinstance(value, torch.SymFloat):
        expr = value.node.expr
        return float(expr) if expr.is_number else value
    return value


def expression(value: Any) -> Any:
    """A number, or sympy's expression of a SymInt or SymFloat."""
    value = plain(value)
    return value.node.expr if isinstance(value, torch.SymInt | torch.SymFloat) else value


def is_size(value: Any) -> bool:
    return isinstance(value, int | torch.SymInt) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Whether a value is a number of Python's, fixed or not."""
    return isinstance(value, int | float | torch.SymInt | torch.SymFloat | torch.SymBool)


def emit(builder: Builder, expr: Any) -> Value:
    """An expression as an int64 [1] tensor."""
    if expr.is_Integer:
        return builder.ints([int(expr)])
    if expr.is_Symbol:
        found = builder.sources.get(expr)
        if found is None:
            raise Unsupported(f"the size {expr} is not one of an input's")
        return found
    name = type(expr).__name__
    if name in _REPEATED:
        total = emit(builder, expr.args[0])
        for term in expr.args[1:]:
            total = _binary(builder, _REPEATED[name], total, emit(builder, term))
        return total
    if name == "Pow" and expr.args[1].is_Integer and int(expr.args[1]) > 0:
        base = total = emit(builder, expr.args[0])
        for _ in range(int(expr.args[1]) - 1):
            total = _binary(builder, "Mul", total, base)
        return total
    if name in _FLOORS or name in _MODULI:
        a, b = (emit(builder, part) for part in expr.args)
        rest = _binary(builder, "Mod", a, b)
        return rest if name in _MODULI else _binary(builder, "Div", _binary(builder, "Sub", a, rest), b)
    raise Unsupported(f"the size {expr} cannot be computed from those of inputs")


def emit_float(builder: Builder, expr: Any) -> Value:
    """An expression with fractions as a float64 [1] tensor."""
    wide = torch.float64
    if expr.is_integer and not expr.is_number:
        return builder.cast(emit(builder, expr), wide)
    if expr.is_number:
        return builder.constant(np.array([float(expr)]), wide)
    name = type(expr).__name__
    if name == "ToFloat":
        return builder.cast(emit(builder, expr.args[0]), wide)
    if name in {"FloatTrueDiv", "IntTrueDiv"}:
        a, b = (emit_float(builder, part) for part in expr.args)
        return builder.emit("Div", a, b, dtype=wide, shape=(1,))
    if name in {"Add", "Mul"}:
        total = emit_float(builder, expr.args[0])
        for term in expr.args[1:]:
            total = builder.emit(name, total, emit_float(builder, term), dtype=wide, shape=(1,))
        return total
    raise Unsupported(f"the number {expr} cannot be computed from the sizes of inputs")


def _binary(builder: Builder, op: str, a: Value, b: Value) -> Value:
    return builder.emit(op, a, b, dtype=torch.int64, shape=(1,))


def function(expr: Any, places: Mapping[Any, Callable[[Any], int]]) -> Callable[[Any], int]:
    """A function from a call's arguments to the value of an expression. `places`: symbol → function that finds it among the arguments."""
    if isinstance(expr, int) or expr.is_Integer:
        number = int(expr)
        return lambda args: number
    if expr.is_Symbol:
        if expr not in places:
            raise Unsupported(f"the size {expr} is not one of an input's")
        return places[expr]
    symbols = sorted(expr.free_symbols, key=str)
    parts = [function(symbol, places) for symbol in symbols]

    def evaluate(args: Any) -> int:
        return int(expr.subs({symbol: part(args) for symbol, part in zip(symbols, parts, strict=True)}))

    return evaluate


def hint(value: Any) -> int:
    """A size as it was when PyTorch traced the graph."""
    if isinstance(value, torch.SymInt):
        found = value.node.hint
        return int(found) if found is not None else int(np.iinfo(np.int32).max)
    return int(value)
