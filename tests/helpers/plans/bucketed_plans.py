"""Plans of shape buckets by hand: a graph's plan at the longest extent, with numbers from the same graph one shorter. Plans for one extent
of the graph say what they must give at others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from graphs_by_hand import GraphBuilder
from small_graphs import random_grids

from aspen_mp.planner.build import PlanOptions, build_plan
from aspen_mp.planner.ir.graph import Graph
from aspen_mp.planner.job.options import Experiment
from aspen_mp.planner.layout.storage import assign_storage, item_bytes
from aspen_mp.planner.plan.plan import Plan, TensorInfo
from aspen_mp.shm.extents import word
from aspen_mp.shm.tables import LIMITS, NUMBER, NUMBER_TABLES
from aspen_mp.workers._dse import PlanRunner

Array = np.ndarray[Any, np.dtype[Any]]
Make = Callable[[GraphBuilder, int], Graph]


def graph_at(make: Make, extent: int) -> Graph:
    return make(GraphBuilder(), extent)


def single(make: Make, extent: int, seed: int = 1, barriers: bool = False) -> Plan:
    options = PlanOptions(grids=random_grids(seed))
    return build_plan(graph_at(make, extent), workers=2, options=options, planning=Experiment(barriers=barriers))


def bucketed(make: Make, least: int, most: int, seed: int = 1, barriers: bool = False) -> Plan:
    """`barriers`: for graphs whose tiles need other tiles at another extent."""
    plan, shorter, shortest = (single(make, most - k, seed, barriers) for k in range(3))
    assert (plan.ops["kernel"] == shorter.ops["kernel"]).all(), "another extent, other kernels"
    rows: list[tuple[int, int, int, int]] = []
    for table, name in (("DIM", "dims"), ("STRIDE", "strides")):
        change = plan.operands[name] - shorter.operands[name]
        change[change != shorter.operands[name] - shortest.operands[name]] = 0  # a square of the extent: there is room between rows
        rows += [(NUMBER_TABLES[table], 0, o * LIMITS["rank"] + a, int(change[o, a])) for o, a in np.argwhere(change)]
    change = np.array(_within(make, most)) - np.array(_within(make, most - 1))
    rows += [(NUMBER_TABLES["OFFSET"], 0, int(o), int(change[o])) for o in np.flatnonzero(change)]
    change = plan.params - shorter.params
    rows += [(NUMBER_TABLES["PARAM"], 0, int(k), int(change[k])) for k in np.flatnonzero(change)]
    plan.numbers, plan.least, plan.most = np.array(rows, NUMBER), (least,), (most,)
    return plan


def _within(make: Make, extent: int) -> list[int]:
    """Bytes of each operand's first element into its buffer. Buffers stay where they are at the longest extent."""
    storage = assign_storage(graph_at(make, extent))
    return [0 if t is None else storage.refs[t].offset * item_bytes(t) for node in storage.steps for t in (*node.outputs, *node.inputs)]


def lines(nbytes: int) -> Array:
    """Bytes at a multiple of 64, NaN as float32."""
    words = np.full(nbytes // 4 + 32, np.nan, np.float32)
    return words[-words.ctypes.data % 64 // 4 :].view(np.uint8)[: -(-nbytes // 4) * 4]


def weights_of(plan: Plan) -> Array:
    directory, size = plan.default_directory()
    weights = lines(size)
    for item in plan.weights:
        at = directory[item.key][1]
        item.write(memoryview(weights)[at : at + item.nbytes])
    return weights


class Runner:
    """A plan on memory of its own, which is full of NaN whenever a request begins."""

    def __init__(self, plan: Plan, segment: bytearray | None = None, opaque: Callable[..., None] | None = None) -> None:
        """`segment`: of a plan like this one. `opaque`: runs opaque tiles."""
        self.plan, header = plan, plan.header()
        self.arena, self.request = lines(int(header["arena_bytes"])), lines(int(header["request_bytes"]))
        weights = [weights_of(plan)] if plan.weights else []
        self.runner = PlanRunner(segment or plan.segment(), weights, self.arena, self.request, opaque=opaque, extent=word(plan.most))

    def run(self, extent: int, graph: Graph, feeds: Sequence[Array], order: str = "fifo", seed: int = 0) -> list[bytes]:
        """The outputs of a request of a graph that is `graph` at this extent."""
        for memory in (self.arena, self.request):
            memory.view(np.float32)[:] = np.nan
        self.runner.move(extent)
        for info, x in zip(self.plan.inputs, feeds, strict=True):
            self.request[info.offset : info.offset + x.nbytes] = np.frombuffer(x.tobytes(), np.uint8)
        assert self.runner.run(order, seed) == 0
        return outputs_of(self.plan.outputs, graph, self.request)


def outputs_of(infos: Sequence[TensorInfo], graph: Graph, request: Array) -> list[bytes]:
    sizes = [int(np.prod(t.shape)) * t.dtype.itemsize for t in graph.outputs]
    return [request[info.offset : info.offset + nbytes].tobytes() for info, nbytes in zip(infos, sizes, strict=True)]


def feeds_of(graph: Graph, seed: int = 0) -> list[Array]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(t.shape).astype(np.float32) for t in graph.inputs]


def expected(make: Make, extent: int, feeds: Sequence[Array]) -> list[bytes]:
    """By a plan for one extent of this extent, with tiles of its own."""
    got = Runner(single(make, extent, seed=7)).run(0, graph_at(make, extent), feeds)
    assert all(np.isfinite(np.frombuffer(y, np.float32)).all() for y in got)
    return got


# ---- graphs of an extent


def tokens(b: GraphBuilder, n: int) -> Graph:
    """A layer of an encoder over n tokens: rows, columns and sums that are as long as the text."""
    h, d = 3, 4
    x = b.input(2, n, h * d)
    q, k, v = (b.transpose(b.reshape(b.linear(x, h * d), 2, n, h, d), 0, 2, 1, 3) for _ in range(3))
    p = b.softmax(b.matmul(q, b.transpose(k, 0, 1, 3, 2)))
    y = b.reshape(b.transpose(b.matmul(p, v), 0, 2, 1, 3), 2, n, h * d)
    y = b.norm(b.linear(y, h * d, residual=x))
    return b.graph(b.linear(b.unary(b.linear(y, 48), "TANH"), h * d, residual=y), b.reduce(y, (1,)))


def keys(b: GraphBuilder, n: int) -> Graph:
    """One query and n keys: what varies is in no output."""
    q, k, v = b.input(2, 3, 1, 8), b.input(2, 3, n, 8), b.input(2, 3, n, 5)
    p = b.softmax(b.matmul(q, b.transpose(k, 0, 1, 3, 2)))
    return b.graph(b.matmul(p, v), b.unary(b.reduce(k, (2,)), "ABS"))


def places(b: GraphBuilder, n: int) -> Graph:
    """Parts side by side in one buffer, backwards, and the last rows of many: offsets and a parameter follow the extent."""
    x = b.input(n, 6)
    y = b.unary(x, "ABS")
    both = b.concat([y, b.slice(y, (n - 1, 5), (-1, -1), (n, 6)), b.unary(x, "NEG")], 0)
    last = b.pad(y, (2 - n, 0), (1, 0))
    return b.graph(b.softmax(both), b.binary(both, both, "MUL"), last, b.slice(x, (n - 2, 0), (1, 1), (2, 6)))


def deep(b: GraphBuilder, n: int) -> Graph:
    """The axis that varies is one that no tile cuts, and one of those that they do."""
    x = b.input(1, 2, 1, 2, 1, 3, n, 2)
    y = b.binary(b.unary(x, "TANH"), b.input(1, 2, 1, 2, 1, 3, n, 2))
    z = b.unary(b.input(n, 2, 1, 2, 1, 3, 2, 2), "NEG")
    return b.graph(y, b.softmax(z), b.softmax(y))


GRAPHS: list[tuple[Make, int, int, bool]] = [(tokens, 1, 9, False), (keys, 1, 40, False), (places, 3, 9, True), (deep, 1, 6, False)]
"""Each with a range of extents, and whether it needs barriers."""
