"""What `aspen-mp plan --explain` shows: one row for each op, and totals."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

from aspen_mp.planner.cost import Work, blocks_of
from aspen_mp.planner.ir import Node
from aspen_mp.planner.plan import OpInfo

if TYPE_CHECKING:
    from aspen_mp.planner.grids import Grid
    from aspen_mp.planner.plan import Plan

SCHEDULING_NS = 300.0
"""What scheduling a tile costs a worker."""


def op_info(node: Node, grid: Grid, work: Work) -> OpInfo:
    """The row of one node. The tile's shape is that of the largest tile; axes beyond those that can be cut are whole."""
    sides = tuple(int((c[1:] - c[:-1]).max(initial=0)) for c in grid.cuts) + node.output.shape[len(grid.cuts) :]
    kernel = node.op
    if node.op == "WINO":
        kernel = "WINO {}x{}".format(*blocks_of(node).sides)
    return OpInfo(node.name, node.onnx_op or node.op, kernel, grid.n, sides, work.flops, work.bytes, work.ns * 1e-6, node.op == "OPAQUE")


@dataclass(frozen=True, slots=True)
class Totals:
    """Of a whole plan. ``depth``: tiles on the longest path. Predicted times in ms: of one core, of `cores`, and the longest path, which
    bounds it for any number."""

    ops: int
    tiles: int
    joins: int
    edges: int
    depth: int
    flops: float
    arena_bytes: int
    weights_bytes: int
    request_bytes: int
    plan_bytes: int
    opaque: int
    one_core_ms: float
    cores: int
    predicted_ms: float
    longest_path_ms: float


def totals(plan: Plan, cores: int) -> Totals:
    """Totals and a prediction for so many cores, by running the tile graph through a list scheduler (lowest rank first)."""
    ns = [float(x) for x in plan.ops["cost_ns"][plan.tiles["op"]]]
    n_real = len(plan.ops) - 2
    ops = plan.tiles["op"].tolist()
    busy = [c + SCHEDULING_NS if op < n_real else 0.0 for c, op in zip(ns, ops, strict=True)]
    depth, path = _longest(plan, busy)
    return Totals(
        ops=n_real,
        tiles=plan.n_tiles,
        joins=sum(op == n_real for op in ops),
        edges=len(plan.children),
        depth=depth,
        flops=float(plan.ops["flops"].astype(float).sum()),
        arena_bytes=plan.arena_layout()["arena_bytes"],
        weights_bytes=plan.weights_bytes,
        request_bytes=plan.request_bytes,
        plan_bytes=plan.nbytes,
        opaque=sum(i.opaque for i in plan.info),
        one_core_ms=sum(busy) * 1e-6,
        cores=cores,
        predicted_ms=_schedule(plan, busy, cores) * 1e-6,
        longest_path_ms=path * 1e-6,
    )


def report(plan: Plan, cores: int) -> dict[str, Any]:
    """Everything that can be said about a plan, as plain numbers and strings: ``{"name", "layers": [row …], "totals": {…}}``. A row has
    the fields of `OpInfo`, in the order of layers."""
    return {"name": plan.name, "layers": [asdict(row) for row in plan.info], "totals": asdict(totals(plan, cores))}


def _longest(plan: Plan, busy: list[float]) -> tuple[int, float]:
    """Tiles and nanoseconds of the longest paths."""
    begin, count, children = plan.tiles["children"].tolist(), plan.tiles["n_children"].tolist(), plan.children.tolist()
    missing = plan.parent_counts.tolist()
    depth, time = [1] * plan.n_tiles, list(busy)
    ready = plan.initial.tolist()
    while ready:
        t = ready.pop()
        for c in children[begin[t] : begin[t] + count[t]]:
            depth[c] = max(depth[c], depth[t] + 1)
            time[c] = max(time[c], time[t] + busy[c])
            missing[c] -= 1
            if not missing[c]:
                ready.append(c)
    return max(depth), max(time)


def _schedule(plan: Plan, busy: list[float], cores: int) -> float:
    begin, count, children = plan.tiles["children"].tolist(), plan.tiles["n_children"].tolist(), plan.children.tolist()
    rank, missing = plan.tiles["rank"].tolist(), plan.parent_counts.tolist()
    ready: list[tuple[int, int]] = []
    running: list[tuple[float, int]] = []
    for t in plan.initial.tolist():
        heappush(ready, (rank[t], t))
    now = 0.0
    while ready or running:
        while ready and len(running) < cores:
            t = heappop(ready)[1]
            heappush(running, (now + busy[t], t))
        now, t = heappop(running)
        for c in children[begin[t] : begin[t] + count[t]]:
            missing[c] -= 1
            if not missing[c]:
                heappush(ready, (rank[c], c))
    return now
