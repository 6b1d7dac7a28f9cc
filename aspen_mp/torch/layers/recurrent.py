"""LSTM, GRU and RNN of `torch.nn`, kept whole while a module is traced.

Dynamo breaks graphs at these modules unless it is told not to. PyTorch then takes them apart into the operators of each step, and the graph
holds for one length alone. So each becomes one operator of the namespace `aspen_mp`: tracing sees its shapes, a rule expresses it in ONNX,
and PyTorch computes it as ever where it stays there. Its gradients are those of PyTorch's function, which runs again for them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

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


def _gradients(function: Callable[..., Any], inputs: Sequence[Any], gradients: Sequence[Any]) -> tuple[Any, ...]:
    """For each input of a call, from those of its results."""
    wanted = [leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    with torch.enable_grad():
        results = function(*inputs)
    known = [gradient is not None for gradient in gradients]
    asked, given = itertools.compress(results, known), itertools.compress(gradients, known)
    found = torch.autograd.grad(list(asked), wanted, list(given), allow_unused=True, create_graph=torch.is_grad_enabled())
    by_id = {id(leaf): gradient for leaf, gradient in zip(wanted, found, strict=True)}
    return tuple([[by_id.get(id(leaf)) for leaf in item] if isinstance(item, list | tuple) else by_id.get(id(item)) for item in inputs])


def _define(name: str, states: int) -> None:
    """An operator with the arguments of PyTorch's function of this name."""
    function = getattr(torch, name)
    given = "Tensor hx" if states == 1 else "Tensor[] hx"
    results = ", ".join(["Tensor"] * (1 + states))
    _library.define(f"{name}(Tensor input, {given}, {_OPTIONS}) -> ({results})")

    def compute(*args: Any) -> Any:
        return function(*args)

    def save(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.inputs = inputs

    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        return _gradients(function, ctx.inputs, gradients)

    def fake(x: Any, hx: Any, *args: Any) -> Any:
        return _shapes(x, [hx] if states == 1 else hx, *args[-2:])

    _library.impl(name, compute, "CompositeExplicitAutograd")
    torch.library.register_fake(f"aspen_mp::{name}", fake, lib=_library)
    torch.library.register_autograd(f"aspen_mp::{name}", backward, setup_context=save, lib=_library)
    OPERATORS.add(f"aspen_mp.{name}.default")
    _BY_FUNCTION[function] = getattr(torch.ops.aspen_mp, name).default


for _name, _states in (("lstm", 2), ("gru", 1), ("rnn_tanh", 1), ("rnn_relu", 1)):
    _define(_name, _states)


class _Whole(TorchFunctionMode):
    """Puts those operators in the place of PyTorch's functions. Calls with packed sequences, whose fourth argument is a list, stay as they
    are. Those with dropout are not traced: PyTorch's decompositions leave it out."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _BY_FUNCTION and isinstance(args[3], bool) and torch.compiler.is_compiling():
            if not (args[5] and args[6]):
                return _BY_FUNCTION[func](*args)
            torch._dynamo.graph_break()
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
