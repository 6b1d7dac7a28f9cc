"""What `aspen-mp plan --explain` shows: one row for each op, and totals."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from aspen_mp.planner import cost
from aspen_mp.planner.cost import Work, blocks_of
from aspen_mp.planner.ir import Node
from aspen_mp.planner.machine import Machine
from aspen_mp.planner.plan import OpInfo
from aspen_mp.planner.simulate import of_plan, simulate

if TYPE_CHECKING:
    from aspen_mp.planner.grids import Grid
    from aspen_mp.planner.plan import Plan


def op_info(node: Node, grid: Grid, work: Work) -> OpInfo:
    """The row of one node. The tile's shape is that of the largest tile; axes beyond those that can be cut are whole."""
    sides = tuple(int((c[1:] - c[:-1]).max(initial=0)) for c in grid.cuts) + node.output.shape[len(grid.cuts) :]
    kernel = node.op
    if node.op == "WINO":
        kernel = "WINO {}x{}".format(*blocks_of(node).sides)
    return OpInfo(node.name, node.onnx_op or node.op, kernel, grid.n, sides, work.flops, work.bytes, work.ns * 1e-6, node.op == "OPAQUE")


@dataclass(frozen=True, slots=True)
class Totals:
    """Of a whole plan. ``depth``: tiles on the longest path. Predicted times in ms: of the fastest core alone, of all
    `cores`, and of the longest path, which bounds it for any number."""

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


def totals(plan: Plan, machine: Machine | int) -> Totals:
    """Totals and a prediction for a machine, or so many cores like the calibrated one, by simulation (`simulate`)."""
    if isinstance(machine, int):
        machine = Machine.uniform(machine, cost.rates())
    tiles = of_plan(plan)
    ops = plan.tiles["op"].tolist()
    n_real = len(plan.ops) - 2
    depth, path = tiles.longest_path(machine.engine.tile)
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
        one_core_ms=simulate(tiles, machine.fastest()).latency_ns * 1e-6,
        cores=len(machine),
        predicted_ms=simulate(tiles, machine).latency_ns * 1e-6,
        longest_path_ms=path * 1e-6,
    )


def report(plan: Plan, machine: Machine | int) -> dict[str, Any]:
    """Everything that can be said about a plan, as plain numbers and strings: ``{"name", "layers": [row …], "totals": {…}}``. A row has
    the fields of `OpInfo`, in the order of layers."""
    return {"name": plan.name, "layers": [asdict(row) for row in plan.info], "totals": asdict(totals(plan, machine))}
