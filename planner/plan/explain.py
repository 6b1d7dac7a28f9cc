"""What `aspen-mp plan --explain` shows: one row for each op, and totals."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any

from aspen_mp.planner.cost import op_cost, tile_cost
from aspen_mp.planner.cost.machine import Machine
from aspen_mp.planner.cost.op_cost import Work
from aspen_mp.planner.ir.graph import Node, Tensor
from aspen_mp.planner.ops.spec import OPAQUE, STACKS
from aspen_mp.planner.ops.stacks import layers
from aspen_mp.planner.plan.plan import OpInfo, StackInfo, StepInfo
from aspen_mp.planner.simulation.simulate import of_plan, parallel_fraction, simulate, throughput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aspen_mp.planner.layout.grids import Grid
    from aspen_mp.planner.plan.plan import Plan


def op_infos(nodes: Sequence[Node], grids: Sequence[Grid], works: Sequence[Work]) -> list[OpInfo]:
    """A row for each node. The tile's shape is that of the largest tile; axes beyond those that can be cut are whole."""
    known: dict[Grid, tuple[int, ...]] = {}
    stacks = _Stacks()
    out = []
    for node, grid, work in zip(nodes, grids, works, strict=True):
        if grid not in known:
            known[grid] = tuple([max([b - a for a, b in pairwise(cuts.tolist())], default=0) for cuts in grid.cuts])
        sides = known[grid] + node.output.shape[len(grid.cuts) :]
        names = node.name, node.onnx_op or node.op, op_cost.kernel(node)
        stack = stacks.of(node) if node.op in STACKS else None
        out.append(OpInfo(*names, grid.n, sides, work.flops, work.bytes, work.ns * 1e-6, node.op == OPAQUE, node.batch_slice, stack))
    return out


class _Stacks:
    """Stacks of a plan, which are asked for in the order of layers."""

    def __init__(self) -> None:
        self._number: dict[Tensor | str, int] = {}

    def of(self, node: Node) -> StackInfo:
        """A layer's slices of the batch belong to the same stack."""
        known = [self._number[key] for key in (node.name, *node.inputs) if key is not None and key in self._number]
        number = known[0] if known else len(set(self._number.values()))
        self._number.update(dict.fromkeys((node.name, *node.outputs), number))
        steps = layers(node)
        images = node.output.shape[0]
        made = sum(images * prod(step.output.shape[1:]) for step in steps)
        apart = sum(map(tile_cost.whole_ns, steps)) * images / steps[-1].output.shape[0]
        return StackInfo(
            number,
            tuple([StepInfo(op_cost.kernel(step), (images, *step.output.shape[1:])) for step in steps]),
            4.0 * (made - sum(x.size for x in node.outputs)),
            apart * 1e-6,
            tile_cost.whole_ns(node) * 1e-6,
        )


@dataclass(frozen=True, slots=True)
class Totals:
    """Of a whole plan. ``depth``: tiles on the longest path."""

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


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a machine does with a plan, by simulation.

    Times in ms, of a request from the client's call to its result: `predicted_ms` on all `cores`, `one_core_ms` on the fastest alone,
    `serial_ms` the same with the tiles that one core likes best. `longest_path_ms` bounds them for any number of cores. One request at a
    time: `utilisation`, what of the cores' speed goes into kernels; `speedup` over `serial_ms`; `parallel_fraction`, Karp and Flatt's.
    `requests_per_s`: with `in_flight` requests at any time.
    """

    machine: str
    cores: int
    power: float
    predicted_ms: float
    one_core_ms: float
    serial_ms: float
    longest_path_ms: float
    speedup: float
    parallel_fraction: float
    utilisation: float
    in_flight: int
    requests_per_s: float


def totals(plan: Plan) -> Totals:
    """Totals of a plan."""
    n_real = len(plan.ops) - 2
    return Totals(
        ops=n_real,
        tiles=plan.n_tiles,
        joins=int((plan.tiles["op"] == n_real).sum()),
        edges=len(plan.children),
        depth=of_plan(plan).longest_path()[0],
        flops=float(plan.ops["flops"].astype(float).sum()),
        arena_bytes=plan.arena_layout()["arena_bytes"],
        weights_bytes=plan.weights_bytes,
        request_bytes=plan.request_bytes,
        plan_bytes=plan.nbytes,
        opaque=sum(i.opaque for i in plan.info),
    )


def predict(plan: Plan, machine: Machine | int, *, serial: Plan | None = None, in_flight: int = 2) -> Prediction:
    """What a machine, or so many cores like the calibrated one, will do with a plan. `serial`: the model's plan for one worker, to compare
    with; None: this plan."""
    if isinstance(machine, int):
        machine = Machine.uniform(machine, op_cost.rates())
    tiles = of_plan(plan)
    one = machine.fastest()
    alone = simulate(tiles, one).latency_ns
    best = simulate(of_plan(serial), one).latency_ns if serial is not None else alone
    out = simulate(tiles, machine)
    power = machine.power / one.power
    return Prediction(
        machine=machine.describe(),
        cores=len(machine),
        power=machine.power,
        predicted_ms=out.latency_ns * 1e-6,
        one_core_ms=alone * 1e-6,
        serial_ms=best * 1e-6,
        longest_path_ms=tiles.longest_path(machine.engine.tile)[1] / one.power * 1e-6,
        speedup=best / out.latency_ns,
        parallel_fraction=parallel_fraction(best, out.latency_ns, power),
        utilisation=out.utilisation,
        in_flight=in_flight,
        requests_per_s=throughput(tiles, machine, in_flight),
    )


def report(plan: Plan, machine: Machine | int) -> dict[str, Any]:
    """Everything that can be said about a plan, as plain numbers and strings: ``{"name", "layers": [row …], "totals": {…},
    "prediction": {…}}``. A row has the fields of `OpInfo`, in the order of layers."""
    rows = [asdict(row) for row in plan.info]
    return {"name": plan.name, "layers": rows, "totals": asdict(totals(plan)), "prediction": asdict(predict(plan, machine))}
