"""Layers that run for one slice of the batch after the other: depth first, BrainSlug's idea, for whole operators.

A layer of a large batch writes more than caches hold, and the next one reads it from memory. A *run* of layers whose images do not see each
other is executed for some images through all layers, then for the next ones. Values that pass from layer to layer stay in the
caches. The arena shrinks, because every slice recycles the memory of the one before. The price is more and smaller tiles, more ends to wait
at, and weights that are read once a slice. So a run's weights must fit the cache. Whether it pays for all that on the machine at hand is
for the simulation to say (`planner/build.py`).

The graph is rewritten. Every node of a run stands there once a slice, on views of its outer inputs. Values read after the run are put
together again. Algorithms have been chosen by then and rows keep their sums, so results have the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from aspen_mp.planner.cost import op_cost
from aspen_mp.planner.cost.tile_cost import cached_weights, whole_ns
from aspen_mp.planner.ir.graph import VIEW_OPS, Graph, Node, Tensor
from aspen_mp.planner.layout.grids import split
from aspen_mp.planner.layout.storage import nbytes
from aspen_mp.planner.ops.table import SPECS, input_region

GOAL = 0.5
"""The most that an operator may read and write of a slice, as a share of a cache: several layers' activations live at a time."""
RECYCLED = 3
"""After this many layers memory is written anew (`memory.MARGIN`): where they move more than a cache holds, it is not there any more."""
SLICE_NS = (15_000.0, 45_000.0)
"""The cost of a further node: its tiles are more and smaller, and workers wait for the last of them. The less, the longer runs are and the
more slices they have; which are the better ones the simulation says."""
MOST_NODES = 1000
"""Nodes that a graph may have more than before."""
MOST_RUNS = 16
WORTH = 0.01
"""A run must save at least this, as a share of a graph's work."""
MOST_LOOKED_AT = 8192
"""Nodes of a graph that runs are looked for in: from each of them, all that follow are summed up."""
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Run:
    """Nodes [begin, end) of a graph, in `slices` slices of the batch."""

    begin: int
    end: int
    slices: int


def in_slices(graph: Graph) -> list[Graph]:
    """The kernel-level graph with runs in slices, in different ways; empty where that would gain nothing. The graph stays as it is."""
    ways = [find_runs(graph, slice_ns) for slice_ns in SLICE_NS]
    return [_Cut(graph).by(runs) for k, runs in enumerate(ways) if runs and runs not in ways[:k]]


# -------------------------------------------------------------------------------------------------------------------- finding runs


def find_runs(graph: Graph, slice_ns: float) -> list[Run]:
    """The runs that save most memory traffic by the cost model, in the order of the graph, where a further node costs `slice_ns`."""
    nodes = graph.nodes
    if len(nodes) > MOST_LOOKED_AT:
        return []
    each, cached = np.array([op_cost.activation_bytes(node) for node in nodes]), op_cost.rates().cached
    if not (each > cached).any():
        return []
    batch = np.array([_batch(node) for node in nodes])
    if not batch.any():
        return []
    steps = np.array([node.op not in VIEW_OPS and node.op != "concat" for node in nodes])
    written = [2.0 * sum(nbytes(t) for t in node.outputs) for node in nodes]
    moved = np.where(each > cached, [op_cost.memory_bytes(node)[1] for node in nodes], written) * steps
    moved[each * RECYCLED <= cached] = 0.0
    least = WORTH * sum(whole_ns(node) for node, step in zip(nodes, steps, strict=True) if step)
    stops = _stops(batch, np.array([op_cost.weight_bytes(node) for node in nodes]))
    values = {}
    for slices in _numbers(int(batch.max(initial=0))):
        fits = np.clip(2.0 - each / (GOAL * cached * slices), 0.0, 1.0)
        values[slices] = np.where(batch >= slices, fits * moved / op_cost.rates().cold - (slices - 1) * slice_ns * steps, -np.inf)
    found: list[Run] = []
    room = MOST_NODES
    todo = [(0, len(nodes))]
    while todo and len(found) < MOST_RUNS:
        lo, hi = todo.pop()
        runs = [_best(value, stops, slices, lo, hi) for slices, value in values.items()]
        fitting = [(worth, run) for worth, run in runs if worth > least and (run.end - run.begin) * (run.slices - 1) <= room]
        if fitting:
            _, best = max(fitting, key=lambda one: one[0])
            found.append(best)
            room -= (best.end - best.begin) * (best.slices - 1)
            todo += [(lo, best.begin), (best.end, hi)]
    return sorted(found, key=lambda run: run.begin)


def _numbers(batch: int) -> list[int]:
    """Numbers of slices that are tried."""
    return sorted({min(2**k, batch) for k in range(1, batch.bit_length() + 1)} - {1}) if batch > 1 else []


def _stops(batch: Ints, weights: Floats) -> Ints:
    """Where runs that begin at each node end at the latest: they have one batch, and their weights stay in the cache."""
    before = np.concatenate([np.zeros(1), np.cumsum(weights)])
    stops = np.searchsorted(before, before[:-1] + cached_weights(), side="right") - 1
    end = len(batch)
    for k in range(len(batch) - 1, -1, -1):
        if k + 1 < len(batch) and batch[k + 1] != batch[k]:
            end = k + 1
        stops[k] = min(stops[k], end)
    return stops


def _best(value: Floats, stops: Ints, slices: int, lo: int, hi: int) -> tuple[float, Run]:
    """The run within nodes [lo, hi) of most value, and its value; 0 where there is none."""
    most, best = 0.0, Run(lo, lo, slices)
    gains = np.concatenate([np.zeros(1, np.int64), np.cumsum(value > 0.0)])
    for begin in np.flatnonzero(value[lo:hi] > 0.0) + lo:  # a run begins where it gains something
        worth = np.cumsum(value[begin : min(stops[begin], hi)])
        if not len(worth):
            continue
        end = int(begin + np.argmax(worth) + 1)
        if worth[end - begin - 1] > most and gains[end] - gains[begin] > 1:  # else nothing passes from one node to another
            most, best = float(worth[end - begin - 1]), Run(int(begin), end, slices)
    return most, best


def _batch(node: Node) -> int:
    """The length of the first axis, if it has several rows, each computed from the same one of every input that is not constant. Else 0."""
    shape = node.output.shape
    rank = SPECS[node.op].batch_rank
    if len(node.outputs) != 1 or not 0 < rank <= len(shape) or shape[0] < 2 or 0 in shape:
        return 0
    if node.op == "concat" and node.attrs["axis"] == 0:
        return 0
    rows = 0
    for i, x in enumerate(node.inputs):
        if x is None:
            continue
        along = _along(node, i)
        if x.is_const and along:
            return 0
        if not x.is_const:
            if not along:
                return 0
            rows += 1
    return shape[0] if rows else 0


def _along(node: Node, i: int) -> bool:
    """Whether a row of the output, along the first axis, needs that row of input i and no other."""
    x, shape = node.inputs[i], node.output.shape
    assert x is not None
    if not x.shape or x.shape[0] != shape[0]:
        return False
    if node.op == "concat":  # along another axis, of maybe very many inputs
        return True
    lo = np.zeros((2, len(shape)), np.int64)
    hi = np.array([shape, shape], np.int64)
    lo[:, 0], hi[:, 0] = (0, shape[0] - 1), (1, shape[0])
    first, last = input_region(node, i, lo, hi)
    return bool((first[:, 0] == lo[:, 0]).all() and (last[:, 0] == hi[:, 0]).all())


# ------------------------------------------------------------------------------------------------------------------------- cutting


class _Cut:
    """Makes a graph of its own, which shares inputs and constants with the old one."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes: list[Node] = []
        self.new: dict[Tensor, Tensor] = {}

    def by(self, runs: list[Run]) -> Graph:
        """The graph with these runs in slices of the batch."""
        at = 0
        for run in [*runs, Run(len(self.graph.nodes), len(self.graph.nodes), 1)]:
            for node in self.graph.nodes[at : run.begin]:
                self._whole(replace(node, inputs=[self._of(x) for x in node.inputs]), node.outputs)
            self._run(run)
            at = run.end
        outputs = [self.new.get(t, t) for t in self.graph.outputs]
        return Graph(self.graph.name, list(self.graph.inputs), outputs, self.nodes)

    def _of(self, x: Tensor | None) -> Tensor | None:
        return x if x is None else self.new.get(x, x)

    def _run(self, run: Run) -> None:
        nodes = self.graph.nodes[run.begin : run.end]
        outside = {x for node in self.graph.nodes[run.end :] for x in node.inputs} | set(self.graph.outputs)
        made: dict[Tensor, list[Tensor | None]] = {node.output: [] for node in nodes}
        for k in range(run.slices if nodes else 0):
            cuts = split(nodes[0].output.shape[0], run.slices)
            rows = int(cuts[k]), int(cuts[k + 1])
            views: dict[Tensor, Tensor] = {}
            for node in nodes:
                inputs = [made[x][k] if x in made else self._view(node, x, rows, views) for x in node.inputs]
                made[node.output].append(self._slice(replace(node, inputs=inputs, batch_slice=(k, run.slices)), node.output, rows))
        for node in nodes:
            if node.output in outside:
                self._whole(Node("concat", node.name, made[node.output], [], {"axis": 0}, node.onnx_op), [node.output])

    def _view(self, node: Node, x: Tensor | None, rows: tuple[int, int], views: dict[Tensor, Tensor]) -> Tensor | None:
        """Those rows of an outer tensor; a constant is for all."""
        if x is None or x.is_const:
            return x
        if x not in views:
            attrs = {"starts": (rows[0], *(0,) * (len(x.shape) - 1)), "steps": (1,) * len(x.shape)}
            views[x] = self._slice(Node("view.slice", node.name, [self._of(x)], [], attrs, node.onnx_op), x, rows)
        return views[x]

    def _slice(self, node: Node, like: Tensor, rows: tuple[int, int]) -> Tensor:
        """Puts a node in that computes rows of `like`."""
        out = Tensor(f"{like.name}[{rows[0]}:{rows[1]}]", (rows[1] - rows[0], *like.shape[1:]), like.dtype, producer=node)
        node.outputs = [out]
        self.nodes.append(node)
        return out

    def _whole(self, node: Node, like: list[Tensor]) -> None:
        """Puts a node in that computes copies of other tensors."""
        node.outputs = [replace(t, producer=node) for t in like]
        self.new.update(zip(like, node.outputs, strict=True))
        self.nodes.append(node)
