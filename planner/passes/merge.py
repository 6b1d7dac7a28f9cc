"""Products of the same activations with several weights become one product: the query, key and value projections of a transformer.

The merged weight is written from the packed panels of its parts, so nothing is stored twice. A weight with another reader stays as it is.
Parts become slices of the result, which are views.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy.typing as npt

from aspen_mp.planner.cost.tile_cost import whole_ns
from aspen_mp.planner.ir.graph import Graph, Node, Tensor
from aspen_mp.planner.job import reasons
from aspen_mp.planner.job.reasons import Reason, Tried
from aspen_mp.planner.passes.rewrite import Rewriter

PANEL = 32


def merge_products(graph: Graph) -> None:
    rewriter = Rewriter(graph)
    readers = graph.consumers()
    groups: dict[tuple[Any, ...], list[Node]] = {}
    for node in graph.nodes:
        if _may_merge(rewriter, node, readers):
            bias = node.inputs[2] if len(node.inputs) > 2 else None
            weight = node.inputs[1]
            assert weight is not None
            key = (node.op, id(node.inputs[0]), node.output.shape[:-1], weight.shape[1], repr(sorted(node.attrs.items())))
            groups.setdefault((*key, bias is None, weight.weight_key is None), []).append(node)
    for nodes in groups.values():
        if len(nodes) > 1:
            _merge(rewriter, nodes)
    rewriter.finish()


def _may_merge(rewriter: Rewriter, node: Node, readers: dict[Tensor, list[tuple[Node, int]]]) -> bool:
    packed = node.op == "QNBITGEMM" or (node.op == "GEMM" and node.attrs["packed_b"])
    if not packed or len(node.inputs) > 3 or node.output.shape[-1] % PANEL:
        return False
    weight, bias = node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else None
    assert weight is not None
    if not weight.is_const or rewriter.uses[weight] != 1 or 0 in node.output.shape or node.inputs[0] is None:
        return False
    if bias is not None:
        wide = (*(1 for _ in node.output.shape[:-1]), node.output.shape[-1])
        if not bias.is_const or bias.shape != wide or rewriter.uses[bias] != 1 or (bias.weight_key is None) != (weight.weight_key is None):
            return False
    return not _placed(rewriter, node.output, readers)


def _placed(rewriter: Rewriter, tensor: Tensor, readers: dict[Tensor, list[tuple[Node, int]]]) -> bool:
    """Whether the tensor, perhaps reshaped or transposed, is an output of the graph or part of a concat: then its product writes it in
    place. A slice of it is read from where it is, whoever wrote it."""
    if tensor in rewriter.kept:
        return True
    for node, _ in readers.get(tensor, ()):
        if node.op == "concat" or (node.op in ("view.reshape", "view.transpose") and _placed(rewriter, node.output, readers)):
            return True
    return False


def _merge(rewriter: Rewriter, nodes: Sequence[Node]) -> None:
    first = nodes[0]
    weights = [t for n in nodes if (t := n.inputs[1]) is not None]
    biases = [t for n in nodes if len(n.inputs) > 2 and (t := n.inputs[2]) is not None]
    inputs: list[Tensor | None] = [first.inputs[0], _joined(weights, 0)]
    if biases:
        inputs.append(_joined(biases, len(biases[0].shape) - 1))
    widths = [n.output.shape[-1] for n in nodes]
    reasons.tell(partial(_reason, nodes))
    merged = rewriter.insert(first, first.op, inputs, (*first.output.shape[:-1], sum(widths)), dict(first.attrs))
    at = 0
    for node, width in zip(nodes, widths, strict=True):
        rank = len(node.output.shape)
        starts = (*(0 for _ in range(rank - 1)), at)
        rewriter.replace(node, "view.slice", [merged], {"starts": starts, "steps": (1,) * rank})
        at += width


def _reason(nodes: Sequence[Node]) -> Reason:
    tried = (Tried(f"{len(nodes)} products", "each would read the same rows", sum(map(whole_ns, nodes)) * 1e-6),)
    names = tuple([node.name for node in nodes])
    return Reason("fusion", "one product", "they read the same rows", None, "one core", tried, names, names[0])


def _joined(parts: Sequence[Tensor], axis: int) -> Tensor:
    """Constants side by side, each written where it belongs."""
    shape = list(parts[0].shape)
    shape[axis] = sum(p.shape[axis] for p in parts)
    keys = [p.weight_key for p in parts]
    key = None if None in keys else f"joined{axis}:{keys}"
    name = "+".join(p.name for p in parts)
    return Tensor(name, tuple(shape), parts[0].dtype, weight_key=key, pack=partial(_write, tuple(parts), axis))


def _write(parts: Sequence[Tensor], axis: int, out: npt.NDArray[Any]) -> None:
    at = 0
    for part in parts:
        place = (*(slice(None) for _ in range(axis)), slice(at, at + part.shape[axis]))
        target = out[place]
        if target.flags.c_contiguous:
            part.write(target)
        else:
            target[...] = part.value()
        at += part.shape[axis]
