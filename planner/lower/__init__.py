"""Lowering: ONNX-level nodes → kernel-level nodes and views. One rule an operator (`registry`), found in the files by family. A node
becomes OPAQUE where it has no rule, or where no kernel serves its dtype, rank or option."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from aspen_mp.planner.cost import accuracy
from aspen_mp.planner.frontends.onnx import OnnxModel
from aspen_mp.planner.ir.graph import VIEW_OPS, Graph, Node, Tensor
from aspen_mp.planner.job import progress, reasons
from aspen_mp.planner.job.reasons import Reason, Tried
from aspen_mp.planner.lower import (
    attention,
    elementwise,
    movement,
    products,
    quantized,
    recurrent,
    reductions,
    rotary,
    sampling,
    tensor_products,
    transposed,
)
from aspen_mp.planner.lower.builder import MAX_RANK, Builder, Choices, NoKernel
from aspen_mp.planner.lower.classical import distances, ensembles, linear, lookups
from aspen_mp.planner.lower.opaque import lower_opaque
from aspen_mp.planner.lower.registry import RULES
from aspen_mp.planner.ops import verify
from aspen_mp.shm.errors import ModelInvalidError

_FAMILIES = (
    attention,
    distances,
    elementwise,
    ensembles,
    linear,
    lookups,
    movement,
    products,
    quantized,
    recurrent,
    reductions,
    rotary,
    sampling,
    tensor_products,
    transposed,
)  # importing them registers their rules


def has_rule(domain: str, op: str) -> bool:
    """Whether an operator is lowered by a rule of its own."""
    return domain == "" and op in RULES


def lower(
    graph: Graph,
    model: OnnxModel,
    report: Callable[[Node, str], None] | None = None,
    *,
    winograd: bool = True,
    bf16: bool = False,
    budget: accuracy.Budget = accuracy.UNLIMITED,
    choices: Choices | None = None,
    any_size: bool = False,
    by_rows: bool = False,
) -> Graph:
    """The kernel-level graph. `report` is told of every node that becomes opaque, and why. `winograd`: convolutions may use that
    algorithm, where the `budget` of error allows it (`planner.cost.accuracy`). `bf16`: products of bf16 compete with it
    (`passes.precision.bf16`). `choices`, `any_size`, `by_rows`: as of `Builder`."""
    builder = Builder(winograd, bf16, budget, model.layers, choices, any_size, by_rows)
    table: dict[Tensor, Tensor] = {}
    fitting = verify.Fitting()
    for node in progress.over(graph.nodes, "lowering"):
        inputs = [None if t is None else table.get(t, t) for t in node.inputs]
        if node.op == "OPAQUE":  # the stage depends on data (`aspen_mp.planner.stages`)
            results = [Tensor(t.name, t.shape, t.dtype) for t in node.outputs]
            builder.nodes.append(Node(node.op, node.name, inputs, results, node.attrs, node.onnx_op))
            for old, new in zip(node.outputs, results, strict=True):
                table[old], new.producer = new, builder.nodes[-1]
            continue
        builder.start(node)
        mark = len(builder.nodes)
        try:
            results = _apply(builder, node, inputs)
            made = builder.nodes[mark:]
            for one in made:
                fitting.check(one)
        except NoKernel as reason:
            del builder.nodes[mark:]
            if report is not None:
                report(node, str(reason))
            reasons.tell(partial(_opaque, str(reason)))
            opaque = lower_opaque(node, inputs, model.proto.functions, model.store)
            builder.nodes.append(opaque)
            made = [opaque]
            given = iter(opaque.outputs)
            results = [next(given) if t.name else t for t in node.outputs]
        except (verify.GraphError, ArithmeticError, LookupError, TypeError, ValueError) as error:
            # ONNX's inference compares few of the shapes that have to fit each other; here the kernels' own regions do.
            shapes = ", ".join(f"{t.name!r} {list(t.shape)}" for t in inputs if t is not None)
            raise ModelInvalidError(f"node {node.name!r} ({node.onnx_op}): its inputs {shapes} do not fit it: {error}") from error
        if all(one.op in VIEW_OPS for one in made):
            reasons.tell(lambda: Reason("fusion", "no op", "a view of its input, or a constant", tried=(Tried("a copy", "not needed"),)))
        for old, new in zip(node.outputs, results, strict=False):
            table[old] = new
            if new.producer is not None and new.producer in made:
                new.name = old.name
    return Graph(graph.name, graph.inputs, [table.get(t, t) for t in graph.outputs], builder.nodes, graph.rounding)


def _opaque(rule: str) -> Reason:
    return Reason("algorithm", "onnx.reference, or numpy", rule, tried=(Tried("a kernel", rule),))


def _apply(builder: Builder, node: Node, inputs: list[Tensor | None]) -> list[Tensor]:
    rule = RULES.get(node.op)
    if rule is None:
        raise NoKernel("no kernel computes this operator")
    for t in (*inputs, *node.outputs):
        if t is not None and len(t.shape) > MAX_RANK:
            raise NoKernel(f"a tensor has more than {MAX_RANK} axes")
    stand_in = Node(node.op, node.name, inputs, node.outputs, node.attrs, node.onnx_op, node.source)
    result = rule(builder, stand_in)
    results = result if isinstance(result, list) else [result]
    for got, want in zip(results, node.outputs, strict=False):
        if want.name and (got.shape != want.shape or got.dtype != want.dtype):
            raise NoKernel(f"kernels give {list(got.shape)} {got.dtype} and the model wants {list(want.shape)} {want.dtype}")
    return results
