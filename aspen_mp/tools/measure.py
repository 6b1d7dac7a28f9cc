"""How long each op of a plan takes. Its tiles run one by one in this process, in the order of a single worker, with the real kernels on
warm memory. No worker, no queue: what the sum lacks to the time of a request is scheduling, idling and submission.
"""

from __future__ import annotations

import heapq
import os
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from aspen_mp.planner.plan.plan import OpInfo, Plan
from aspen_mp.shm.bindings import _mapping
from aspen_mp.shm.errors import PlanError
from aspen_mp.workers._dse import PlanRunner
from aspen_mp.workers.fallback import opaque_tile

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class OpTime:
    """An op of the plan: nanoseconds of all its tiles together, median and minimum over rounds, without the cost of taking the time."""

    info: OpInfo
    median_ns: float
    min_ns: float


@dataclass(frozen=True, slots=True)
class PlanTimes:
    """``ops``: in the order of the plan. ``round_ns``: median and minimum of a whole round. ``tiles``: with joins."""

    ops: list[OpTime]
    median_ns: float
    min_ns: float
    tiles: int


def profile(plan: Plan, feeds: Mapping[str, Array], *, rounds: int = 20, isa: str | None = None) -> PlanTimes:
    """Times every op of a plan, opaque ones as workers execute them. `feeds`: arrays by input name. PlanError where a tile fails."""
    runner, request = _runner(plan, isa)
    for info in plan.inputs:
        x = np.ascontiguousarray(feeds[info.name])
        request[info.offset : info.offset + x.nbytes] = x.view(np.uint8).reshape(-1)
    order = _order(plan)
    tile_op = plan.tiles["op"][order]
    idle = [i for i, k in enumerate(tile_op) if int(plan.ops["kernel"][k]) < 2]  # joins and the end: no work
    tiles = list(zip(order, _again(tile_op, idle), strict=True))
    spent = np.empty((rounds, len(order)), np.int64)
    clock, run_tile = time.perf_counter_ns, runner.run_tile
    for k in range(-1, rounds):  # the first round warms up
        row = []
        for t, again in tiles:
            begin = clock()
            status = run_tile(t, again)
            row.append(clock() - begin)
            if status:
                raise PlanError(f"{runner.name(t)}: kernel error {status}")
        if k >= 0:
            spent[k] = row
    spent -= int(np.median(spent[:, idle]))
    sums = np.zeros((rounds, len(plan.ops)), np.int64)
    for k in range(rounds):
        np.add.at(sums[k], tile_op, spent[k])
    ops = [OpTime(info, float(np.median(sums[:, i])), float(sums[:, i].min())) for i, info in enumerate(plan.info)]
    whole = [int(r[: len(plan.info)].sum()) for r in sums]
    return PlanTimes(ops, statistics.median(whole), min(whole), len(order))


def _again(tile_op: Array, idle: list[int]) -> list[bool]:
    """Whether each tile finds scratch memory as one of its own op left it, as with workers."""
    found, last = [False] * len(tile_op), -1
    for i in sorted(set(range(len(tile_op))) - set(idle)):
        found[i] = int(tile_op[i]) == last
        last = int(tile_op[i])
    return found


def _memory(nbytes: int) -> _mapping.Mapping:
    """As a runtime's segments are: in huge pages where there are any."""
    fd = os.memfd_create("profile")
    try:
        _mapping.reserve(fd, nbytes)
        return _mapping.Mapping(fd, nbytes, True)
    finally:
        os.close(fd)


def _runner(plan: Plan, isa: str | None) -> tuple[PlanRunner, Array]:
    """A runner with memory of its own, weights packed, and the request's region."""
    directory = plan.default_directory()[0]
    end = max((directory[item.key][1] + item.nbytes for item in plan.weights), default=1)
    weights = _memory(end)
    for item in plan.weights:
        at = directory[item.key][1]
        item.write(memoryview(weights)[at : at + item.nbytes])
    segment = plan.segment()
    arena = _memory(max(plan.arena_layout()["arena_bytes"], 1))
    request = _memory(max(plan.request_bytes, 1))
    return PlanRunner(segment, [weights], arena, request, isa, _Opaque().run), np.frombuffer(memoryview(request), np.uint8)


class _Opaque:
    """Executes opaque tiles."""

    def __init__(self) -> None:
        self._cache = opaque_tile.OpaqueCache()
        self._numbers: dict[bytes, int] = {}

    def run(self, blob: memoryview, outputs: list[Any], inputs: list[Any]) -> None:
        number = self._numbers.setdefault(bytes(blob), len(self._numbers))
        given = [x for x in inputs if x is not None]
        error, needed = opaque_tile.run_tile(self._cache, (0, number), blob, f"opaque op {number}", outputs=outputs, inputs=given)
        if error or needed:
            raise PlanError(error or f"opaque op {number}: its result takes {needed} bytes")


def _order(plan: Plan) -> list[int]:
    """Every tile, as one worker takes them. Among the children that a tile makes ready it is the one of lowest rank, else the oldest ready
    tile of the least depth."""
    rank, depth, missing = plan.tiles["rank"].tolist(), plan.tiles["depth"].tolist(), plan.parent_counts.tolist()
    begin, count, children = plan.tiles["children"].tolist(), plan.tiles["n_children"].tolist(), plan.children.tolist()
    ready = [(depth[t], k, t) for k, t in enumerate(plan.initial.tolist())]
    heapq.heapify(ready)
    order: list[int] = []
    pushed = len(ready)
    while ready:
        t = heapq.heappop(ready)[2]
        while True:
            order.append(t)
            fresh = []
            for c in children[begin[t] : begin[t] + count[t]]:
                missing[c] -= 1
                if not missing[c]:
                    fresh.append((rank[c], c))
            if not fresh:
                break
            t = min(fresh)[1]
            for _, c in fresh:
                if c != t:
                    heapq.heappush(ready, (depth[c], pushed, c))
                    pushed += 1
    return order
