"""Measures what one core of this machine reaches, once: `aspen-mp doctor --calibrate`. A few seconds.

The kernels are timed over the largest calls that real networks make of them (`aspen_mp.bench.kernels`), memory by reading buffers as
large as each cache, and scheduling by the workers' own counters over a network of tiny tiles.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterable
from math import prod
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from aspen_mp.bench.kernels.measure import Limits, Timing
    from aspen_mp.bench.kernels.shapes import KernelCall
    from aspen_mp.planner.rates import Calibration, Rates

Progress = Callable[[str, int, int], None]

NETWORKS: Final = ("resnet50", "bert_base", "mobilenet_v2", "densenet121", "yolov3")
CALLS: Final = 6
"""Calls of each kernel that are timed, those with most operations first."""
SECONDS: Final = 0.01
MIXED_WARM = 0.63
"""What reading and writing together reach of the rate of reading alone in the last-level cache."""
MIXED_COLD = 0.85
"""What kernels reach of the rate of reading one long buffer, in memory."""
MOST_READERS = 16
"""Cores that read memory together: fewer fill any bus."""
EDGE_NS: Final = 1700.0
"""What a tile costs besides scheduling and arithmetic: cold start of a kernel, uneven ends."""
ELEMENT_WORK: Final = 1 << 15
"""Fewer operations say nothing about the cost of one."""
TINY_OPS, TINY_RUNS = 200, 50


def calibrate(cpu: int | None = None, progress: Progress = lambda step, done, total: None) -> Calibration:
    """Measures on `cpu` (None: the first that this process may use) and returns the result; `planner.rates.save` keeps it."""
    import aspen_mp
    from aspen_mp.bench.kernels import measure
    from aspen_mp.planner import rates
    from aspen_mp.workers import _kernels

    allowed = os.sched_getaffinity(0)
    core = min(allowed) if cpu is None else cpu
    isa = _kernels.selected()
    os.sched_setaffinity(0, {core})
    try:
        progress("caches and memory", 0, 0)
        limits = measure.limits(isa)
        calls = list(_calls())
        timings = []
        for k, call in enumerate(calls):
            progress(call.kernel, k, len(calls))
            timings.append(measure.measure(call, isa, SECONDS, lambda: None, cold=False))
    finally:
        os.sched_setaffinity(0, allowed)
    progress("memory of all cores", 0, 0)
    together = max(measure.together(isa, sorted(allowed)[:MOST_READERS]), limits.read[measure.SIZES[-1]])
    progress("scheduling", 0, 0)
    schedule_ns = scheduling_ns(core)
    measured = {"peak": limits.gflops, "schedule_ns": schedule_ns, "read_together": together}
    measured |= {f"read_{size >> 10}k": rate for size, rate in limits.read.items()}
    found = fit(timings, limits, schedule_ns, together)
    return rates.Calibration(rates.FORMAT, rates.processor(), isa, aspen_mp.__version__, measured, found)


def fit(timings: list[Timing], limits: Limits, schedule_ns: float, together: float) -> Rates:
    """The cost model's rates that fit what was measured. A kernel that was not measured keeps the built-in figure. `together`: GB/s of
    memory that all cores read."""
    from aspen_mp.bench.kernels.measure import SIZES
    from aspen_mp.planner.rates import BUILT_IN, Rates

    cold, warm = MIXED_COLD * limits.read[SIZES[-1]], MIXED_WARM * limits.read[SIZES[-2]]
    found: dict[str, list[Timing]] = {}
    for timing in timings:
        found.setdefault(timing.call.kernel, []).append(timing)
    matrix = [_matrix_rate(t) for kernel in ("GEMM", "CONV") for t in found.get(kernel, ())]
    depthwise = [_depthwise_rate(t, warm) for t in found.get("DWCONV", ())]
    elements = {}
    for kernel in ("POOL", "NORM", "SOFTMAX", "REDUCE", "COPY", "CAST", "RESIZE"):
        costs = [max(0.01, (t.warm - t.call.bytes / warm) / t.call.flops) for t in found.get(kernel, ()) if t.call.flops >= ELEMENT_WORK]
        if costs:
            elements[kernel] = statistics.median(costs)
    return Rates(
        matrix=statistics.median(matrix) if matrix else BUILT_IN.matrix,
        depthwise=statistics.median(depthwise) if depthwise else BUILT_IN.depthwise,
        cold=cold,
        warm=warm,
        together=MIXED_COLD * together,
        tile_ns=EDGE_NS + schedule_ns,
        element_ns=elements,
    )


def _matrix_rate(t: Timing) -> float:
    """Multiply-adds a nanosecond, without what writing the output costs, and with those that rows beside whole blocks would be; of
    Strassen's seven products, those of eight."""
    from aspen_mp.planner.cost import OUTPUT_NS
    from aspen_mp.planner.tilecost import ROW_BLOCK, ROWS_LOST, SEVEN

    eighths = SEVEN * 8 / 7 if t.call.kernel == "GEMM" and len(t.call.operands) > 7 else 1.0
    return eighths * (1 + ROWS_LOST / ROW_BLOCK) * t.call.flops / max(t.warm - OUTPUT_NS * _outputs(t), 0.5 * t.warm)


def _depthwise_rate(t: Timing, warm: float) -> float:
    """The same where memory traffic comes on top."""
    from aspen_mp.planner.cost import DEPTHWISE_OUT_NS

    return t.call.flops / max(t.warm - t.call.bytes / warm - DEPTHWISE_OUT_NS * _outputs(t), 0.3 * t.warm)


def _outputs(t: Timing) -> int:
    out = t.call.operands[0]
    return prod(out.dims) if out is not None else 1


def _calls() -> Iterable[KernelCall]:
    from aspen_mp.bench.kernels import shapes

    found: dict[str, list[KernelCall]] = {}
    for network in NETWORKS:
        for call in shapes.read(network):
            found.setdefault(call.kernel, []).append(call)
    for group in found.values():
        yield from sorted(group, key=lambda call: -call.flops)[:CALLS]


def scheduling_ns(cpu: int) -> float:
    """What scheduling a tile costs a worker, by its own counters."""
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
