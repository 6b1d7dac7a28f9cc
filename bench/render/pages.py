"""The pages of docs/benchmarks, and the block of README.md, as text."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from aspen_mp.bench.figures import stacks as figure
from aspen_mp.bench.figures.compare import Comparison
from aspen_mp.bench.load import Spread
from aspen_mp.bench.render import charts, coexecution, networks, services, streams, torch
from aspen_mp.bench.render.markdown import number, page, table
from aspen_mp.bench.render.published import Published, of
from aspen_mp.planner.job.options import ACCURACIES

Body = Callable[[Published], str]

STACK_TABLE = (
    "Layers are nodes of the ONNX graph. Optimisable are pooling, normalisation, activation and other element-wise layers. "
    "Their share of the time is of a plan in which every layer runs by itself. Stacks are groups of layers that run depth first, "
    "and their share is of the plan that a runtime makes. Both shares are predicted for one core."
)
"""The text above the table of layers."""
HOW = """\
- All engines of a table run in one command, on the same cores, with the same number of pinned threads.
- They compute in float32, unless a row says otherwise.
- They take turns, round by round. A round in which other programs used the cores does not count.
- Times are medians of the rounds' medians. A ratio is the median of the rounds' ratios; brackets hold the lowest and the highest round.
- A ratio below 1 means that aspen-mp is faster.
- Networks have random weights, which changes no time, and the sizes of the published ones.
- Every figure comes from a record, a JSON file that also holds the versions, the machine and the command that made it."""


def section(item: Published, body: str) -> str:
    """A record with its heading, chart, and where it comes from."""
    record = item.record
    picture = f"![Chart of the table below]({charts.name(item)})\n\n" if charts.draw(item) else ""
    made = [record.date[:10], f"aspen-mp {record.version}" + (f" at {record.commit}" if record.commit else "")]
    made += [f"{name} {version}" for name, version in record.packages.items() if name in networks.ENGINES]
    source = f"Record: [{item.folder}/{item.file.name}](../../{item.link}) ({', '.join(made)}). The command that made it:"
    command = textwrap.fill(record.command, 110, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    command = command.replace("\n", " \\\n")
    heading = f"## {record.machine.name}: `bench {record.benchmark}`"
    return f"{heading}\n\n{picture}{body}\n\n{source}\n\n```text\n{command}\n```"


def scaling(item: Published) -> str:
    """Speedup and parallel fraction by engine and cores."""
    parts = []
    for result in item.record.result:
        rows = [
            [
                p.engine,
                p.cores,
                number(p.ms),
                number(p.min_ms),
                f"{p.speedup:.2f}",
                "" if p.p_e is None else f"{p.p_e:.3f}",
                f"{p.speedup_min:.2f}",
            ]
            for p in sorted(result.points, key=lambda p: (p.engine != "aspen-mp", p.engine, p.cores))
        ]
        columns = ["engine", "cores", "ms", "fastest, ms", "speedup", "parallel fraction", "speedup of the fastest"]
        parts.append(f"### {networks.name(result.case)}\n\n{table(columns, rows)}")
    return "\n\n".join(parts)


def hetero(item: Published) -> str:
    rows = [
        [networks.name(result.case), p.engine, f"{p.wanted:g}", number(p.fast), number(p.both), f"{p.fraction:.2f}"]
        for result in item.record.result
        for p in result.points
    ]
    return table(["network", "engine", "speed of the slow core", "fast core, requests/s", "both, requests/s", "share of the sum"], rows)


def comparison(item: Published) -> str:
    """Variants of one engine beside a reference, the first row of each network."""
    results: list[Comparison] = item.record.result
    rows = [[networks.name(r.case), e.label, e.cores, number(e.median_ms), f"{e.ratio:.3f}"] for r in results for e in r.entries]
    return table(["network", "variant", "cores", "ms", "time / first row's"], rows)


def stacks(item: Published) -> str:
    """Chains by their length, small networks, and layers of networks: what of these was measured."""
    found: figure.StacksResult = item.record.result
    parts = [f"### Blocks on {chain.name}\n\n{_against([(p.blocks, p.found) for p in chain.points], 'blocks')}" for chain in found.chains]
    if found.networks:
        parts.append(f"### Networks\n\n{_against([(networks.name(r.case), r) for r in found.networks], 'network')}")
    if found.layers:
        columns = ["network", "layers", "optimisable", "their share of the time", "stacks", "their share of the time"]
        rows = [[networks.name(r.case), r.layers, r.optimisable, f"{r.share:.1%}", r.stacks, f"{r.stacked:.1%}"] for r in found.layers]
        parts.append(f"### Layers of networks\n\n{STACK_TABLE}\n\n{table(columns, rows)}")
    return "\n\n".join(parts)


def _against(results: Sequence[tuple[object, Comparison]], what: str) -> str:
    """Milliseconds of each variant, and our time by ours layer by layer and by that of the fastest other runtime."""
    labels = list(dict.fromkeys(entry.label for _, r in results for entry in r.entries))
    rows = []
    for name, result in results:
        times = [number(result[label].median_ms) if label in result else "–" for label in labels]
        ratios = [figure.ours_by(result, figure.LAYERS), figure.ours_by_fastest(result)]
        rows.append([name, *times, *("–" if ratio is None else f"{ratio:.2f}" for ratio in ratios)])
    engines = [f"{networks.ENGINES.get(label, label)}, ms" for label in labels]
    return table([what, *engines, "ours / layer by layer", "ours / fastest other"], rows)


def elastic(item: Published) -> str:
    run = item.record.result
    rows = [
        [s.workers, number(s.requests_per_s), number(s.latency_ms), "" if s.effect_ms is None else f"{s.effect_ms:.0f}"] for s in run.steps
    ]
    answered = f"{len(run.done_s)} requests were answered, {run.lost} lost, {run.wrong} wrong."
    return table(["workers", "requests/s", "median latency, ms", "change took effect after, ms"], rows) + f"\n\n{answered}"


def storm(item: Published) -> str:
    found = item.record.result
    kinds: list[tuple[str, Spread]] = [
        ("from the signal until work goes on, other workers running", found.with_survivors),
        ("from the signal until a worker runs, none left", found.with_none),
        ("from starting a new worker until it runs", found.joins),
    ]
    rows = [[what, s.number, number(s.p50_ms), number(s.p99_ms), number(s.worst_ms)] for what, s in kinds if s.number]
    answered = f"{len(found.strokes)} workers were killed. {found.requests} requests were answered, {found.lost} lost, {found.wrong} wrong."
    return table(["", "times", "median, ms", "p99, ms", "worst, ms"], rows) + f"\n\n{answered}"


def churn(item: Published) -> str:
    found = item.record.result
    rows = [
        [what, s.number, number(s.p50_ms), number(s.p99_ms), number(s.worst_ms)]
        for what, s in (("join", found.joins), ("leave", found.leaves))
    ]
    answered = f"{found.requests} requests were answered, {found.lost} lost, {found.wrong} wrong."
    return table(["workers that", "times", "median, ms", "p99, ms", "worst, ms"], rows) + f"\n\n{answered}"


def clients(item: Published) -> str:
    rows = [
        [
            *(f.setting.engine, f.setting.processes, f.setting.in_flight, number(median(f.per_s))),
            *(number(f.spread.p50_ms), number(f.spread.p99_ms), f"{f.pss_bytes / 2**20:.0f}"),
        ]
        for f in item.record.result.found
    ]
    columns = ["engine", "client processes", "in flight each", "requests/s", "median, ms", "p99, ms", "memory of all, MiB"]
    return table(columns, rows)


def lengths(item: Published) -> str:
    rows = [
        [networks.name(r.case), f.engine, len(r.lengths), number(f.total_s), number(median(f.settled)), f.slow]
        for r in item.record.result
        for f in r.found
    ]
    return table(["network", "engine", "requests", "total, s", "median at the end, ms", "slow requests"], rows)


def sizes(item: Published) -> str:
    found = [(r.case, m) for r in item.record.result for m in r.summary()]
    several = any(m.rounds > 1 for _, m in found)
    kinds = ("first request", "second request", "new size", "same size again")
    one = ["network", "engine", *(["rounds"] if several else []), *(f"{kind}, ms" for kind in kinds)]
    every = ["network", "engine", "new sizes, s", "same sizes again, s", "new / again, median"]
    rows = [
        [case, m.engine, *([m.rounds] if several else []), *(number(ms) for ms in (m.first_ms, m.second_ms, m.new_ms, m.again_ms))]
        for case, m in found
    ]
    sums = [[case, m.engine, number(m.new_s), number(m.again_s), number(m.new_by_again)] for case, m in found]
    text = "The median of each kind of request. New sizes are those behind the first two."
    return f"{text}\n\n{table(one, rows)}\n\nAll sizes together:\n\n{table(every, sums)}"


def agreement(item: Published) -> str:
    rows = [
        [
            networks.name(r.network),
            r.weights,
            f"{r.onnxruntime:.1e}",
            f"{r.direct:.1e}",
            *(f"{r.levels[level]:.1e}" for level in ACCURACIES),
        ]
        for r in item.record.result
    ]
    return table(["network", "weights", "ONNX Runtime", "direct sums", *ACCURACIES], rows)


def prediction(item: Published) -> str:
    rows = [[networks.name(r.case), r.workers, number(r.predicted_ms), number(r.median_ms), f"{r.error:+.1%}"] for r in item.record.result]
    return table(["network", "workers", "predicted, ms", "measured, ms", "error"], rows)


PAGES: dict[str, tuple[str, str, dict[str, Body]]] = {
    "networks": (
        "Networks beside other runtimes",
        "One request at a time. The last column of a table of `bench peers` is our time divided by the time of the fastest other runtime.",
        {"peers": networks.with_errors, "defaults": networks.defaults},
    ),
    "scaling": (
        "More cores for one request",
        "The same request on more and more cores. Speedup is measured from the best serial run of any engine. "
        "The parallel fraction follows Karp and Flatt: 1 means that every core adds its whole speed.",
        {"scaling": scaling, "synthetic": comparison, "barriers": comparison, "order": comparison, "tiles": comparison},
    ),
    "stacks": (
        "Layers that run depth first",
        "A block is a maximum of 3×3, a BatchNorm and a ReLU, as in the paper on BrainSlug. "
        "The chart shows the time of a block in chains of ever more blocks. Layer by layer means our plan with every layer by itself.",
        {"stacks": stacks},
    ),
    "several-networks": (
        "Several networks at once",
        coexecution.INTRODUCTION,
        {
            "together": coexecution.together,
            "priority": coexecution.priority,
            "deadlines": coexecution.deadlines,
            "dynamic": coexecution.dynamic,
            "contention": coexecution.contention,
            "coplans": coexecution.coplans,
        },
    ),
    "pytorch": ("PyTorch modules beside eager PyTorch and inductor", torch.INTRODUCTION, {"torch": torch.torch}),
    "services": ("Servers and clusters", services.INTRODUCTION, {"serve": services.serve, "ray": services.ray}),
    "unlike-cores": (
        "Cores of unlike speed",
        "One core is slowed by a real load. The share of the sum compares both cores together with what each does alone.",
        {"hetero": hetero},
    ),
    "workers": (
        "Workers that join, leave and die",
        "Requests are always in flight, and every answer is compared bit for bit with the first one.",
        {"elastic": elastic, "storm": storm, "churn": churn},
    ),
    "clients": (
        "Many client processes",
        "Client processes share one aspen-mp runtime. Each process of the other engine has a session of its own, as most servers do.",
        {"clients": clients},
    ),
    "lengths": (
        "Texts of ever new lengths, and decoders",
        "Every request has another length, and no plan exists when the first one comes. "
        "A slow request takes far longer than its neighbours.",
        {"lengths": lengths},
    ),
    "sizes": (
        "Pictures of ever new sizes",
        "Every picture has another size, and no plan exists when the first one comes. Then the same pictures come again.",
        {"sizes": sizes},
    ),
    "streams": (
        "Frames of which a part has changed",
        "The changed part is one square at a random place with new pixels, which is kinder than many small ones. "
        "Networks have random weights, and a camera that adds noise to every pixel changes the whole frame. "
        "The whole frame runs by the model's ordinary plan, in turns with the streams in one process. "
        "Results of streams are copies, as they are by default; `copy=False` saves the time to copy large ones. "
        "The bound is what the speedup would be if only arithmetic took time: the whole frame's multiplications by those that ran. "
        "Where rounding may differ, only receptive fields count. "
        "With the same bits, the blocks of Winograd's algorithm run whole.",
        {"stream": streams.changed, "cameras": streams.cameras},
    ),
    "accuracy": (
        "Rounding errors",
        "The largest difference of any output from an evaluation in float64, as a share of the largest output.",
        {"agreement": agreement},
    ),
    "prediction": (
        "Predicted and measured latency",
        "What the planner's simulator predicts, beside what was measured.",
        {"prediction": prediction},
    ),
}
"""File → title, introduction, and what shows each benchmark that belongs to it."""


def all_pages(published: Sequence[Published], reasons: Path) -> dict[str, str]:
    """Every page that has records, by file name without suffix."""
    pages = {}
    for name, (title, introduction, bodies) in PAGES.items():
        items = of(published, *bodies)
        if items:
            pages[name] = page(title, introduction, *(section(item, bodies[item.record.benchmark](item)) for item in items))
    return {"index": index(published, [*pages, "losses"]), **pages, "losses": losses(published, reasons)}


def index(published: Sequence[Published], names: Sequence[str]) -> str:
    """How figures are made, on which machines, and where they are."""
    machines = {item.folder: item.record.machine for item in published}
    rows = []
    for folder, m in machines.items():
        caches = [f"{m.caches[level][0] / 2**20:.0f}" if level in m.caches else "" for level in ("L2", "L3")]
        rows.append([f"`{folder}`", m.core, m.cores, m.isa, *caches, m.memory_gib, "yes" if m.virtual else "no"])
    columns = ["machine", "core", "cores", "kernels", "L2, MiB", "L3, MiB", "memory, GiB", "virtual"]
    again = (
        "Repeat a record with the command that it names. `-o bench/results` writes the new record to its place, "
        "and `aspen-mp bench render` makes these pages."
    )
    contents = "\n".join(["```{toctree}", ":maxdepth: 1", "", *names, "```"])
    return page("Benchmarks", contents, "## How figures are made", HOW, again, "## Machines", table(columns, rows))


def losses(published: Sequence[Published], reasons: Path) -> str:
    """Where another runtime is faster, and why."""
    known = json.loads(reasons.read_text("utf-8")) if reasons.exists() else {}
    found = networks.losses(published)
    title = "Where we are slower"
    compared = f"The records compare aspen-mp {len(networks.compared(published))} times with another runtime on a network."
    if not found:
        return page(title, compared + " It was never slower.")
    rows = [
        [
            networks.name(loss.case),
            f"{loss.machine} ({loss.threads} used)",
            networks.ENGINES[loss.engine],
            f"{loss.ratio:.2f}",
            known.get(loss.case, {}).get(loss.engine, "not known"),
        ]
        for loss in found
    ]
    return page(
        title,
        f"{compared} It was slower in {len(found)} of them.",
        table(["network", "machine", "faster runtime", "our time / its", "why"], rows),
    )


def front(published: Sequence[Published]) -> str:
    """The chart of the site's first page and what it says in a sentence, for the machine with most cores."""
    first = of(published, "peers")[0]
    best = [case.best_peer for case in first.record.result.cases]
    ratios = [peer.ratio_median for peer in best if peer is not None and peer.ratio_median is not None]
    return "\n\n".join(
        [
            f"![Times of other runtimes in units of aspen-mp's](benchmarks/{charts.name(first)})",
            f"A request takes {median(ratios):.2f} times as long as in the fastest other runtime: the median of {len(ratios)} networks.\n"
            f"Single networks lie between {min(ratios):.2f} and {max(ratios):.2f}. The machine: {first.record.machine.name}.",
        ]
    )


def readme(published: Sequence[Published]) -> str:
    """The table and the chart of README.md: the machine with most cores."""
    first = of(published, "peers")[0]
    record = first.record
    caption = (
        f"{record.machine.name}, {record.result.cases[0].threads} threads, float32, one request at a time. Below 1, aspen-mp is faster.\n"
        "OpenVINO takes bf16 by itself where processors have it: [runtimes as they come](docs/benchmarks/networks.md)."
    )
    return "\n\n".join(
        [
            f"![Times of other runtimes in units of aspen-mp's](docs/benchmarks/{charts.name(first)})",
            networks.comparison(first, brief=True),
            caption,
        ]
    )
