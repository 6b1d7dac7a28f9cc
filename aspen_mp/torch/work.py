"""Calls of so little work that PyTorch is done before a runtime has the request: how long a graph takes PyTorch, estimated."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import fx

from aspen_mp.torch import partition, sizes
from aspen_mp.torch.importer import operator_name
from aspen_mp.torch.layers import recurrent
from aspen_mp.torch.registry import Unsupported

SMALL: Final = 45_000_000
"""Picoseconds. Where PyTorch takes longer, a runtime is faster. Policies and perceptrons, a few operators each, lie below."""
_OPERATOR: Final = 3_000_000
_FLOP: Final = 25
_ELEMENT: Final = 300
"""Picoseconds that eager PyTorch takes on one core of 2024: for an operator, and for each of these that it computes."""
_LSTM: Final = 19
_GRU_STEP: Final = 3
"""Operators of PyTorch that a layer of LSTM takes as long as, and a step of GRU."""
_SUMMED: Final = {"mm": 0, "bmm": 0, "mv": 0, "dot": 0, "addmm": 1, "addmv": 1, "baddbmm": 1}
"""Of each product, the argument whose last axis is summed over."""


def of(graph: fx.Graph, captured: fx.Graph) -> Any:
    """The picoseconds that a call of a graph takes PyTorch: an int, or a SymInt where sizes vary.

    Args:
        graph: Of ATen operators.
        captured: The same as Dynamo has captured it. What is one operator there may be many in `graph`.
    """
    working = [node for node in graph.nodes if partition.computes(node) and isinstance(node.meta.get("val"), torch.Tensor)]
    called = sum(node.op in ("call_function", "call_method") for node in captured.nodes)
    total: Any = _OPERATOR * min(len(working), called)
    total += sum(_recurrent(node) for node in graph.nodes if operator_name(node.target) in recurrent.OPERATORS)
    for node in working:
        total += node.meta["val"].numel() * (_ELEMENT + _FLOP * _flops(node))
    return total


def is_small(work: Any) -> bool:
    """Whether work is little. Where it varies with sizes, this is not known."""
    known = sizes.plain(work)
    return isinstance(known, int) and known <= SMALL


def _flops(node: fx.Node) -> Any:
    """Floating-point operations for each element of a product or a convolution; 0 for other operators."""
    name = operator_name(node.target).partition(".")[0]
    if name in _SUMMED:
        return 2 * _shape(node, _SUMMED[name])[-1]
    if name == "convolution":
        return 2 * math.prod(_shape(node, 1)[1:])
    if "attention" in name:
        return 4 * _shape(node, 1)[-2]
    return 0


def _recurrent(node: fx.Node) -> Any:
    """The picoseconds of a recurrent layer. LSTM has one operator in PyTorch; of the others, each step has some."""
    name = operator_name(node.target).split(".")[1]
    y = node.args[0].meta["val"]
    layers = node.args[4] * (2 if node.args[7] else 1)
    steps = y.shape[1 if node.args[8] else 0]
    operators = layers * (_LSTM if name == "lstm" else steps * (_GRU_STEP if name == "gru" else 1))
    weights = [weight.meta["val"] for weight in node.args[2] if weight.meta["val"].dim() == 2]
    rows = y.shape[0] * y.shape[1]
    return _OPERATOR * operators + 2 * _FLOP * rows * sum(weight.numel() for weight in weights)


def _shape(node: fx.Node, place: int) -> Any:
    """The shape of an argument."""
    argument: Any = node.args[place]
    value = argument.meta["val"] if "val" in argument.meta else getattr(argument.graph.owning_module, argument.target)
    return value.shape


class Meter(threading.local):
    """Adds up the work of the graphs that a call of this thread runs."""

    def __init__(self) -> None:
        self.total: int | None = None
        """None: nothing is added up."""

    def watched(self, run: Callable[..., Any], graph: fx.Graph, work: Any) -> Callable[..., Any]:
        """Return a function that calls `run`, and adds the work of each call."""
        try:
            of_call = sizes.function(sizes.expression(work), sizes.finders(graph))
        except Unsupported:  # it depends on data, and may be any

            def of_call(args: Any) -> int:
                return SMALL + 1

        def call(*args: Any) -> Any:
            if self.total is not None:
                self.total += of_call(args)
            return run(*args)

        return call

    def is_small(self, call: Callable[[], Any]) -> tuple[Any, bool]:
        """The result of a call, and whether its work is small. Calls that run no graph are not known to be."""
        self.total = 0
        try:
            return call(), 0 < self.total <= SMALL
        finally:
            self.total = None
