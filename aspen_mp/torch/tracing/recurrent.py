"""LSTM, GRU and RNN of `torch.nn`, kept whole while a module is traced.

Dynamo breaks graphs at these modules unless it is told not to. PyTorch then takes them apart into the operators of each step, and the graph
holds for one length alone. So each becomes one operator of the namespace `aspen_mp`: tracing sees its shapes, a rule expresses it in ONNX,
and PyTorch computes it as ever where it stays there. Where gradients are wanted, it is PyTorch's function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

_library = torch.library.Library("aspen_mp", "DEF")
_OPTIONS: Final = "Tensor[] params, bool has_biases, int num_layers, float dropout, bool train, bool bidirectional, bool batch_first"
_BY_FUNCTION: dict[Any, Any] = {}
OPERATORS: Final[set[str]] = set()
"""The operators' names, as the importer has them."""


def _shapes(x: Any, states: Sequence[Any], bidirectional: bool, batch_first: bool) -> tuple[Any, ...]:
    """What the operator gives, without values: the states of the last layer at all steps, and those of all layers behind the last step."""
    length, batch = (x.shape[1], x.shape[0]) if batch_first else (x.shape[0], x.shape[1])
    y = x.new_empty((length, batch, states[0].shape[2] * (2 if bidirectional else 1)))
    return (y.transpose(0, 1) if batch_first else y, *(state.new_empty(state.shape) for state in states))


def _define(name: str, states: int) -> None:
    """An operator with the arguments of PyTorch's function of this name."""
    function = getattr(torch, name)
    given = "Tensor hx" if states == 1 else "Tensor[] hx"
    results = ", ".join(["Tensor"] * (1 + states))
    _library.define(f"{name}(Tensor input, {given}, {_OPTIONS}) -> ({results})")

    def compute(*args: Any) -> Any:
        return function(*args)

    def fake(x: Any, hx: Any, *args: Any) -> Any:
        return _shapes(x, [hx] if states == 1 else hx, *args[-2:])

    def differentiable(*args: Any) -> Any:
        if torch.is_grad_enabled():
            return function(*args)
        with torch._C._AutoDispatchBelowAutograd():
            return operator(*args)

    _library.impl(name, compute, "CompositeExplicitAutograd")
    _library.impl(name, differentiable, "Autograd")
    operator = getattr(torch.ops.aspen_mp, name).default
    torch.library.register_fake(f"aspen_mp::{name}", fake, lib=_library)
    OPERATORS.add(f"aspen_mp.{name}.default")
    _BY_FUNCTION[function] = operator


for _name, _states in (("lstm", 2), ("gru", 1), ("rnn_tanh", 1), ("rnn_relu", 1)):
    _define(_name, _states)


class _Whole(TorchFunctionMode):
    """Puts those operators in the place of PyTorch's functions. Calls with packed sequences, whose fourth argument is a list, stay as they
    are, and so do those that draw random numbers."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _BY_FUNCTION and isinstance(args[3], bool) and torch.compiler.is_compiling():
            dropout, train = args[5:7]
            if not (dropout and train):
                return _BY_FUNCTION[func](*args)
        return func(*args, **(kwargs or {}))


whole = _Whole()


def inside(module: nn.Module) -> bool:
    """Whether a module has such parts."""
    return any(isinstance(part, nn.RNNBase) for part in module.modules())


def kept_whole(module: nn.Module, function: Callable[..., Any]) -> Callable[..., Any]:
    """What Dynamo or `torch.export` traces in place of a function of this module."""
    if not inside(module):
        return function

    def traced(*args: Any, **keywords: Any) -> Any:
        with whole:
            return function(*args, **keywords)

    return traced


def allowed(module: nn.Module, compiled: Callable[..., Any]) -> Callable[..., Any]:
    """A compiled function of this module at whose calls Dynamo traces such parts."""
    return torch._dynamo.config.patch(allow_rnn=True)(compiled) if inside(module) else compiled
