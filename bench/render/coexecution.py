"""Tables of several networks at once."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from aspen_mp.bench.coexecution.contention import ContentionResult
from aspen_mp.bench.coexecution.coplans import SERIAL, CoplansResult
from aspen_mp.bench.coexecution.deadlines import DeadlinesResult
from aspen_mp.bench.coexecution.dynamic import DynamicResult
from aspen_mp.bench.coexecution.priority import PriorityResult
from aspen_mp.bench.coexecution.together import Group, TogetherResult
from aspen_mp.bench.models.synthetic.phases import KINDS
from aspen_mp.bench.peers.rounds import OURS
from aspen_mp.bench.render import networks
from aspen_mp.bench.render.markdown import number, table
from aspen_mp.bench.render.published import Published

INTRODUCTION = (
    "Each engine holds all networks in one process. aspen-mp has one runtime for all of them. ONNX Runtime has a session for each network: "
    "as it is, with quiet threads that do not spin, and with one pool of threads for all sessions. OpenVINO has a compiled model for each "
    "network, with one stream on all cores, or with a stream for each core. Neither knows deadlines or, on CPUs, priorities."
)
"""The text above the tables."""
ENGINES = {
    "onnxruntime": "ONNX Runtime",
    "onnxruntime-quiet": "ONNX Runtime, quiet threads",
    "onnxruntime-shared": "ONNX Runtime, shared pool",
    "openvino": "OpenVINO",
    "openvino-streams": "OpenVINO, streams",
}
"""How tables call engines."""


def engine(label: str) -> str:
    """The name that people would say."""
    return ENGINES.get(label, label)


def together(item: Published) -> str:
    """Each group of networks: time at once and one after the other, beside the bound."""
    result: TogetherResult = item.record.result
    labels = list(dict.fromkeys(entry.label for group in result.groups for entry in group.entries))
    text = (
        "Each network has a client that runs its requests one after the other. The table shows the time until all have ended, in units of "
        "the time of the same requests one network after the other, each on all cores. The bound is the largest of three times: all "
        "requests on one core, by the number of cores; to read weights that no cache holds; the longest client alone."
    )
    rows = [
        [
            _counted(group.networks, group.counts),
            number(group[OURS].ms) if OURS in group else "–",
            *(f"{group[label].ratio:.3f}" if label in group else "–" for label in labels),
            "–" if group.least is None else f"{group.least:.3f}",
            _fastest(group),
        ]
        for group in result.groups
    ]
    columns = ["networks", f"{OURS} at once, ms", *map(engine, labels), "bound", "ours / fastest other at once"]
    return f"{text}\n\n{table(columns, rows)}"


def _counted(names: Sequence[str], counts: Sequence[int]) -> str:
    parts = zip(counts, names, strict=True)
    return " + ".join(f"{count} × {networks.name(network)}" if count > 1 else networks.name(network) for count, network in parts)


def _fastest(group: Group) -> str:
    ratios = [1 / entry.of_ours for entry in group.entries if entry.of_ours]
    return f"{max(ratios):.2f}" if ratios else "–"


def priority(item: Published) -> str:
    """Each scene: latency of urgent requests alone and beside the load, and what the load keeps."""
    result: PriorityResult = item.record.result
    parts = [
        "Beside is what an urgent request takes while the load is there. The last column is the load's throughput, in units of its own in "
        "the time that urgent requests leave if they run alone. It exceeds 1 where urgent requests wait."
    ]
    columns = ["engine", "alone, ms", "beside, ms", "p99 beside, ms", "median by alone", "p99 by the median alone", "load keeps"]
    for found in result.scenes:
        scene = found.scene
        rows = [
            [
                *(engine(e.label), number(e.alone.at(0.5)), number(e.beside.at(0.5)), number(e.beside.at(0.99))),
                *(f"{e.p50:.2f}", f"{e.p99:.2f}", f"{e.kept:.2f}"),
            ]
            for e in found.entries
        ]
        name = f"{networks.name(scene.urgent)} every {scene.every_ms:g} ms beside {scene.in_flight} × {networks.name(scene.load)}"
        parts.append(f"### {name}\n\n{table(columns, rows)}")
    return "\n\n".join(parts)


def deadlines(item: Published) -> str:
    """The share of requests in time, by load."""
    result: DeadlinesResult = item.record.result
    loads = sorted({point.load for curve in result.curves for point in curve.points})
    times = zip(result.networks, result.alone_ms, result.deadlines_ms, strict=True)
    mix = table(["network", "alone, ms", "deadline, ms"], [[networks.name(name), number(ms), number(limit)] for name, ms, limit in times])
    text = (
        "Requests come at random times, each network for the same share of the machine. At a load of 1, aspen-mp's times alone fill the "
        "whole time. The second table shows the share of all requests that ended in time."
    )
    rows = [
        [engine(curve.label), *(f"{point.share:.1%}" for point in sorted(curve.points, key=lambda point: point.load))]
        for curve in result.curves
    ]
    parts = [text, mix, table(["engine", *(f"load {load:g}" for load in loads)], rows)]
    taken = [(curve, point) for curve in result.curves for point in curve.points if point.refused]
    if taken:
        refused = [
            [f"{point.load:g}", f"{point.refused / point.requests:.1%}", f"{point.kept:.1%}", number(point.refusal.p99_ms)]
            for _, point in taken
        ]
        parts.append(table(["load", f"refused by {OURS}", "in time of those taken", "refused within, p99, ms"], refused))
    return "\n\n".join(parts)


def dynamic(item: Published) -> str:
    """Median latency of each network in each phase."""
    result: DynamicResult = item.record.result
    labels = [course.label for course in result.courses]
    rows = []
    for phase, names in enumerate(result.phases):
        for network in names:
            lines = [next(line for line in c.lines if (line.phase, line.network) == (phase, network)) for c in result.courses]
            rows.append([phase + 1, networks.name(network), *(f"{number(x.latency.p50_ms)} ({number(x.latency.p99_ms)})" for x in lines)])
    text = f"Each phase takes {result.seconds:g} s. The table shows median latencies, and the 99th percentiles in brackets, in ms."
    return f"{text}\n\n{table(['phase', 'network', *map(engine, labels)], rows)}"


def contention(item: Published) -> str:
    """Slowdowns of phases in pairs, and two networks of alternating phases."""
    result: ContentionResult = item.record.result
    kinds = [kind.kind for kind in result.kinds]
    rows = [
        [KINDS[k.kind], number(k.ms), f"{k.gb_s:.1f}", *(f"{result.slowdown(k.kind, beside):.2f}" for beside in kinds)]
        for k in result.kinds
    ]
    text = (
        "Each phase runs on a core, beside one on another core. The columns at the right show its time by the time alone, beside each kind "
        "in the order of the rows."
    )
    parts = [text, table(["phase", "alone, ms", "weights read, GB/s", *(f"beside {k}" for k in range(1, len(kinds) + 1))], rows)]
    first = result.meetings[0].ms if result.meetings else 1.0
    ways = [[meeting.way, number(meeting.ms), f"{meeting.ms / first:.3f}"] for meeting in result.meetings]
    parts.append("Two networks whose phases of arithmetic and of memory alternate:")
    parts.append(table(["how they meet", "ms until both have ended", "by the first row"], ways))
    predicted = [pair for pair in result.pairs if pair.predicted is not None]
    if predicted:
        error = median(abs(pair.predicted / pair.slowdown - 1) for pair in predicted if pair.predicted)
        parts.append(f"The planner's model of contention predicts slowdowns with a median error of {error:.1%}.")
    return "\n\n".join(parts)


def coplans(item: Published) -> str:
    """Predicted gains of plans of several networks, by mix and machine."""
    result: CoplansResult = item.record.result
    text = (
        f"Predictions, not measurements: the greatest latency of all networks, with the built-in rates of a Zen 4 core. Each search had "
        f"{result.seconds:g} s. No schedule of the model takes less than the bound. The best naive schedule is the best of three: one "
        "network after the other, each on cores of its own, or all at once with equal shares."
    )
    rows = [
        [
            _counted(gain.networks, gain.times),
            *(gain.cores, number(gain.naive_ms[SERIAL]), number(gain.ms), number(gain.bound_ms)),
            *(f"{gain.of_serial:.1%}", f"{gain.of_best:.1%}"),
        ]
        for gain in result.gains
    ]
    columns = [
        "networks",
        "cores",
        "one after the other, ms",
        "plan, ms",
        "bound, ms",
        "less than one after the other",
        "less than the best naive",
    ]
    return f"{text}\n\n{table(columns, rows)}"
