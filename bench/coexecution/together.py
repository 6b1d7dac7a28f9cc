"""What is it worth to run several networks at once? `aspen-mp bench together`.

Each network has a client that runs its requests one after the other. A group ends when the last client has ended. The same requests run one
network after the other, each on all cores, and each network runs alone. That is HaX-CoNN's comparison (section 5.4), with one after the
other as the baseline to beat. The best possible time is a bound. All cores are busy for as long as the requests need on a core of its own.
Weights that no cache holds are read at the speed of memory, and no client ends earlier than alone.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx

from aspen_mp.bench.coexecution.rounds import Crews, Orders, Rounds, Say, Schedule, Variant
from aspen_mp.bench.coexecution.traffic import Loop, Order, Source
from aspen_mp.bench.load import Spread
from aspen_mp.bench.peers.cases import Case
from aspen_mp.bench.peers.engines import MEMORY, MEMORY_BYTES
from aspen_mp.bench.peers.rounds import OURS
from aspen_mp.bench.peers.seat import Seat
from aspen_mp.workers import topology

ONE = f"{OURS} on one core"
"""Label of the crew that says how long a core needs."""
GROUPS: tuple[tuple[tuple[str, ...], tuple[int, ...] | None], ...] = (
    (("gpt2@seq=1", "resnet50"), (3, 1)),
    (("vgg_classifier", "bert_base@seq=128"), None),
)
"""Groups that are measured unless networks are named: one network that waits for memory, and one that computes. With requests of each in a
run, or
None: balanced."""
MOST = 16
"""Requests of a network in a group, at most, where its networks are balanced."""
MEMORY_RUNS = 3


@dataclass(slots=True)
class Bound:
    """What nobody can beat, milliseconds: `cores`, the time of all requests on one core by the number of cores; `memory`, the time to read
    weights that no cache holds, at `gb_s`; `longest`, the network that takes longest alone."""

    cores: float
    memory: float
    longest: float
    gb_s: float

    @property
    def ms(self) -> float:
        """The largest of them."""
        return max(self.cores, self.memory, self.longest)


@dataclass(slots=True)
class Share:
    """A network in a group, milliseconds of a request: alone, and together with the others."""

    alone: Spread
    together: Spread

    @property
    def slowdown(self) -> float:
        """The slowdown by medians."""
        return self.together.p50_ms / self.alone.p50_ms


@dataclass(slots=True)
class Entry:
    """An engine. Milliseconds: of the middle run of each round, with all networks at once and one after the other. `ratio`: the first by
    the second in the same rounds, the middle of them. `of_ours`: time at once by ours, the same way; None for ours."""

    label: str
    at_once_ms: list[float]
    in_turn_ms: list[float]
    shares: list[Share]
    ratio: float
    of_ours: float | None = None

    @property
    def ms(self) -> float:
        """At once: the median of rounds."""
        return statistics.median(self.at_once_ms)

    @property
    def turns_ms(self) -> float:
        """One after the other: the median of rounds."""
        return statistics.median(self.in_turn_ms)


@dataclass(slots=True)
class Group:
    """Networks that ran at once. `counts`: requests of each in a run. `rejected`, `disturbed`: rounds."""

    networks: list[str]
    counts: list[int]
    entries: list[Entry] = field(default_factory=list)
    bound: Bound | None = None
    rejected: int = 0
    disturbed: int = 0
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """How tables call it: `3 × gpt2@seq=1 + resnet50`."""
        parts = zip(self.counts, self.networks, strict=True)
        return " + ".join(f"{count} × {network}" if count > 1 else network for count, network in parts)

    def __getitem__(self, label: str) -> Entry:
        return next(entry for entry in self.entries if entry.label == label)

    def __contains__(self, label: str) -> bool:
        return any(entry.label == label for entry in self.entries)

    @property
    def least(self) -> float | None:
        """The bound by our time one after the other."""
        return self.bound.ms / self[OURS].turns_ms if self.bound and OURS in self else None

    @property
    def verdict(self) -> str:
        """The result in one line."""
        if not self.entries:
            return f"{self.name}: nothing was measured"
        parts = [f"{entry.label} {entry.ratio:.3f}" for entry in self.entries]
        text = f"{self.name}: time at once by one after the other: {', '.join(parts)}"
        if self.bound and self.least:
            b = self.bound
            text += f"; bound {self.least:.3f} (cores {b.cores:.1f} ms, memory {b.memory:.1f}, longest alone {b.longest:.1f})"
        return text


@dataclass(slots=True)
class TogetherResult:
    """What `aspen-mp bench together` has found. `settings`: of each engine."""

    cores: list[int]
    groups: list[Group] = field(default_factory=list)
    settings: dict[str, str] = field(default_factory=dict)
    absent: list[str] = field(default_factory=list)


def measure(
    groups: Sequence[tuple[Sequence[Case], Sequence[int] | None]],
    engines: Sequence[str],
    cores: Sequence[int],
    schedule: Schedule,
    say: Say,
) -> TogetherResult:
    """Measures groups of networks on these cores, each with the number of requests of each network in a run. None: so many that all clients
    would take about as long alone. `schedule`: seconds and runs are of each order."""
    cases = list({case.label: case for group, _ in groups for case in group}.values())
    at = {case.label: number for number, case in enumerate(cases)}
    variants = [Variant(engine, engine, cores) for engine in engines]
    if OURS in engines:
        variants.append(Variant(ONE, OURS, cores[:1]))
    result = TogetherResult(list(cores))
    with Crews(cases, variants, say) as crews, _memory(cores) as memory:
        result.settings = crews.settings
        weights = [_streamed(model) for model in crews.models]
        for group, counts in groups:
            members = [at[case.label] for case in group]
            found = Group([case.label for case in group], list(counts or _balanced(crews, engines[0], members, schedule)))
            rounds = crews.rounds(_orders(engines, members, found.counts, schedule), schedule, found.name)
            found.rejected, found.disturbed, found.failed = rounds.rejected, rounds.disturbed, rounds.failed
            found.entries = [_entry(rounds, engine, members, engines[0]) for engine in engines if engine in rounds]
            if ONE in rounds and OURS in rounds:
                gb_s = len(cores) * MEMORY_BYTES / 1e9 / min(memory.turn(schedule.seconds, MEMORY_RUNS).seconds)
                found.bound = _bound(rounds, members, found.counts, [weights[k] for k in members], gb_s, len(cores))
            result.groups.append(found)
    return result


def _memory(cores: Sequence[int]) -> _MemorySeat:
    return _MemorySeat(cores)


class _MemorySeat:
    """A process that reads memory with all cores, as a context manager."""

    def __init__(self, cores: Sequence[int]) -> None:
        self._cores = list(cores)

    def __enter__(self) -> Seat:
        self._seat = Seat.start(MEMORY.name, Path(), None, None, self._cores)
        return self._seat

    def __exit__(self, *_: object) -> None:
        self._seat.close()


def _orders(engines: Sequence[str], members: Sequence[int], counts: Sequence[int], schedule: Schedule) -> Orders:
    loops = [Loop(network=network, count=count) for network, count in zip(members, counts, strict=True)]

    def order(*acts: list[Source]) -> Order:
        return Order(acts=[*acts], runs=schedule.runs, seconds=schedule.seconds)

    alone = {f"alone {k}": order([loop]) for k, loop in enumerate(loops)}
    in_turn: list[list[Source]] = [[loop] for loop in loops]
    orders = {**alone, "in turn": order(*in_turn), "at once": order([*loops])}
    return {**dict.fromkeys(engines, orders), ONE: alone}


def _balanced(crews: Crews, engine: str, members: Sequence[int], schedule: Schedule) -> list[int]:
    """Requests of each network that take about as long as one of the slowest."""
    order = {str(k): Order(acts=[[Loop(network=network, count=1)]], runs=schedule.runs) for k, network in enumerate(members)}
    rounds = crews.rounds({engine: order}, Schedule(rounds=1, spare=1), "balancing")
    if engine not in rounds:
        return [1] * len(members)
    times = [statistics.median(rounds.spans_ms(engine, str(k))) for k in range(len(members))]
    return [min(MOST, max(1, round(max(times) / time))) for time in times]


def _entry(rounds: Rounds, label: str, members: Sequence[int], reference: str) -> Entry:
    at_once, in_turn = rounds.spans_ms(label, "at once"), rounds.spans_ms(label, "in turn")
    shares = [
        Share(_spread(rounds.ms(label, f"alone {k}", network)), _spread(rounds.ms(label, "at once", network)))
        for k, network in enumerate(members)
    ]
    ratio = statistics.median(a / b for a, b in zip(at_once, in_turn, strict=True))
    if label == reference:
        return Entry(label, at_once, in_turn, shares, ratio)
    ours = rounds.spans_ms(reference, "at once")
    return Entry(label, at_once, in_turn, shares, ratio, statistics.median(a / b for a, b in zip(at_once, ours, strict=True)))


def _spread(ms: Sequence[float]) -> Spread:
    return Spread.of([value / 1e3 for value in ms])


def _bound(rounds: Rounds, members: Sequence[int], counts: Sequence[int], weights: Sequence[int], gb_s: float, cores: int) -> Bound:
    alone = [statistics.median(rounds.spans_ms(ONE, f"alone {k}")) for k in range(len(members))]
    full = [statistics.median(rounds.spans_ms(OURS, f"alone {k}")) for k in range(len(members))]
    read = sum(count * size for count, size in zip(counts, weights, strict=True))
    return Bound(sum(alone) / cores, read / gb_s / 1e6, max(full), gb_s)


def _streamed(file: Path) -> int:
    """Bytes of weights that each request reads from memory, as the last cache does not hold them. Tables are looked up, not read."""
    graph = onnx.load(file, load_external_data=False).graph
    looked_up = {node.input[0] for node in graph.node if node.op_type == "Gather"}
    read = {name for node in graph.node for name in node.input if not (node.op_type == "Gather" and name == node.input[0])}
    sizes = {w.name: int(np.prod(w.dims)) * 4 for w in graph.initializer if w.data_type == onnx.TensorProto.FLOAT}
    total = sum(size for name, size in sizes.items() if name in read or name not in looked_up)
    last = topology.cache_sizes(topology.read().cores[0].cpu).get("L3", (0, 1))[0]
    return max(0, total - last)


def plot(result: TogetherResult, file: Path) -> None:
    """Draw the time at once by one after the other, a group of bars for each group of networks; the bound is a line. PNG or SVG."""
    from aspen_mp.bench.coexecution.picture import shade
    from aspen_mp.bench.figures.picture import pyplot, save

    plt = pyplot()
    groups = [group for group in result.groups if group.entries]
    labels = list(dict.fromkeys(entry.label for group in groups for entry in group.entries))
    figure, axes = plt.subplots(figsize=(8, 1 + 0.22 * len(groups) * (len(labels) + 1)), layout="constrained")
    height = 0.8 / max(len(labels), 1)
    for i, label in enumerate(labels):
        bars = [(k + (i - (len(labels) - 1) / 2) * height, group[label].ratio) for k, group in enumerate(groups) if label in group]
        drawn = axes.barh([at for at, _ in bars], [value for _, value in bars], height * 0.9, color=shade(label), label=label)
        axes.bar_label(drawn, fmt="%.2f", fontsize=7, padding=2)
    least = [(k, group.least) for k, group in enumerate(groups) if group.least]
    axes.vlines(
        [v for _, v in least], [k - 0.45 for k, _ in least], [k + 0.45 for k, _ in least], color="black", label="bound for aspen-mp"
    )
    axes.axvline(1, color="0.3", linewidth=0.8)
    axes.set_yticks(range(len(groups)), [group.name.replace(" + ", "\n+ ") for group in groups], fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.1)
    axes.set(xlabel="time of all at once, one network after the other = 1")
    figure.legend(fontsize=8, loc="outside lower center", ncols=4)
    save(figure, file)
