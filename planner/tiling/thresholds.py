"""Thresholds: places in a network where small changes of activations end, for plans of streams.

A change of a few pixels reaches more of each layer than of the one before, and far from its middle it is small. A threshold compares an
activation with what the layers behind it have seen, block by block. Blocks that moved by no more than a share of the activation's range
keep what was seen. So differences do not add up from frame to frame. DeltaCNN (Parger et al., CVPR 2022) does so at each convolution.

A threshold is two nodes, MOVED and REFRESH (`workers/kernels/movement/moved.c`). Behind a row of thresholds, another REACH finds which
tiles run up to the next row. A row stands where all that the layers behind it read can have a threshold.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from aspen_mp.planner.cost import op_cost
from aspen_mp.planner.ir.graph import VIEW_OPS, Graph, Node, Tensor
from aspen_mp.planner.layout.storage import Ref, Storage
from aspen_mp.planner.ops.spec import OPAQUE
from aspen_mp.planner.ops.streams.reach import MOST_MARKS
from aspen_mp.planner.ops.streams.thresholds import MOVED, REFRESH
from aspen_mp.planner.ops.table import SPECS

IMAGE_AXES = 4
BLOCKS = 80
"""Blocks along the longer side of an image, about, …"""
LARGEST_SIDE = 8
"""… of at most as many rows and columns."""
WORTH = 200.0
"""Operations between two rows of thresholds for each element that the second one compares, at least."""


def with_thresholds(graph: Graph) -> Graph:
    """The same kernel-level graph with rows of thresholds."""
    nodes, seen = list[Node](), dict[Tensor, Tensor]()
    rows = dict(_rows(graph))
    for k, node in enumerate(graph.nodes):
        inputs = [None if x is None else seen.get(x, x) for x in node.inputs]
        nodes.append(replace(node, inputs=inputs))
        pairs = [_threshold(tensor) for tensor in rows.get(k, ())]
        nodes += [moved for moved, _ in pairs]
        nodes += [refresh for _, refresh in pairs]
        seen.update(zip(rows.get(k, ()), (refresh.output for _, refresh in pairs), strict=True))
    return replace(graph, nodes=nodes)


def connect(storage: Storage, changes: Tensor, refs: dict[Tensor, Ref]) -> None:
    """Give thresholds what is not a value of the graph: what the layers behind them have seen, and the line behind the changed boxes.
    `refs`: of the plan, to which places of the former are added."""
    refreshed = {node.inputs[1]: node for node in storage.steps if node.op == REFRESH}
    for node in storage.steps:
        if node.op == MOVED:
            after = refreshed[node.output].output
            before = Tensor(after.name, after.shape, after.dtype)
            refs[before] = refs[after]
            node.inputs = [node.inputs[0], before, changes]
        elif node.op == REFRESH:
            node.inputs = [*node.inputs[:2], changes]


def _threshold(tensor: Tensor) -> tuple[Node, Node]:
    images, _, height, width = tensor.shape
    side = min(max(-(-max(height, width) // BLOCKS), 1), LARGEST_SIDE)
    blocks = (images, -(-height // side), -(-width // side))
    marks = Tensor(f"{tensor.name}:moved", blocks, np.dtype(np.int32))
    extremes = [Tensor(f"{tensor.name}:{what}", (*blocks[:2], 1), np.dtype(np.float32)) for what in ("least", "greatest")]
    seen = Tensor(f"{tensor.name}:seen", tensor.shape, tensor.dtype)
    moved = Node(MOVED, f"{tensor.name}:moved", [tensor], [marks, *extremes], {"side": side}, "Threshold")
    refresh = Node(REFRESH, f"{tensor.name}:seen", [tensor, marks], [seen], {"side": side}, "Threshold")
    for node in (moved, refresh):
        for one in node.outputs:
            one.producer = node
    return moved, refresh


def _rows(graph: Graph) -> Iterator[tuple[int, list[Tensor]]]:
    """(node, tensors): behind that node, all computed tensors that are read later, and have not had a threshold."""
    last: dict[Tensor, int] = {}
    for k, node in enumerate(graph.nodes):
        last.update((x, k) for x in node.inputs if x is not None and not x.is_const)
    work, live, passed = 0.0, dict[Tensor, int](), list[int]()
    for k, node in enumerate(graph.nodes):
        live = {tensor: end for tensor, end in live.items() if end > k}
        passed = [end for end in passed if end > k]
        live.update((tensor, last[tensor]) for tensor in node.outputs if last.get(tensor, -1) > k)
        work += 0.0 if node.op in VIEW_OPS or node.op not in SPECS or node.op == OPAQUE else op_cost.flops(node)
        worth = work >= WORTH * sum(tensor.size for tensor in live)
        if live and worth and len(live) + len(passed) <= MOST_MARKS and all(map(_fits, live)):
            yield k, list(live)
            work, live, passed = 0.0, {}, [*passed, *live.values()]


def _fits(tensor: Tensor) -> bool:
    return tensor.dtype == np.float32 and len(tensor.shape) == IMAGE_AXES and 0 not in tensor.shape


__all__ = ["connect", "with_thresholds"]
