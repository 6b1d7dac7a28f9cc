"""`explain`: which operators of a module run in a runtime, which stay with PyTorch, and why."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func

from aspen_mp.torch import backend, decompositions, partition
from aspen_mp.torch.importer import import_graph, operator_name
from aspen_mp.torch.optimized import original

_BREAKS = ("graph_break", "unimplemented")
"""What Dynamo counts its reasons under; the second since PyTorch 2.10."""
_LINE = re.compile(r'File "([^"]+)", line (\d+)')


@dataclass(frozen=True, slots=True)
class Row:
    """One ATen operator. `graph`: number of the graph; `source`: "file:line" of the module's code; `why`: empty where a runtime runs it."""

    graph: int
    node: str
    operator: str
    source: str
    where: str
    why: str = ""


@dataclass(slots=True)
class Explanation:
    """What `explain` found. `rows`: every operator; `breaks`: why Dynamo has cut the module into several graphs."""

    rows: list[Row] = field(default_factory=list)
    graphs: int = 0
    breaks: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        ours = sum(row.where == "aspen_mp" for row in self.rows)
        lines = [f"{len(self.rows)} operators in {self.graphs} graphs: {ours} in aspen_mp, {len(self.rows) - ours} in PyTorch"]
        lines += [f"graph break: {reason}" for reason in self.breaks]
        head = ("graph", "node", "operator", "source", "where", "why not")
        cells = [head, *((str(r.graph), r.node, r.operator, r.source, r.where, r.why) for r in self.rows)]
        widths = [max(len(row[k]) for row in cells) for k in range(len(head))]
        lines += ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
        return "\n".join(lines)


def explain(module: Any, inputs: Sequence[Any], keywords: Mapping[str, Any]) -> Explanation:
    """See `aspen_mp.explain`."""
    found = Explanation()
    function = original(module) if isinstance(module, torch.nn.Module) else module
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    for kind in _BREAKS:
        counters[kind].clear()
    with torch.no_grad():
        torch.compile(function, backend=_looker(found))(*inputs, **keywords)
    found.breaks = [str(reason).splitlines()[0] for kind in _BREAKS for reason in counters[kind]]
    torch._dynamo.reset()
    return found


def _looker(found: Explanation) -> Callable[..., Any]:
    """A backend that looks at graphs and leaves them to PyTorch."""

    def look(module: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        def compile_graph(graph: fx.GraphModule, _: Sequence[Any]) -> Any:
            _note(found, graph)
            return make_boxed_func(graph.forward)

        return aot_autograd(fw_compiler=compile_graph, decompositions=decompositions.table())(module, example_inputs)

    return look


def _note(found: Explanation, module: fx.GraphModule) -> None:
    imported = import_graph(module.graph, backend.constant_places())
    number, found.graphs = found.graphs, found.graphs + 1
    for node in module.graph.nodes:
        if node.op != "call_function" or node.target is operator.getitem or not _gives_tensors(node):
            continue
        why = imported.unsupported.get(node, "")
        found.rows.append(Row(number, node.name, operator_name(node.target), source_of(node), "PyTorch" if why else "aspen_mp", why))


def _gives_tensors(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor | tuple | list) and (partition.computes(node) or isinstance(value, torch.Tensor))


def source_of(node: fx.Node) -> str:
    """ "file:line" of the code that a node comes from."""
    places = _LINE.findall(node.meta.get("stack_trace") or "")
    return f"{places[-1][0]}:{places[-1][1]}" if places else ""
