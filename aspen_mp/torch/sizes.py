"""Sizes that are not fixed: what PyTorch knows as SymInts, as numbers, expressions and Python functions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import torch
from torch import fx

from aspen_mp.torch.registry import Unsupported

_SILENT: Final = logging.Logger("silent", logging.CRITICAL + 1)


@contextmanager
def undecided(graph: fx.Graph) -> Iterator[None]:
    """Within this context, a question to a size whose answer would restrict it raises an error: `if n == 7`, `int(n)`, `min(n, 7)`.

    PyTorch would note the answer as a guard, and compile the graph again for the next size. Versions that lack the switch still do.
    """
    modes = (getattr(node.meta.get("val"), "fake_mode", None) for node in graph.nodes)
    environment = next((mode.shape_env for mode in modes if mode is not None), None)
    if environment is None or not hasattr(environment, "error_on_new_guards"):
        yield
        return
    log, environment.log = environment.log, _SILENT  # which would say that a question failed
    try:
        with environment.error_on_new_guards():
            yield
    finally:
        environment.log = log


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


def same(a: Any, b: Any) -> bool:
    """Whether two sizes are equal whatever the sizes of inputs."""
    return bool(expression(a) == expression(b))


def is_size(value: Any) -> bool:
    return isinstance(value, int | torch.SymInt) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Whether a value is a number of Python's, fixed or not."""
    return isinstance(value, int | float | torch.SymInt | torch.SymFloat | torch.SymBool)


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


def finders(graph: fx.Graph) -> dict[Any, Callable[[Any], int]]:
    """Functions that find symbols of sizes among the arguments of a graph."""
    found: dict[Any, Callable[[Any], int]] = {}
    placeholders = [node.meta.get("val") for node in graph.nodes if node.op == "placeholder"]
    for place, value in enumerate(placeholders):
        if isinstance(value, torch.Tensor):
            for axis, size in enumerate(value.shape):
                if (symbol := _symbol(size)) is not None:
                    found.setdefault(symbol, lambda args, place=place, axis=axis: int(args[place].shape[axis]))  # type: ignore[misc]
    for place, value in enumerate(placeholders):
        if is_size(value) and (symbol := _symbol(value)) is not None:
            found[symbol] = lambda args, place=place: int(args[place])  # type: ignore[misc]
    return found


def _symbol(size: Any) -> Any:
    """The symbol that a size is; None for numbers and for what is computed from symbols."""
    expr = expression(size)
    return None if isinstance(expr, int) or not expr.is_Symbol else expr


def hint(value: Any) -> int:
    """A size as it was when PyTorch traced the graph."""
    if isinstance(value, torch.SymInt):
        found = value.node.hint
        return int(found) if found is not None else int(np.iinfo(np.int32).max)
    return int(value)
