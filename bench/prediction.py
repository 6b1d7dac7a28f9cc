"""Does the planner predict what happens? `aspen-mp bench prediction`: the simulated latency of networks beside the measured one.

The plan is the one that the runtime makes, tiles searched (`local_plans.py`); it is simulated on the cores that its workers have. Beside
the latencies stand their causes: the time in kernels and in scheduling that the workers count themselves, each a request and summed over
workers.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psutil

import aspen_mp
from aspen_mp import config
from aspen_mp.bench import models
from aspen_mp.bench.figures import states
from aspen_mp.bench.peers.cases import Case
from aspen_mp.bench.peers.process import busy_seconds
from aspen_mp.planner.cost import op_cost
from aspen_mp.planner.cost.machine import Core, Machine
from aspen_mp.planner.simulation.simulate import Outcome, of_plan, simulate
from aspen_mp.tools.local_plans import calibrated, machine_of, planned
from aspen_mp.workers import topology

if TYPE_CHECKING:
    from onnx import ModelProto

BAR = 0.10
"""How far a prediction may be off."""
WARM_UP = 3
LEAST_REQUESTS = 2
FOREIGN_LIMIT = 0.1
"""Cores that other processes may use in a turn that counts."""
REQUESTS = 6
"""Simulated, one after the other."""


@dataclass(frozen=True, slots=True)
class Row:
    """A network on so many workers. Milliseconds a request: `predicted_ms` and the median and least measured latency; time in kernels and
    in scheduling, summed over workers. `foreign`: what other processes used meanwhile, in cores, at most in a turn that counts; `far`:
    nanoseconds that a byte took longer that another of the cores had written (`states.probe`), the middle of what was measured around these
    turns. `error`: how far the prediction is off the median, as a share of it."""

    case: str
    workers: int
    tiles: int
    predicted_ms: float
    median_ms: float
    least_ms: float
    requests: int
    foreign: float
    far: float
    predicted_kernel_ms: float
    kernel_ms: float
    predicted_schedule_ms: float
    schedule_ms: float

    @property
    def error(self) -> float:
        return self.predicted_ms / self.median_ms - 1.0


@dataclass(frozen=True, slots=True)
class _Turn:
    """Requests one after the other: latencies in ms, what other processes used in cores, what the workers counted meanwhile; `probes`:
    before and after them."""

    latencies: list[float]
    foreign: float
    probes: tuple[float, float]
    kernel_ms: float
    schedule_ms: float


def _turns(runtime: aspen_mp.Runtime, request: Callable[[], Any], turns: int, requests: int, seconds: float) -> list[_Turn]:
    """Turns of at least `requests` requests and `seconds`: the quietest `turns` of twice as many if others use the machine meanwhile."""
    found: list[_Turn] = []
    workers = runtime.workers
    own = [psutil.Process(), *(psutil.Process(worker["pid"]) for worker in workers)]
    cores = sorted(os.sched_getaffinity(0))
    cpus = [worker["cpu"] for worker in workers]
    probed = states.probe(cpus)

    def used() -> float:
        return float(sum(times.user + times.system for times in (process.cpu_times() for process in own)))

    while len(found) < 2 * turns and sum(turn.foreign <= FOREIGN_LIMIT for turn in found) < turns:
        before, busy, mine = runtime.workers, busy_seconds(cores), used()
        began = time.perf_counter()
        latencies: list[float] = []
        while len(latencies) < requests or time.perf_counter() < began + seconds:
            begin = time.perf_counter_ns()
            request()
            latencies.append((time.perf_counter_ns() - begin) * 1e-6)
        wall = time.perf_counter() - began
        foreign = max(busy_seconds(cores) - busy - (used() - mine), 0.0) / wall
        after = runtime.workers
        kernels, scheduling = (
            sum(b[what] - a[what] for a, b in zip(before, after, strict=True)) * 1e-6 / len(latencies)
            for what in ("kernel_ns", "schedule_ns")
        )
        before_it, probed = probed, states.probe(cpus)
        found.append(_Turn(latencies, foreign, (before_it, probed), kernels, scheduling))
    return sorted(found, key=lambda turn: turn.foreign)[:turns]


def measure(case: Case, model: ModelProto, workers: int, rounds: int, seconds: float) -> Row:
    """Predicts and measures one network, built already: `rounds` turns of requests one at a time, each at least `seconds` long."""
    feeds = models.inputs(model)
    with calibrated():
        # Measured is the plan that is predicted: it is not made again meanwhile for cores that give less for a while.
        with aspen_mp.Runtime(workers=workers, profile=config.Profile(models=config.Models(replan=False))) as runtime:
            loaded = runtime.load(model)
            for _ in range(WARM_UP):
                loaded.run(feeds)
            cpus = [worker["cpu"] for worker in runtime.workers]
            plan = planned(model, feeds, machine_of(cpus))
            turns = _turns(runtime, lambda: loaded.run(feeds), rounds, LEAST_REQUESTS, seconds)
        there = topology.read().by_cpu
        cores = [Core(c.speed, c.rank, c.l3, c.node) for c in (there[cpu] for cpu in cpus)]
        out = predict(of_plan(plan), Machine.of(cores, op_cost.rates()))

    taken = [ms for turn in turns for ms in turn.latencies]
    return Row(
        case=case.label,
        workers=workers,
        tiles=plan.n_tiles,
        predicted_ms=out.latency_ns * 1e-6,
        median_ms=statistics.median(taken),
        least_ms=min(taken),
        requests=len(taken),
        foreign=max(turn.foreign for turn in turns),
        far=statistics.median(value for turn in turns for value in turn.probes),
        predicted_kernel_ms=float(out.busy_ns.sum()) * 1e-6 / REQUESTS,
        kernel_ms=statistics.median(turn.kernel_ms for turn in turns),
        predicted_schedule_ms=float(out.schedule_ns.sum()) * 1e-6 / REQUESTS,
        schedule_ms=statistics.median(turn.schedule_ms for turn in turns),
    )


def predict(tiles: Any, there: Machine) -> Outcome:
    """One request after the other, as they are measured."""
    return simulate(tiles, there, requests=REQUESTS)


def run(cases: Sequence[Case], workers: Sequence[int], rounds: int, seconds: float, say: Callable[[str], None]) -> Iterable[Row]:
    """A row for each network and number of workers."""
    for case in cases:
        model = models.build(case.network, batch=case.batch, seq=case.seq, **case.options)
        for n in workers:
            say(f"{case.label}, {n} workers")
            yield measure(case, model, n, rounds, seconds)


def verdict(rows: Sequence[Row]) -> str:
    """The result in one line."""
    good = sum(abs(row.error) <= BAR for row in rows)
    worst = max(rows, key=lambda row: abs(row.error))
    return (
        f"{good} of {len(rows)} predictions within {BAR:.0%}; median error {statistics.median(abs(r.error) for r in rows):.1%}, "
        f"worst {worst.error:+.1%} ({worst.case}, {worst.workers} workers)"
    )


HEADINGS = [
    "network",
    "workers",
    "tiles",
    "predicted ms",
    "median",
    "least",
    "error",
    "kernels, predicted",
    "kernels",
    "scheduling, predicted",
    "scheduling",
    "foreign",
    "another's byte, ns",
]


def cells(row: Row) -> list[str]:
    """A row of the table under `HEADINGS`."""
    numbers = [row.predicted_ms, row.median_ms, row.least_ms]
    parts = [row.predicted_kernel_ms, row.kernel_ms, row.predicted_schedule_ms, row.schedule_ms]
    return [
        row.case,
        str(row.workers),
        str(row.tiles),
        *(f"{x:.2f}" for x in numbers),
        f"{row.error:+.1%}",
        *(f"{x:.2f}" for x in (*parts, row.foreign)),
        f"{row.far:.3f}",
    ]
