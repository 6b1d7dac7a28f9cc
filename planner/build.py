"""Kernel-level graph → plan: storage, tiles, edges, memory, arrays."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from aspen_mp.planner.cost import op_cost, tile_cost
from aspen_mp.planner.cost.cross_core_traffic import Flow
from aspen_mp.planner.cost.machine import Machine
from aspen_mp.planner.cost.scratch_reuse import joined
from aspen_mp.planner.ir.graph import Graph, Node, Tensor
from aspen_mp.planner.job import progress, reasons
from aspen_mp.planner.job.options import UNSEARCHED, Experiment, Keeping
from aspen_mp.planner.job.reasons import NETWORK, Reason, Tried
from aspen_mp.planner.layout.alike import kinds
from aspen_mp.planner.layout.grids import TILE_AXES, Grid
from aspen_mp.planner.layout.storage import ARENA, PLAN, REQUEST, WEIGHTS, Storage, aligned, assign_storage, item_bytes, nbytes
from aspen_mp.planner.ops.spec import OPAQUE, SILENT
from aspen_mp.planner.ops.table import params as kernel_params
from aspen_mp.planner.ops.table import seen
from aspen_mp.planner.plan.bucketed_graph import BucketedGraph
from aspen_mp.planner.plan.explain import op_infos
from aspen_mp.planner.plan.memory import assign_offsets, order_recycling, stay, tenants
from aspen_mp.planner.plan.plan import Costs, Plan, TensorInfo, WeightItem, arena_layout
from aspen_mp.planner.plan.validate import LONGEST_AXIS, MAX_SEGMENT
from aspen_mp.planner.tiling import reach, teams
from aspen_mp.planner.tiling.batch_splitting import in_slices
from aspen_mp.planner.tiling.edges import EdgeBuilder, TileGraph, barriers
from aspen_mp.planner.tiling.joins import Edges, finish
from aspen_mp.planner.tiling.policy import choose_grids
from aspen_mp.planner.tiling.priority import critical_first, depths_and_ranks, memory_depths
from aspen_mp.planner.tiling.search import Found, latency, search
from aspen_mp.planner.tiling.thresholds import with_thresholds
from aspen_mp.shm.errors import ResourceLimitError, TooLarge, UnsupportedModelError
from aspen_mp.shm.tables import CODE_BY_NUMPY, DTYPES, KERNELS, LIMITS, OP, OPERAND, SPACES, TILE

R = TypeVar("R")
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
DEPTHS = LIMITS["depths"]
LAST_RANK = 0xFFFFFFFF
WORTH_PARTS = 0.02
"""The least gain, as a share of the latency, for which layers go in slices of the batch. Slices are more to plan and to schedule."""


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """``grids``: own tile policy in place of `policy.choose_grids`. ``reuse_memory``: False gives every activation memory of its own.
    ``memory_bytes``: most activation and request memory that a plan may need, None for the machine's. ``sized``: is told the likely size of
    an arena, in bytes, as soon as it is known. So the arena can be made before the plan is done. ``stream``: what activations are kept
    for in the request's region, so that a request runs only what its changed inputs reach (`tiling.reach`). ``stream_bytes``: most
    memory of that region, 0 for any."""

    reuse_memory: bool = True
    stream: Keeping = ""
    stream_bytes: int = 0
    memory_bytes: int | None = None
    grids: Any = None
    sized: Callable[[int], None] | None = None
    metadata: dict[str, Any] = field(default_factory=dict)


def build_plan(
    graph: Graph,
    *,
    workers: int,
    machine: Machine | None = None,
    options: PlanOptions | None = None,
    planning: Experiment = UNSEARCHED,
    bucketed: BucketedGraph | None = None,
) -> Plan:
    """Plans a kernel-level graph for a number of workers: any number may run it, tiles are sized for this one. `machine`: the cores; None
    for ones that are alike. `bucketed`: this graph at the extents of a shape bucket that the plan is for.

    Results do not depend on `workers`, `machine` nor `planning`. UnsupportedModelError: a tensor has a dtype or rank that operands cannot
    express. ResourceLimitError: it needs more memory than there is.
    """
    options = options or PlanOptions()
    progress.at("storage")
    graph = with_thresholds(graph) if options.stream == "near" else graph
    storage = assign_storage(graph) if bucketed is None else bucketed.storages[bucketed.bucket.most]
    budget = options.memory_bytes if options.memory_bytes is not None else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    largest = max((r.buffer for r in storage.refs.values()), key=lambda b: b.nbytes, default=None)
    if largest is not None:
        _within(budget, largest.nbytes, f"tensor {largest.name!r} of {graph.name!r}")
    _within(budget, storage.request_bytes, f"inputs and outputs of {graph.name!r}")
    machine = machine or Machine.uniform(max(workers, 1), op_cost.rates())
    if options.grids is not None:
        found = Found(options.grids(storage, len(machine)))
    else:
        storage, found, machine = _tiled(graph, storage, machine, planning, bucketed is None)
    if options.stream:
        most = 0 if options.stream == "rows" else options.stream_bytes
        storage, grids = reach.with_reach(storage, found.grids, options.stream, most)
        found = replace(found, grids=grids)
        if 0 < most < storage.request_bytes:
            limit = f"and its limit is {most}"
            raise ResourceLimitError(f"a stream of {graph.name!r} needs {storage.request_bytes} bytes of memory at least, {limit}")
    progress.at("memory", 0, len(storage.steps))
    lives = tenants(storage)
    stay(lives, storage.refs[storage.steps[0].output].buffer if options.stream else None)  # each tile looks there for its part
    activation_bytes = assign_offsets(lives, reuse=options.reuse_memory)
    _within(budget, activation_bytes + storage.request_bytes, f"activations of {graph.name!r}")
    if options.sized is not None:
        tiles = sum(grid.n for grid in found.grids)
        options.sized(arena_layout(tiles + tiles // 4, activation_bytes)["arena_bytes"])  # some are JOINs

    grids, between = found.grids, planning.barriers
    edge_builder = EdgeBuilder(storage, kinds(storage))
    tile_graph = barriers(grids) if between else edge_builder.graph(grids)
    if bucketed is not None and not between:
        bucketed.cover(tile_graph, grids)
    parents, children = tile_graph.edges() if between else order_recycling(tile_graph, lives, len(storage.steps))
    origin = np.array([tile_graph.base[k + 1] - 1 for k in tile_graph.join_step], np.int64)
    if options.stream:
        parents, children = reach.first_edges(storage, tile_graph.base, origin, parents, children)
    edges = finish(parents, children, tile_graph.op_tiles, origin)
    # With barriers the tiles are the same as without, and the predictions are not of this plan: see `Experiment`.
    noted = replace(options, metadata={**options.metadata, **_shared(planning, machine), **({} if between else _noted(found))})

    def flow() -> Flow:
        return edge_builder.wiring(grids).flow

    plan = _Writer(graph, storage, grids, tile_graph, edges, flow, activation_bytes, len(machine), found.critical, noted).plan(bucketed)
    costs, cold = plan.tile_costs(), op_cost.rates().cold
    plan.memory = memory_depths(plan.tiles["depth"], costs.ns, costs.bytes, cold)
    plan.memory_cores = machine.memory_cores(cold)
    return plan


def _tiled(graph: Graph, storage: Storage, machine: Machine, planning: Experiment, slices: bool) -> tuple[Storage, Found, Machine]:
    """Finds the tiles of the graph, and the cores that they are for. With `slices`, runs of layers may go in slices of the batch, if that
    finishes sooner before any search. Fewer cores than the machine has are used where several requests are to run at a time."""
    longest, whole, machine = planning.longest_ns, machine, _team(storage, machine, planning)
    if planning.tiles is not None:
        return storage, Found(choose_grids(storage, len(machine), planning.tiles)), machine
    if planning.search == "none":
        return storage, Found(choose_grids(storage, len(machine), longest=longest)), machine
    with reasons.trial():
        others = [assign_storage(other) for other in in_slices(graph)] if slices else []
        ends = [_finishes(one, machine, choose_grids(one, len(machine), longest=longest)) for one in (storage, *others)] if others else []
    if others:
        k = int(np.argmin(ends))
        gains = ends[k] < (1 - WORTH_PARTS) * ends[0]
        storage = others[k - 1] if gains else storage
        reasons.tell(partial(_split, [end * 1e-6 for end in ends], k if gains else 0))
    elif slices:
        rule = "no run of layers moves more than the caches hold"
        reasons.tell(lambda: Reason("split", "whole batch", rule, tried=(Tried("slices of the batch", rule),), node=NETWORK))
    if planning.in_flight > 1:
        return storage, *teams.searched(storage, whole, machine, planning)
    return storage, search(storage, machine, planning.search, longest), machine


def _split(ends: Sequence[float], k: int) -> Reason:
    """Why the batch runs in slices, or whole. `ends`: milliseconds of the k-th way; the first is the whole batch."""
    names = ["whole batch", *(f"slices of the batch, way {way}" for way in range(1, len(ends)))]
    rule = "it takes longer" if k else f"it gains less than {WORTH_PARTS:.0%}"
    tried = tuple([Tried(name, rule, end) for way, (name, end) in enumerate(zip(names, ends, strict=True)) if way != k])
    return Reason("split", names[k], "least time", ends[k], "network", tried, node=NETWORK)


def _team(storage: Storage, machine: Machine, planning: Experiment) -> Machine:
    """The cores that share a request: all where requests come one at a time, or where the number of tiles a node is given."""
    if planning.in_flight == 1 or planning.tiles is not None or len(machine) == 1:
        return machine
    return teams.choose(storage, machine, planning.in_flight, planning.longest_ns).machine


def _finishes(storage: Storage, machine: Machine, grids: Sequence[Grid]) -> float:
    """Nanoseconds, simulated; on one core, of all tiles."""
    if len(machine) > 1:
        return latency(storage, machine, grids)
    costs = (tile_cost.tile_costs(node, *grid.boxes())[0] for node, grid in zip(storage.steps, grids, strict=True))
    return sum(float(ns.sum()) + len(ns) * op_cost.rates().tile_ns for ns in costs)


def _shared(planning: Experiment, team: Machine) -> dict[str, Any]:
    """A plan's note about the number of requests at a time that it is for."""
    return {} if planning.in_flight == 1 else {"shared": {"in_flight": planning.in_flight, "cores": len(team)}}


def _noted(found: Found) -> dict[str, Any]:
    """A plan's note about how its tiles were found."""
    if not found.simulated:
        return {}
    simulated = {"start_ms": round(found.start_ns * 1e-6, 6), "best_ms": round(found.best_ns * 1e-6, 6)}
    order = "critical path" if found.critical else "layers"
    return {"search": {**simulated, "steps": found.steps, "simulated": found.simulated, "order": order}}


def _within(budget: int, needed: int, what: str) -> None:
    if needed > budget:
        raise ResourceLimitError(
            f"{what}: it needs {needed} bytes of memory, and the limit is {budget}. Use a smaller batch, or a machine with more memory"
        )


class _Writer:
    def __init__(
        self,
        graph: Graph,
        storage: Storage,
        grids: Sequence[Grid],
        tile_graph: TileGraph,
        edges: Edges,
        flow: Callable[[], Flow],
        activation_bytes: int,
        workers: int,
        critical: bool,
        options: PlanOptions,
    ) -> None:
        self.graph, self.storage, self.grids, self.tile_graph, self.edges = graph, storage, grids, tile_graph, edges
        self.flow, self.activation_bytes, self.workers, self.critical, self.options = flow, activation_bytes, workers, critical, options
        self.consts = bytearray()
        self.blobs = bytearray(b"\0")  # offset 0: nothing
        self.weights: list[WeightItem] = []
        self.weight_number: dict[str, int] = {}
        self.weight_uses: list[tuple[int, int, int]] = []
        self.plan_operands: list[int] = []
        self.arena_operands: list[int] = []
        self.forms: list[tuple[Any, ...]] = [(SPACES["PLAN"], DTYPES["NONE"], 0, 0, 0, 0, (0,) * 8, (0,) * 8)]
        """Operands but for where they are; the first is an absent one. `form`: which of these each operand has."""
        self.form: list[int] = []
        self.places: list[tuple[int, int]] = []
        """(space, offset) of each operand."""

    def plan(self, bucketed: BucketedGraph | None) -> Plan:
        self._constants()
        costs = self._costs()
        works = self._works(costs.ns)
        ops, params = self._ops(works)
        base = self.tile_graph.base
        for k, grid in enumerate(self.grids):
            ops["cold_bytes"][k] = costs.bytes[base[k] : base[k + 1]].sum() / max(grid.n, 1)
        edges = self.edges
        counts = np.diff(edges.parent_begin)
        plan = Plan(
            name=self.graph.name,
            ops=ops,
            operands=self._operands(),
            params=params,
            tiles=self._tiles([w.ns for w in works]),
            children=edges.children.astype(np.uint32),
            parent_counts=counts.astype(np.uint32),
            parent_begin=edges.parent_begin.astype(np.uint32),
            parents=edges.parents.astype(np.uint32),
            initial=np.flatnonzero(counts == 0).astype(np.uint32),
            consts=bytes(self.consts),
            blobs=bytes(self.blobs),
            activation_bytes=self.activation_bytes,
            request_bytes=self.storage.request_bytes,
            scratch_bytes=max((op_cost.scratch_bytes(node) for node in self._one_of_each().values()), default=0),
            inputs=[self._info(name, t) for name, t in self.storage.inputs],
            outputs=[self._info(name, t) for name, t in self.storage.outputs],
            weights=self.weights,
            weight_uses=np.array(self.weight_uses, np.int64).reshape(-1, 3),
            info=op_infos(self.storage.steps, self.grids, works),
            metadata=dict(self.options.metadata),
            costs=costs,
        )
        if bucketed is not None:
            plan.values, plan.numbers = bucketed.values, bucketed.numbers
            plan.least, plan.most = bucketed.bucket.least, bucketed.bucket.most
        if self.options.stream:
            plan.parts, plan.kept_at = self.tile_graph.op_tiles, reach.kept_at(self.storage)
        plan.operands["offset"][self.plan_operands] += int(plan.header()["consts"])
        plan.operands["offset"][self.arena_operands] += plan.arena_layout()["arena_data"]
        plan.place_weights(plan.default_directory()[0])
        return plan

    def _works(self, ns: Floats) -> list[op_cost.Work]:
        """The work of each step. `ns`: of each tile."""
        known: dict[tuple[int, Grid], op_cost.Work] = {}
        base = self.tile_graph.base.tolist()
        for k, (kind, node, grid) in enumerate(zip(kinds(self.storage), self.storage.steps, self.grids, strict=True)):
            if (kind, grid) not in known:
                known[kind, grid] = op_cost.Work(op_cost.flops(node), op_cost.traffic(node), float(ns[base[k] : base[k + 1]].sum()))
        return [known[way] for way in zip(kinds(self.storage), self.grids, strict=True)]

    # ------------------------------------------------------------------------------------------------------------ constants

    def _constants(self) -> None:
        for buffer in self.storage.constants:
            t = buffer.const
            assert t is not None
            if buffer.space == WEIGHTS:
                assert t.weight_key is not None
                if t.weight_key not in self.weight_number:
                    self.weight_number[t.weight_key] = len(self.weights)
                    self.weights.append(WeightItem(t.weight_key, buffer.nbytes, partial(_write_constant, t)))
            else:
                buffer.offset = aligned(len(self.consts))
                self.consts.extend(bytes(buffer.offset - len(self.consts)))
                self.consts.extend(np.ascontiguousarray(t.value()).tobytes())

    def _blob(self, data: bytes) -> tuple[int, int]:
        at = len(self.blobs)
        self.blobs.extend(data)
        return at, len(data)

    # ------------------------------------------------------------------------------------------------------ ops and operands

    def _one_of_each(self) -> dict[int, Node]:
        """A step of each kind."""
        return dict(zip(kinds(self.storage), self.storage.steps, strict=True))

    def _ops(self, works: Sequence[op_cost.Work]) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        """The ops with JOIN and END behind them, and their parameters."""
        steps, alike = self.storage.steps, kinds(self.storage)
        params = {kind: kernel_params(node) for kind, node in self._one_of_each().items()}
        forms: dict[int, list[int]] = {}
        ops = np.zeros(len(steps) + 2, OP)
        names, blobs = np.zeros((len(ops), 2), np.int64), np.zeros((len(ops), 2), np.int64)
        for k, (kind, node) in enumerate(zip(alike, progress.over(steps, "writing"), strict=True)):
            if kind not in forms:
                forms[kind] = self._forms(node)
            self._place(node, forms[kind])
            names[k] = self._blob(f"{node.name} ({node.onnx_op or node.op})".encode())
            if node.op == OPAQUE:
                blobs[k] = self._blob(node.attrs["model"])
        for k, name in enumerate(SILENT, len(steps)):
            names[k] = self._blob(name.encode())
        ops["name"], ops["name_bytes"] = names.T
        ops["blob"], ops["blob_bytes"] = blobs.T
        ops["layer"] = np.arange(len(ops))
        ops["kernel"] = [KERNELS[name].code for name in (*(node.op for node in steps), *SILENT)]
        own = ops[: len(steps)]
        own["n_outputs"], own["n_inputs"] = [len(node.outputs) for node in steps], [len(node.inputs) for node in steps]
        used = own["n_outputs"].astype(np.int64) + own["n_inputs"]
        own["operand"] = np.cumsum(used) - used
        own["n_params"] = [len(params[kind]) for kind in alike]
        own["param"] = np.cumsum(own["n_params"], dtype=np.int64) - own["n_params"]
        own["flops"] = [work.flops for work in works]
        own["cost_ns"] = [work.ns / max(grid.n, 1) for work, grid in zip(works, self.grids, strict=True)]
        return ops, np.array([value for kind in alike for value in params[kind]], np.int64)

    def _forms(self, node: Node) -> list[int]:
        """Those of a node's operands, and of the nodes that are like it."""
        refs = self.storage.refs
        out = [self._form(t, t.shape, refs[t].strides) for t in node.outputs]
        for i, x in enumerate(node.inputs):
            out.append(0 if x is None else self._form(x, *seen(node, i, x, refs[x].strides)))
        return out

    def _form(self, t: Tensor, shape: Sequence[int], strides: Sequence[int]) -> int:
        if len(shape) > LIMITS["rank"]:
            raise UnsupportedModelError(f"{t.name} has {len(shape)} axes, and at most {LIMITS['rank']} are supported")
        elements = prod(shape) or prod([max(d, 1) for d in shape])  # though it be empty
        if max(shape, default=0) >= LONGEST_AXIS or elements * item_bytes(t) > MAX_SEGMENT:
            raise TooLarge(f"tensor {t.name!r} of shape {list(shape)}: its axes are too long. Split it")
        code = DTYPES["OBJECT"] if t.dtype == np.dtype(object) else CODE_BY_NUMPY.get(t.dtype)
        if code is None:
            raise UnsupportedModelError(f"{t.name} has dtype {t.dtype}, which is not supported")
        pad = (0,) * (8 - len(shape))
        self.forms.append((0, code, len(shape), 0, 0, 0, (*shape, *pad), (*strides, *pad)))
        return len(self.forms) - 1

    def _place(self, node: Node, forms: Sequence[int]) -> None:
        """Where a node's operands are."""
        self.form += forms
        for t in (*node.outputs, *node.inputs):
            if t is None:
                self.places.append((SPACES["PLAN"], 0))
                continue
            ref = self.storage.refs[t]
            buffer, number = ref.buffer, len(self.places)
            offset = ref.offset * item_bytes(t)
            if buffer.space == WEIGHTS:
                assert buffer.const is not None
                assert buffer.const.weight_key is not None
                self.weight_uses.append((number, self.weight_number[buffer.const.weight_key], offset))
            else:
                offset += max(buffer.offset, 0)
                if buffer.space == PLAN:
                    self.plan_operands.append(number)
                elif buffer.space == ARENA:
                    self.arena_operands.append(number)
            self.places.append((SPACES[buffer.space], offset))

    def _operands(self) -> npt.NDArray[Any]:
        operands = np.array(self.forms, OPERAND)[self.form]
        operands["space"], operands["offset"] = np.array(self.places, np.int64).reshape(-1, 2).T
        return operands

    def _info(self, name: str, t: Tensor) -> TensorInfo:
        ref = self.storage.refs[t]
        assert ref.buffer.space == REQUEST
        return TensorInfo(name, "object" if t.dtype == np.dtype(object) else t.dtype.name, t.shape, ref.buffer.offset, nbytes(t))

    # ---------------------------------------------------------------------------------------------------------------- tiles

    def _tiles(self, step_ns: list[float]) -> npt.NDArray[Any]:
        edges, base = self.edges, self.tile_graph.base
        op_tiles = self.tile_graph.op_tiles
        tiles = np.zeros(edges.n, TILE)
        tiles["lo"], tiles["hi"] = 0, 1
        tiles["op"] = len(self.storage.steps)  # JOIN
        tiles["op"][-1] = len(self.storage.steps) + 1
        counts = np.diff(base)
        depth, rank_of = depths_and_ranks(self._order(step_ns), step_ns, counts)
        tiles["op"][:op_tiles] = np.repeat(np.arange(len(counts)), counts)
        tiles["depth"][:op_tiles] = np.repeat(depth, counts)
        tiles["lo"][:op_tiles], tiles["hi"][:op_tiles] = self._boxes()
        tiles["children"] = edges.child_begin[:-1]
        tiles["n_children"] = np.diff(edges.child_begin)
        tiles["rank"][:op_tiles] = rank_of
        if op_tiles:
            tiles["depth"][op_tiles:] = tiles["depth"][edges.origin]
        tiles["depth"][-1], tiles["rank"][-1] = DEPTHS - 1, LAST_RANK
        return tiles

    def _boxes(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """lo, hi [tiles, `TILE_AXES`] of the tiles of all steps; 0 and 1 on missing axes. Many steps have the same grid."""
        first: dict[Grid, int] = {}
        boxes, n = [np.zeros((2, 0, TILE_AXES), np.int64)], 0
        for grid in dict.fromkeys(self.grids):
            first[grid] = n
            box = np.zeros((2, grid.n, TILE_AXES), np.int64)
            box[1] = 1
            lo, hi = grid.boxes()
            rank = min(lo.shape[1], TILE_AXES)
            box[0, :, :rank], box[1, :, :rank] = lo[:, :rank], hi[:, :rank]
            boxes.append(box)
            n += grid.n
        counts, base = np.diff(self.tile_graph.base), self.tile_graph.base[:-1]
        begin = np.array([first[grid] for grid in self.grids], np.int64)
        lo, hi = np.concatenate(boxes, axis=1)[:, np.repeat(begin - base, counts) + np.arange(self.tile_graph.op_tiles)]
        return lo, hi

    def _order(self, step_ns: list[float]) -> npt.NDArray[np.int64]:
        """The order in which the steps' tiles should go."""
        edges, base, n = self.edges, self.tile_graph.base, len(step_ns)
        if not self.critical or not n:
            return np.arange(n)
        step = np.repeat(np.arange(n), np.diff(base))
        step = np.concatenate([step, step[edges.origin]]) if len(step) else np.zeros(edges.n, np.int64)
        parents = np.repeat(np.arange(edges.n), np.diff(edges.child_begin))
        work = edges.children < edges.n - 1  # all but END
        return critical_first(step_ns, step[parents[work]], step[edges.children[work]])

    def _costs(self) -> Costs:
        """The costs of each tile; joins and the end take nothing."""
        more = np.zeros(self.edges.n - self.tile_graph.op_tiles)
        found = self._of_each(tile_cost.tile_costs)
        ns, moved = (np.concatenate([*(one[k] for one in found), more]) for k in range(2))
        return Costs(
            ns, moved, op_cost.rates().far, self.flow, lambda: joined(self._of_each(tile_cost.scratch_reuse), len(more)), self._costs
        )

    def _of_each(self, function: Callable[[Node, Ints, Ints, int], R]) -> list[R]:
        """The results of a function for the tiles of each step."""
        known: dict[tuple[int, Grid], R] = {}
        for kind, node, grid in zip(kinds(self.storage), self.storage.steps, self.grids, strict=True):
            if (kind, grid) not in known:
                known[kind, grid] = function(node, *grid.boxes(), self.workers)
        return [known[way] for way in zip(kinds(self.storage), self.grids, strict=True)]


def _write_constant(t: Tensor, out: memoryview) -> None:
    t.write(np.frombuffer(out, t.dtype, t.size).reshape(t.shape))
