"""Which function expresses which ATen operator in ONNX's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

Rule = Callable[..., Any]

RULES: Final[dict[str, Rule]] = {}
"""ATen operator with its overload ("add.Tensor") → rule. A rule takes a `Builder`, whose `out` is what the node gives, and the node's
arguments: tensors as `Value`s, sizes as ints or SymInts. It returns a `Value`, or a tuple of them where the operator gives several; None
stands for one that it cannot give. It raises `Unsupported` for arguments that it cannot express."""

REFUSED: Final[dict[str, str]] = {}
"""Operators that are left to PyTorch on purpose → why."""


class Unsupported(Exception):
    """A node that ONNX has no words for; the message says why. It stays with PyTorch."""


def aten(*names: str) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        for name in names:
            if name in RULES:
                raise ValueError(f"{name} has a rule already")
            RULES[name] = function
        return function

    return register


def refuse(why: str, *names: str) -> None:
    """Says why operators of these names stay with PyTorch."""
    for name in names:
        REFUSED[name] = why
