"""`python -m aspen_mp.bench.profile NETWORK`: where the time of a network goes, op by op.

Plans a network of the zoo and runs its tiles one by one in this process, in the order in which a single worker would take them, with the
real kernels on warm memory. No worker, no queue: what the sum lacks to the time of a request is scheduling, idling and submission.
"""

from __future__ import annotations

import argparse
import heapq
import os
import statistics
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from aspen_mp.bench import models
from aspen_mp.planner import api
from aspen_mp.planner.plan import OpInfo, Plan
from aspen_mp.shm import _mapping
from aspen_mp.workers._dse import PlanRunner

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class OpTime:
    """An op of the plan: nanoseconds of all its tiles together, median and minimum over rounds, without the cost of taking the time."""

    info: OpInfo
    median_ns: float
    min_ns: float


@dataclass(frozen=True, slots=True)
class Profile:
    """``ops``: in the order of the plan. ``round_ns``: median and minimum of a whole round. ``tiles``: with joins."""

    ops: list[OpTime]
    median_ns: float
    min_ns: float
    tiles: int


def profile(plan: Plan, feeds: Mapping[str, Array], *, rounds: int = 20, isa: str | None = None) -> Profile:
    """Times every op of a static plan without opaque nodes. `feeds`: arrays by input name."""
    if opaque := [i.name for i in plan.info if i.opaque]:
        raise ValueError(f"no kernels for {', '.join(opaque)}")
    runner, request = _runner(plan, isa)
    for info in plan.inputs:
        x = np.ascontiguousarray(feeds[info.name])
        request[info.offset : info.offset + x.nbytes] = x.view(np.uint8).reshape(-1)
    order = _order(plan)
    tile_op = plan.tiles["op"][order]
    spent = np.empty((rounds, len(order)), np.int64)
    clock, run_tile = time.perf_counter_ns, runner.run_tile
    for k in range(-1, rounds):  # the first round warms up
        row = []
        for t in order:
            begin = clock()
            status = run_tile(t)
            row.append(clock() - begin)
            if status:
                raise RuntimeError(f"{runner.name(t)}: kernel error {status}")
        if k >= 0:
            spent[k] = row
    idle = [i for i, t in enumerate(order) if int(plan.ops["kernel"][plan.tiles["op"][t]]) < 2]  # joins and the end: no work
    spent -= int(np.median(spent[:, idle]))
    sums = np.zeros((rounds, len(plan.ops)), np.int64)
    for k in range(rounds):
        np.add.at(sums[k], tile_op, spent[k])
    ops = [OpTime(info, float(np.median(sums[:, i])), float(sums[:, i].min())) for i, info in enumerate(plan.info)]
    whole = [int(r[: len(plan.info)].sum()) for r in sums]
    return Profile(ops, statistics.median(whole), min(whole), len(order))


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
    return PlanRunner(segment, [weights], arena, request, isa), np.frombuffer(memoryview(request), np.uint8)


def _order(plan: Plan) -> list[int]:
    """Every tile, as one worker takes them: of the children that a tile makes ready the one of lowest rank, else the oldest ready tile of
    the least depth."""
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


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m aspen_mp.bench.profile", description=__doc__)
    parser.add_argument("network", help=f"of the zoo: {', '.join(models.names(extra=True))}")
    parser.add_argument("--workers", type=int, default=1, help="tiles are sized for so many (default: 1)")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--seq", type=int, default=128, help="tokens, for networks that read text")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--top", type=int, default=40, help="ops to show, slowest first (default: 40; 0: all in order)")
    args = parser.parse_args(argv)
    model = models.build(args.network, batch=args.batch, seq=args.seq)
    feeds = models.inputs(model)
    bindings = [{name: api.Binding(x.dtype, x.shape, None) for name, x in feeds.items()}]
    stage = api.plan_stage(model, bindings, workers=args.workers)
    if stage.plan is None:
        parser.error(f"{args.network} needs values of {stage.needs} before it can be planned")
    show(profile(stage.plan, feeds, rounds=args.rounds), args.top, Console(width=180))
    return 0


def show(result: Profile, top: int, console: Console) -> None:
    ops = sorted(result.ops, key=lambda o: -o.median_ns)[:top] if top else result.ops
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("op", no_wrap=True, max_width=70)
    for column in ("kernel", "tile", "tiles", "µs", "min", "share", "GFLOP/s", "GB/s", "predicted"):
        table.add_column(column, justify="left" if column in {"kernel", "tile"} else "right", no_wrap=True)
    for op in ops:
        i, ns = op.info, max(op.median_ns, 1.0)
        table.add_row(
            f"{i.name} {i.op}",
            i.kernel,
            "×".join(map(str, i.tile_shape)),
            str(i.tiles),
            f"{ns / 1e3:.1f}",
            f"{op.min_ns / 1e3:.1f}",
            f"{ns / result.median_ns:.1%}",
            f"{i.flops / ns:.1f}",
            f"{i.bytes / ns:.1f}",
            f"{i.predicted_ms * 1e3:.1f}",
        )
    console.print(table)
    kernels: dict[str, tuple[float, float, int]] = {}
    for op in result.ops:
        ns, flops, n = kernels.get(op.info.kernel, (0.0, 0.0, 0))
        kernels[op.info.kernel] = (ns + op.median_ns, flops + op.info.flops, n + op.info.tiles)
    for kernel, (ns, flops, n) in sorted(kernels.items(), key=lambda item: -item[1][0]):
        console.print(f"{kernel:12} {ns / 1e6:8.3f} ms  {ns / result.median_ns:6.1%}  {flops / max(ns, 1):7.1f} GFLOP/s  {n} tiles")
    console.print(f"all          {result.median_ns / 1e6:8.3f} ms, least {result.min_ns / 1e6:.3f} ms, {result.tiles} tiles")


if __name__ == "__main__":
    sys.exit(main())
