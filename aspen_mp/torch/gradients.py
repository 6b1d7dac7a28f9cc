"""Gradients of results that a runtime has computed: PyTorch computes them, when they are asked for, by running the graph again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import fx
from torch._functorch._aot_autograd.schemas import OutputType
from torch.utils import _pytree as pytree

from aspen_mp.torch.importer import makers_of_shared


def can_recompute(graph: fx.Graph) -> bool:
    """Whether a graph of ATen operators may run a second time, and autograd may be told that one function has made its results.

    It may not where it changes arguments or draws random numbers. Results that share memory with others or with arguments can be written to
    in eager PyTorch, which autograd forbids for those of a function.
    """
    metadata = torch._guards.TracingContext.get().fw_metadata
    if any(info.mutates_data or info.mutates_metadata for info in metadata.input_info):
        return False
    if any(info.output_type in (OutputType.is_input, OutputType.alias_of_input) for info in metadata.output_info):
        return False
    if any(map(_draws, graph.nodes)):
        return False
    return not makers_of_shared(graph)


def _draws(node: fx.Node) -> bool:
    """Whether a node draws random numbers."""
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    for place, argument in enumerate(node.target._schema.arguments):
        if argument.name == "dropout_p":
            given = node.args[place] if place < len(node.args) else node.kwargs.get(argument.name, argument.default_value)
            return bool(given != 0)
    return True


class Recomputed:
    """A compiled graph whose results have gradients.

    Args:
        run: The compiled graph, which computes without gradients.
        module: The same graph for PyTorch.
    """

    def __init__(self, run: Callable[..., Any], module: fx.GraphModule) -> None:
        self.run = run
        results = pytree.tree_leaves(next(node for node in module.graph.nodes if node.op == "output").args[0])
        self.without = [place for place, result in enumerate(results) if not _needs_gradient(result)]
        """Places of results that do not depend on what needs gradients."""
        self._module = module

    def __call__(self, *args: Any) -> Sequence[Any]:
        return _Function.apply(self, *args)  # type: ignore[no-any-return]

    @cached_property
    def eager(self) -> Callable[..., Any]:
        fx.GraphModule.recompile(self._module)  # Dynamo puts that off to the first call
        return self._module.forward  # type: ignore[no-any-return]


def _needs_gradient(result: Any) -> bool:
    fake = result.meta.get("example_value") if isinstance(result, fx.Node) else None
    return isinstance(fake, torch.Tensor) and fake.requires_grad


def _whole(result: Any) -> Any:
    """A result over the same memory that is no view: autograd forbids writes to views that a function has made."""
    if not isinstance(result, torch.Tensor) or not result._is_view():
        return result
    return result.new_empty(0).set_(result.untyped_storage(), result.storage_offset(), result.size(), result.stride())


class _Function(torch.autograd.Function):
    """What autograd knows of a call."""

    @staticmethod
    def forward(ctx: Any, graph: Recomputed, *args: Any) -> tuple[Any, ...]:
        results = tuple(map(_whole, graph.run(*args)))
        ctx.graph = graph
        ctx.others = [None if isinstance(value, torch.Tensor) else value for value in args]
        ctx.save_for_backward(*[value if isinstance(value, torch.Tensor) else None for value in args])
        ctx.mark_non_differentiable(*[results[place] for place in graph.without if isinstance(results[place], torch.Tensor)])
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        args = [other if tensor is None else tensor for tensor, other in zip(ctx.saved_tensors, ctx.others, strict=True)]
        wanted = [place for place, needed in enumerate(ctx.needs_input_grad[1:]) if needed]
        with torch.enable_grad():
            results = ctx.graph.eager(*args)
        asked = [pair for pair in zip(results, gradients, strict=True) if isinstance(pair[0], torch.Tensor) and pair[0].requires_grad]
        found = torch.autograd.grad(
            [result for result, _ in asked],
            [args[place] for place in wanted],
            [gradient for _, gradient in asked],
            allow_unused=True,
            create_graph=torch.is_grad_enabled(),
        )
        by_place = dict(zip(wanted, found, strict=True))
        return (None, *[by_place.get(place) for place in range(len(args))])
