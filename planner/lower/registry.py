"""Registers the rule that lowers each ONNX operator."""

from __future__ import annotations

from collections.abc import Callable

from aspen_mp.planner.ir.graph import Node, Tensor
from aspen_mp.planner.lower.builder import Builder

Rule = Callable[[Builder, Node], Tensor | list[Tensor]]

RULES: dict[str, Rule] = {}
"""Operator → rule. A rule takes the node with inputs already lowered and returns the tensors of its outputs, or raises NoKernel."""


def rule(*ops: str) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        for op in ops:
            RULES[op] = function
        return function

    return register
