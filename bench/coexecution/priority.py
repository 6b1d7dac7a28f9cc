"""How long do urgent requests take beside a load that saturates the machine? `aspen-mp bench priority`.

Requests of class "high" come on a fixed schedule, beside clients of class "low" that always have requests in flight. Both are measured
alone, too. The urgent requests leave the share of time in which none of them would be under way, if they ran
alone: the low load should keep that share of its own throughput. Other runtimes have no priorities, neither onnxruntime nor OpenVINO's
CPU plugin, which refuses MODEL_PRIORITY: they run the same load without. So does ours a second time, with all requests in one class. Ours
makes plans of shorter tiles for a network beside which it has met a higher class. That is done before it is measured, and its load alone
is measured with the plan that the network has without them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from aspen_mp.bench.coexecution.rounds import Crews, Orders, Rounds, Say, Schedule, Variant
from aspen_mp.bench.coexecution.traffic import Arrivals, Loop, Order, Source
from aspen_mp.bench.peers.cases import Case
from aspen_mp.bench.peers.rounds import OURS

ONE_CLASS = f"{OURS}, one class"
"""Label of ours without priorities."""
URGENT, LOAD = 0, 1
"""Numbers of the two networks."""
SHARES = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1.0)
"""Quantiles that a record holds."""
SETTLE_S = 8.0
"""Both networks together before ours is measured, until its plans are made again."""
CALLERS = 8
"""Urgent requests that may be under way."""


@dataclass(frozen=True, slots=True)
class Scene:
    """An urgent network every so many milliseconds, beside `in_flight` requests of another at any time."""

    urgent: str
    every_ms: float
    load: str
    in_flight: int


SCENES = (Scene("mobilenet_v2", 30, "vgg16", 3), Scene("bert_base@seq=32", 150, "resnet50@batch=4", 2))
"""The scenes that are measured unless networks are named."""


@dataclass(slots=True)
class Quantiles:
    """Of `number` times: those at `SHARES`, in milliseconds, each a value that occurred."""

    number: int
    ms: list[float]

    @classmethod
    def of(cls, values: Sequence[float]) -> Quantiles:
        """Quantiles of some times, milliseconds."""
        ordered = sorted(values)
        last = len(ordered) - 1
        return cls(len(ordered), [ordered[min(last, int(len(ordered) * share))] for share in SHARES] if ordered else [])

    def at(self, share: float) -> float:
        """One of them, milliseconds."""
        return self.ms[SHARES.index(share)] if self.ms else math.nan


@dataclass(slots=True)
class Entry:
    """An engine, or ours in one class. `alone`, `beside`: urgent requests, alone and beside the load. Requests of the load a second in each
    round: alone, and beside the urgent ones."""

    label: str
    alone: Quantiles
    beside: Quantiles
    load_alone_per_s: list[float]
    load_beside_per_s: list[float]
    left: float
    """Share of the time that urgent requests leave."""

    @property
    def p50(self) -> float:
        """The median beside the load by the median alone."""
        return self.beside.at(0.5) / self.alone.at(0.5)

    @property
    def p99(self) -> float:
        """The 99th percentile beside the load by the median alone."""
        return self.beside.at(0.99) / self.alone.at(0.5)

    @property
    def kept(self) -> float:
        """The load's throughput beside urgent requests by what they leave of it, the middle of the rounds. Not a number where they leave
        nothing."""
        if not self.left:
            return math.nan
        return statistics.median(b / a for a, b in zip(self.load_alone_per_s, self.load_beside_per_s, strict=True)) / self.left


@dataclass(slots=True)
class SceneResult:
    """A scene. `rejected`, `disturbed`: rounds."""

    scene: Scene
    entries: list[Entry] = field(default_factory=list)
    rejected: int = 0
    disturbed: int = 0
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """How tables call it."""
        scene = self.scene
        return f"{scene.urgent} every {scene.every_ms:g} ms beside {scene.in_flight} × {scene.load}"

    @property
    def verdict(self) -> str:
        """The result in one line."""
        parts = [
            f"{e.label} {e.beside.at(0.5):.1f} ms ({e.p50:.2f} of alone, p99 {e.p99:.2f}), load keeps {e.kept:.2f}" for e in self.entries
        ]
        return f"{self.name}: {'; '.join(parts) or 'nothing was measured'}"


@dataclass(slots=True)
class PriorityResult:
    """What `aspen-mp bench priority` has found. `settings`: of each engine."""

    cores: list[int]
    scenes: list[SceneResult] = field(default_factory=list)
    settings: dict[str, str] = field(default_factory=dict)
    absent: list[str] = field(default_factory=list)


def measure(scene: Scene, engines: Sequence[str], cores: Sequence[int], schedule: Schedule, say: Say) -> tuple[SceneResult, dict[str, str]]:
    """Measures a scene on these cores; also returns the settings of engines. `schedule`: each part of a round takes `seconds`, that with
    both networks twice as long."""
    from aspen_mp.bench.peers import cases

    networks: list[Case] = [cases.parse(scene.urgent), cases.parse(scene.load)]
    result = SceneResult(scene)
    variants = [Variant(engine, engine, cores, {"replan": True} if engine == OURS else {}) for engine in engines]
    if OURS in engines:
        variants.insert(1, Variant(ONE_CLASS, OURS, cores))
    with Crews(networks, variants, say) as crews:
        if schedule.seconds:
            settled = Order(acts=[_both(scene, SETTLE_S, "high", "low")], warm=False)
            crews.rounds({OURS: {"settle": settled}}, Schedule(rounds=1, spare=1), f"{result.name}, plans are made again")
        rounds = crews.rounds(_orders(scene, engines, schedule.seconds), schedule, result.name)
        settings = crews.settings
    result.rejected, result.disturbed, result.failed = rounds.rejected, rounds.disturbed, rounds.failed
    for engine in engines:
        if engine in rounds:
            result.entries.append(_entry(rounds, scene, engine, ONE_CLASS if engine == OURS and ONE_CLASS in rounds else engine))
    if ONE_CLASS in rounds:
        result.entries.insert(1, _entry(rounds, scene, ONE_CLASS, ONE_CLASS))
    return result, settings


def _orders(scene: Scene, engines: Sequence[str], seconds: float) -> Orders:
    def order(*sources: Source) -> Order:
        return Order(acts=[[*sources]], warm=False)

    def all_of(urgent: str, load: str) -> dict[str, Order]:
        alone, beside = _both(scene, seconds, urgent, load), _both(scene, 2 * seconds, urgent, load)
        return {"alone": order(alone[URGENT]), "load": order(alone[LOAD]), "beside": order(*beside)}

    classes = all_of("high", "low")
    return {**dict.fromkeys(engines, classes), ONE_CLASS: all_of("normal", "normal")}


def _both(scene: Scene, seconds: float, urgent: str, load: str) -> list[Source]:
    """The sources of a scene, for `seconds`; the priority of each."""
    every = scene.every_ms / 1e3
    calls = [(k * every, URGENT) for k in range(1, max(3, round(seconds / every)) + 1)]
    return [
        Arrivals(calls=calls, threads=CALLERS, priority=urgent),
        Loop(network=LOAD, threads=scene.in_flight, end_s=seconds, priority=load),
    ]


def _entry(rounds: Rounds, scene: Scene, label: str, reference: str) -> Entry:
    """The entry of a crew; `reference`: the crew whose load alone it is compared with."""
    alone = Quantiles.of(rounds.ms(label, "alone", URGENT))
    left = max(0.0, 1 - alone.at(0.5) / scene.every_ms)
    beside = Quantiles.of(rounds.ms(label, "beside", URGENT))
    return Entry(label, alone, beside, _rates(rounds, reference, "load"), _rates(rounds, label, "beside"), left)


def _rates(rounds: Rounds, engine: str, name: str) -> list[float]:
    """Requests of the load a second in each round: those that ended, by the end of the last one that began in time."""
    found = []
    for performance in rounds.of(engine, name):
        ended = [answer.ended for run in performance.runs for act in run for answer in act if answer.network == LOAD]
        found.append(len(ended) / max(ended))
    return found


def plot(result: PriorityResult, file: Path) -> None:
    """How many urgent requests take longer than a time, alone and beside the load, scene by scene; PNG or SVG."""
    from matplotlib.ticker import LogLocator, NullFormatter

    from aspen_mp.bench.coexecution.picture import shade
    from aspen_mp.bench.figures.picture import pyplot, save

    plt = pyplot()
    figure, panes = plt.subplots(1, len(result.scenes), figsize=(5.5 * len(result.scenes), 4), layout="constrained", squeeze=False)
    for axes, scene in zip(panes[0], result.scenes, strict=True):
        for entry in scene.entries:
            above = [max(1 - share, 1e-3) for share in SHARES]
            axes.plot(entry.beside.ms, above, color=shade(entry.label), label=entry.label)
            if entry.label != ONE_CLASS:
                axes.plot(entry.alone.ms, above, ":", color=shade(entry.label))
        axes.set(xlabel="latency of urgent requests, ms (dotted: alone)", xscale="log", yscale="log")
        axes.set_title(scene.name, fontsize=9)
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter(NullFormatter())
    panes[0][0].set_ylabel("share of requests that take longer")
    figure.legend(*panes[0][0].get_legend_handles_labels(), fontsize=8, loc="outside lower center", ncols=4)
    save(figure, file)
