"""Measures what one core of this machine reaches, once: `aspen-mp doctor --calibrate`. About 20 seconds.

The kernels are timed where they are used, over the tiles of whole networks (`measure.py`). Memory is measured by reading buffers as large
as each cache, and contention on pairs of cores (`pair_contention.py`). Scheduling is measured by the workers' own counters over a network
of tiny tiles.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aspen_mp.planner.cost.rates import Calibration, Rates
    from aspen_mp.tools.core_limits import CoreLimits
    from aspen_mp.tools.measure import OpTime

Progress = Callable[[str, int, int], None]

NETWORKS: Final[Mapping[str, Mapping[str, Any]]] = {
    "resnet50": {},
    "squeezenet1_1": {},
    "mobilenet_v2": {},
    "inception_v3": {},
    "unet": {},
    "bert_base": {"layers": 2},
}
"""Networks of the zoo that call the kernels, and their options."""
ROUNDS: Final = 10
MOST_WORKERS: Final = 8
"""The most cores of the runtime whose tiles are measured."""
MATRIX: Final = 0.95
"""The share of the peak of multiply-adds that kernels reach where nothing else costs anything; factors say the rest."""
MIXED_WARM: Final = 0.63
"""The rate of reading and writing together, as a share of the rate of reading alone, between tiles."""
MIXED_COLD: Final = 0.85
"""The rate of kernels, as a share of the rate of reading one long buffer, in memory."""
FAR: Final = 1.5
"""The cost of another core's bytes for tiles, beside a plain loop over them: tiles read lines in less even orders."""
MOST_READERS: Final = 16
"""Cores that read memory together: fewer fill any bus."""
READINGS: Final = 4
"""As often, because others may use the memory, too."""
EDGE_NS: Final = 1700.0
"""The cost of a tile besides scheduling and arithmetic: cold start of a kernel, uneven ends."""
WAITS: Final = 1.05
"""An op that takes no longer than this multiple of its memory time says nothing about a kernel that hides that time."""
FACTORS: Final = (0.1, 10.0)
"""Factors outside of this are not those of kernels that models describe."""
LEAST_NS: Final = 2000.0
"""The least prediction of an op, for the op to count."""
TINY_OPS, TINY_RUNS = 200, 50


def calibrate(cpu: int | None = None, progress: Progress = lambda step, done, total: None) -> Calibration:
    """Measures on `cpu` (None: the first that this process may use) and returns the result; `planner.rates.save` keeps it."""
    import aspen_mp
    from aspen_mp.planner.cost import rates
    from aspen_mp.tools import core_limits, pair_contention
    from aspen_mp.workers import _isa, _kernels, topology

    allowed = os.sched_getaffinity(0)
    core = min(allowed) if cpu is None else cpu
    isa = _kernels.selected()
    progress("caches and memory", 0, 0)
    with _on(core):
        limits = core_limits.limits(isa)
    cores = sorted(allowed)[:MOST_READERS]
    together = max(core_limits.together(isa, cores) for _ in range(READINGS))
    other = neighbour(core, topology.read().by_cpu[core].siblings, allowed)
    far = 0.0 if other is None else core_limits.far(isa, [core, other])
    progress("contention", 0, 0)
    pairs = [] if other is None else pair_contention.pairs(isa, [core, other], limits.read[core_limits.SIZES[-1]], limits.gflops)
    progress("scheduling", 0, 0)
    schedule_ns = scheduling_ns(core)
    with _on(core):
        limits = better(limits, core_limits.limits(isa))
    together = max(together, limits.read[core_limits.SIZES[-1]])
    transforms = rates.built_in(_isa.vectors(), rates.vendor())[0].transforms
    plain = without_kernels(limits, schedule_ns, together, far, transforms)
    plain = contended(plain, pairs, limits.read[core_limits.SIZES[-1]] / together)
    times: list[OpTime] = []
    for k, network in enumerate(NETWORKS):
        progress(network, k, len(NETWORKS))
        times += op_times(network, plain, min(len(allowed), MOST_WORKERS), core)
    measured = {"peak": limits.gflops, "schedule_ns": schedule_ns, "read_together": together, "far": far}
    measured |= {f"read_{size >> 10}k": rate for size, rate in limits.read.items()}
    return rates.Calibration(rates.FORMAT, rates.processor(), isa, aspen_mp.__version__, measured, fit(times, plain))


def better(one: CoreLimits, other: CoreLimits) -> CoreLimits:
    """The best of both, of each limit: for a second or two others may leave a core half of what it has."""
    from aspen_mp.tools.core_limits import CoreLimits

    return CoreLimits(one.isa, max(one.gflops, other.gflops), {size: max(rate, other.read[size]) for size, rate in one.read.items()})


def neighbour(cpu: int, siblings: Sequence[int], allowed: Iterable[int]) -> int | None:
    """Another CPU that has caches of its own, not those of `cpu`, whose core's CPUs are `siblings`; None where there is none."""
    return next((other for other in sorted(allowed) if other != cpu and other not in siblings), None)


def without_kernels(limits: CoreLimits, schedule_ns: float, together: float, far: float = 0.0, transforms: float = 1.0) -> Rates:
    """The rates as far as no kernel has been timed. `together`: GB/s of memory that all cores read. `far`: as of `core_limits.far`.
    `transforms`: as built in for such cores, it is not measured."""
    from aspen_mp.control.planning.local_rates import cached, own
    from aspen_mp.planner.cost.rates import Rates
    from aspen_mp.tools.core_limits import BETWEEN_TILES, SIZES

    return Rates(
        matrix=MATRIX * limits.gflops,
        cold=MIXED_COLD * limits.read[SIZES[-1]],
        warm=MIXED_WARM * limits.read[BETWEEN_TILES],
        together=MIXED_COLD * together,
        tile_ns=EDGE_NS + schedule_ns,
        cached=cached(),
        own=own(),
        far=FAR * far,
        transforms=transforms,
    )


def contended(plain: Rates, pairs: Sequence[Sequence[float]], one: float) -> Rates:
    """`plain` with the slowdowns of pairs of cores (`pair_contention.pairs`). `one`: what one core reads, of what all read together."""
    import msgspec

    from aspen_mp.tools.pair_contention import PARTS

    if not pairs:
        return plain
    return msgspec.structs.replace(plain, contended_at=[min(one, 1.0) * part for part in PARTS], contention=[list(row) for row in pairs])


def op_times(network: str, plain: Rates, workers: int, core: int) -> list[OpTime]:
    """The times of a network's ops on a core, beside the predictions by `plain`."""
    from aspen_mp.client import named_models
    from aspen_mp.planner.cost.machine import Machine
    from aspen_mp.tools.local_plans import counting_with, planned
    from aspen_mp.tools.measure import profile

    zoo = named_models.collection("zoo")
    model = zoo.build(network, **NETWORKS[network])
    feeds = zoo.inputs(model)
    with counting_with(plain):
        plan = planned(model, feeds, Machine.uniform(workers, plain))
    with _on(core):
        return profile(plan, feeds, rounds=ROUNDS).ops


def fit(times: Iterable[OpTime], plain: Rates) -> Rates:
    """`plain` with the factors of the kernels whose ops were timed: by how much they took longer, all together, than it predicts."""
    import msgspec

    from aspen_mp.planner.ops.table import SPECS

    taken: dict[str, float] = {}
    predicted: dict[str, float] = {}
    for op in times:
        kernel, ns = op.info.kernel, op.info.predicted_ms * 1e6
        found = SPECS.get(kernel.split()[0])
        waits = found is not None and found.cost.hides and ns < WAITS * op.info.bytes / plain.cold
        if ns >= LEAST_NS and not waits and not op.info.opaque:
            taken[kernel] = taken.get(kernel, 0.0) + op.median_ns
            predicted[kernel] = predicted.get(kernel, 0.0) + ns
    low, high = FACTORS
    return msgspec.structs.replace(plain, factors={k: min(max(taken[k] / predicted[k], low), high) for k in sorted(taken)})


@contextmanager
def _on(core: int) -> Iterator[None]:
    """This thread runs on a core for a while."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def scheduling_ns(cpu: int) -> float:
    """The time of scheduling a tile for a worker, by its own counters."""
    import numpy as np
    from onnx import TensorProto, helper

    import aspen_mp

    names = ["x", *(f"t{k}" for k in range(TINY_OPS - 1)), "y"]
    nodes = [helper.make_node(("Sigmoid", "Tanh")[k % 2], [names[k]], [names[k + 1]]) for k in range(TINY_OPS)]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [64]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "tiny", values[:1], values[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    with aspen_mp.Runtime(cores=[cpu]) as runtime:
        loaded = runtime.load(model)
        feeds = {"x": np.ones(64, np.float32)}
        loaded.run(feeds)
        (before,) = runtime.workers
        for _ in range(TINY_RUNS):
            loaded.run(feeds)
        (after,) = runtime.workers
    return float((after["schedule_ns"] - before["schedule_ns"]) / max(after["tiles"] - before["tiles"], 1))
