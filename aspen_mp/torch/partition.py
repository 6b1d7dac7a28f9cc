"""Graphs of which a part stays with PyTorch: which nodes go together into which blocks."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import fx
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from aspen_mp.torch import sizes
from aspen_mp.torch.compiled import Compiled, Options
from aspen_mp.torch.importer import ASSERTION, FIXED, import_graph, makers_of_shared, memory_of, operator_name
from aspen_mp.torch.layers import recurrent

_FREE = FIXED | {
    ASSERTION,
    "view.default",
    "_unsafe_view.default",
    "permute.default",
    "expand.default",
    "unsqueeze.default",
    "squeeze.dims",
    "t.default",
    "transpose.int",
    "clone.default",
    "alias.default",
    "detach.default",
    "select.int",
    "slice.Tensor",
}
"""Operators that compute nothing: views and checks."""
_AFTER: Final = "_aspen_mp_after"
"""An argument that stands for an order, and that no operator has."""
RECURRENT: Final = 16
"""Operators that a recurrent layer counts for."""


def computes(node: fx.Node) -> bool:
    """Whether a node is work: no view, no check, no size, no part of a tuple."""
    if node.op != "call_function" or node.target is operator.getitem or sizes.is_number(node.meta.get("val")):
        return False
    return operator_name(node.target) not in _FREE


def size(nodes: Iterable[fx.Node]) -> int:
    """How many operators there are. A recurrent layer stands for those of all its steps."""
    return sum(RECURRENT if operator_name(node.target) in recurrent.OPERATORS else 1 for node in nodes if computes(node))


class _Supported(OperatorSupportBase):
    def __init__(self, unsupported: Collection[fx.Node]) -> None:
        self.unsupported = set(unsupported)

    def is_node_supported(self, submodules: Mapping[str, torch.nn.Module], node: fx.Node) -> bool:
        if node.op == "get_attr" or (node.op == "call_function" and operator_name(node.target) == ASSERTION):
            return False
        return node.op == "call_function" and node not in self.unsupported and not sizes.is_number(node.meta.get("val"))


def split(module: fx.GraphModule, constants: Sequence[int], unsupported: Collection[fx.Node], options: Options) -> Callable[..., Any]:
    """A function that runs blocks of at least `options.fewest` operators in the runtime, and the rest in PyTorch."""
    supported = _Supported({*unsupported, *_shared(module.graph)})
    names = [node.name for node in module.graph.nodes if node.op == "placeholder"]
    fixed = {names[place] for place in constants}
    with _in_order(module, [node for node in module.graph.nodes if node in supported.unsupported and _is_ordered(node)]):
        partitioner = CapabilityBasedPartitioner(module, supported, allows_single_node_partition=True)
        blocks = [block for block in partitioner.propose_partitions() if size(block.nodes) >= options.fewest]
        if blocks:
            partitioner.fuse_partitions(blocks)
    for node in module.graph.nodes:
        if node.op == "call_module" and node.name.startswith("fused_"):
            block = getattr(module, node.target)
            places = [place for place, argument in enumerate(node.args) if isinstance(argument, fx.Node) and argument.name in fixed]
            imported = import_graph(block.graph, places)
            if imported.unsupported:  # a size that only other blocks know
                continue
            setattr(module, node.target, _Block(Compiled(block.graph, places, options, imported), _single(block.graph)))
    module.recompile()
    return module.forward  # type: ignore[no-any-return]


def _is_ordered(node: fx.Node) -> bool:
    """Whether a node may draw random numbers or do what its result does not show: its place among others of this kind counts."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return isinstance(node.target, torch._ops.HigherOrderOperator)
    return torch.Tag.nondeterministic_seeded in node.target.tags or node.target.namespace not in ("aten", "prims")


@contextmanager
def _in_order(module: fx.GraphModule, nodes: Sequence[fx.Node]) -> Iterator[None]:
    """Within this context, each of these nodes depends on the one before it. Sorting a graph and finding blocks keep to that."""
    for before, node in itertools.pairwise(nodes):
        node.kwargs = {**node.kwargs, _AFTER: before}
    try:
        yield
    finally:
        for node in module.graph.nodes:  # others, where blocks were made
            if _AFTER in node.kwargs:
                node.kwargs = {name: value for name, value in node.kwargs.items() if name != _AFTER}


def blocks_of(run: Callable[..., Any]) -> list[Compiled]:
    """What of a function of the backend runs in the runtime."""
    if isinstance(run, Compiled):
        return [run]
    owner = getattr(run, "__self__", None)
    return [part.compiled for part in owner.modules() if isinstance(part, _Block)] if isinstance(owner, torch.nn.Module) else []


def _shared(graph: fx.Graph) -> set[fx.Node]:
    """Views that PyTorch makes of the memory that results share: made by a block, they would have memory of their own."""
    found: set[fx.Node] = set()
    for result, maker in makers_of_shared(graph).items():
        view = result
        while view is not maker and view not in found:
            found.add(view)
            sources = view.all_input_nodes  # one that gives several views has no memory of its own
            view = next((source for source in sources if memory_of(source) == memory_of(maker)), sources[0])
    return found


def _single(graph: fx.Graph) -> bool:
    """Whether a graph gives one value, and no tuple."""
    return not isinstance(next(node for node in graph.nodes if node.op == "output").args[0], tuple | list)


class _Block(torch.nn.Module):
    def __init__(self, compiled: Compiled, single: bool) -> None:
        super().__init__()
        self.compiled, self.single = compiled, single

    def forward(self, *args: Any) -> Any:
        results = self.compiled(*args)
        return results[0] if self.single else tuple(results)
