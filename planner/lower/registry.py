"""Which rule lowers which ONNX operator."""

from __future__ import annotations

from collections.abc import Callable

from aspen_mp.planner.ir import Node, Tensor
from aspen_mp.planner.lower.builder import Builder

Rule = Callable[[Builder, Node], Tensor | list[Tensor]]

RULES: dict[str, Rule] = {}
"""Operator → rule. A rule takes the node with inputs already lowered and returns what stands for its outputs, or raises NoKernel."""

WIDENED: set[str] = set()
"""Operators whose kernels are for f32 alone: f16 and bf16 inputs are widened first and the result is rounded back."""


def rule(*ops: str, widened: bool = False) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        for op in ops:
            RULES[op] = function
            if widened:
                WIDENED.add(op)
        return function

    return register
