"""`explain`: which operators of a module run in a runtime, which stay with PyTorch, and why."""

from __future__ import annotations

import copy
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func

from aspen_mp.torch import backend, decompositions, optimized, partition, refusals, work
from aspen_mp.torch.compiled import Compiled, Options
from aspen_mp.torch.importer import import_graph, operator_name, value_info
from aspen_mp.torch.work import Meter

_BREAKS = ("graph_break", "unimplemented")
"""What Dynamo counts its reasons under; the second since PyTorch 2.10."""
_SMALL = "PyTorch is done sooner: the call is of little work"
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
    """What `explain` found.

    Attributes:
        rows: Every operator.
        graphs: The number of graphs.
        breaks: Why Dynamo has cut the module into several graphs.
        training: Whether the module is in training mode. The rows then say what runs where in evaluation mode.
    """

    rows: list[Row] = field(default_factory=list)
    graphs: int = 0
    breaks: list[str] = field(default_factory=list)
    training: bool = False

    def __str__(self) -> str:
        ours = sum(row.where == "aspen_mp" for row in self.rows)
        lines = [f"{len(self.rows)} operators in {self.graphs} graphs: {ours} in aspen_mp, {len(self.rows) - ours} in PyTorch"]
        if self.training:
            lines.append("the module is in training mode: PyTorch runs it until module.eval() is called. In evaluation mode:")
        lines += [f"graph break: {reason}" for reason in self.breaks]
        head = ("graph", "node", "operator", "source", "where", "why not")
        cells = [head, *((str(r.graph), r.node, r.operator, r.source, r.where, r.why) for r in self.rows)]
        widths = [max(len(row[k]) for row in cells) for k in range(len(head))]
        lines += ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
        return "\n".join(lines)


def explain(module: Any, inputs: Sequence[Any], keywords: Mapping[str, Any]) -> Explanation:
    """See `aspen_mp.explain`."""
    is_module = isinstance(module, torch.nn.Module)
    if is_module:
        optimized.check(module)
    found = Explanation(training=is_module and module.training)
    forward = module.__dict__.get("forward") if is_module else None
    options = forward.options if isinstance(forward, optimized.Forward) else Options()
    meter, before = Meter(), _reasons()
    with torch.no_grad(), _evaluated(module if found.training else None):
        run = optimized.compiled(module, backend=_looker(found, options, meter))
        _, small = meter.is_small(lambda: run(*inputs, **keywords))
    if small and is_module and options.by_work and optimized.sizes_of([*inputs, dict(keywords)]) is not None:
        found.rows = [replace(row, where="PyTorch", why=row.why or _SMALL) for row in found.rows]
    found.breaks = [str(reason).partition("\n")[0] for reason in _reasons() - before]
    return found


@contextmanager
def _evaluated(module: torch.nn.Module | None) -> Iterator[None]:
    """Put a module into evaluation mode for a while. Its own `eval` and `train` may do more than that, and are not called."""
    modes = [(part, part.training) for part in module.modules()] if module is not None else []
    for part, _ in modes:
        part.training = False
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode


def _reasons() -> Counter[Any]:
    """How often Dynamo has given each reason for a graph break."""
    return sum((Counter(torch._dynamo.utils.counters[kind]) for kind in _BREAKS), Counter())


def _looker(found: Explanation, options: Options, meter: Meter) -> Callable[..., Any]:
    """A backend that looks at graphs and leaves them to PyTorch."""

    def look(module: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        def compile_graph(graph: fx.GraphModule, _: Sequence[Any]) -> Any:
            takes = work.of(graph.graph, module.graph)
            _note(found, graph, options, _SMALL if options.by_work and work.is_small(takes) else "")
            return make_boxed_func(meter.watched(graph.forward, graph.graph, takes))

        return aot_autograd(fw_compiler=compile_graph, decompositions=decompositions.table())(module, example_inputs)

    return look


def _note(found: Explanation, module: fx.GraphModule, options: Options, small: str) -> None:
    number, found.graphs = found.graphs, found.graphs + 1
    reasons = _Reasons(module, options, small)
    for node in module.graph.nodes:
        if node.op != "call_function" or node.target is operator.getitem or not _gives_tensors(node):
            continue
        why = reasons.of(node)
        found.rows.append(Row(number, node.name, operator_name(node.target), source_of(node), "PyTorch" if why else "aspen_mp", why))


class _Reasons:
    """Why nodes of a graph stay with PyTorch, as the backend decides it."""

    def __init__(self, module: fx.GraphModule, options: Options, small: str) -> None:
        constants = backend.constant_places()
        self.whole = small
        self.unsupported: Mapping[fx.Node, str] = {}
        self.inside: set[str] = set()
        self.alone = f"its block has fewer than {options.fewest} operators, or needs a size that only PyTorch knows"
        try:
            self.unsupported = import_graph(module.graph, constants).unsupported
            copied = fx.GraphModule(module, copy.deepcopy(module.graph))  # cutting a graph changes it
            blocks = partition.blocks_of(backend.in_runtime(copied, constants, options))
            self.inside = {node.name for block in blocks for node in block.graph.nodes}
            for block in blocks:
                _check(block)
        except Exception as error:  # the backend leaves such a graph to PyTorch, and so do calls
            self.whole = refusals.said(error)

    def of(self, node: fx.Node) -> str:
        """Empty where a runtime runs the node."""
        return self.unsupported.get(node) or self.whole or ("" if node.name in self.inside else self.alone)


def _check(block: Compiled) -> None:
    """Raise what the planner would raise at the first call. Constants are declared like inputs, without their data."""
    from aspen_mp.planner.frontends import onnx

    imported = block.imported
    proto = copy.deepcopy(imported.proto)
    placeholders = [node for node in block.graph.nodes if node.op == "placeholder"]
    for constant in imported.constants:
        tensor = placeholders[constant.place].meta["val"] if constant.tensor is None else constant.tensor
        proto.graph.input.append(value_info(constant.name, tensor.dtype, tensor.shape))
    onnx.load(proto.SerializeToString())


def _gives_tensors(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor | tuple | list) and (partition.computes(node) or isinstance(value, torch.Tensor))


def source_of(node: fx.Node) -> str:
    """ "file:line" of the code that a node comes from."""
    places = _LINE.findall(node.meta.get("stack_trace") or "")
    return f"{places[-1][0]}:{places[-1][1]}" if places else ""
