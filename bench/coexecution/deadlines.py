"""How many requests meet their deadlines, under more and more load? `aspen-mp bench deadlines`.

Requests of several networks come at random times (Poisson), each network for the same share of the machine. A load of 1 is what our runtime
could just serve: the times of all requests alone, one after the other, fill the whole time. A request is to end within `slack` times its
network's time alone. All engines get the same requests at the same times with the same deadlines. Ours knows the deadlines: it serves the
earliest first and refuses at once what it predicts to be late. It runs a second time without them, first come, first served. Other runtimes
know none; they serve one request after the other, each on all cores, in the order in which requests come.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from aspen_mp.bench.coexecution.crew import Outcome
from aspen_mp.bench.coexecution.rounds import Crews, Orders, Rounds, Say, Schedule, Variant
from aspen_mp.bench.coexecution.traffic import Answer, Arrivals, Loop, Order
from aspen_mp.bench.load import Spread
from aspen_mp.bench.peers.cases import Case
from aspen_mp.bench.peers.rounds import OURS

FIFO = f"{OURS}, first come"
"""Label of ours when it knows no deadlines."""
NETWORKS = ("mobilenet_v2", "resnet50", "bert_base@seq=32")
CALLERS = 48
"""Requests that may be under way in ours."""
ALONE_RUNS = 10


@dataclass(slots=True)
class Point:
    """An engine at one load. `requests`: all that came; `refused`: at once; `met`: ended in time; the others were late. `latency`: of those
    that ended, from when they were due; `refusal`: from the call until it was refused."""

    load: float
    requests: int
    refused: int
    met: int
    latency: Spread
    refusal: Spread

    @property
    def share(self) -> float:
        """The share of all requests that met their deadline."""
        return self.met / self.requests

    @property
    def kept(self) -> float:
        """The share that met their deadline among requests that were not refused."""
        return self.met / max(self.requests - self.refused, 1)


@dataclass(slots=True)
class Curve:
    """An engine, or ours without deadlines."""

    label: str
    points: list[Point] = field(default_factory=list)


@dataclass(slots=True)
class DeadlinesResult:
    """What `aspen-mp bench deadlines` has found. `alone_ms`, `deadlines_ms`: our time and the deadline of each network. `settings`: of each
    engine."""

    cores: list[int]
    networks: list[str]
    slack: float
    alone_ms: list[float] = field(default_factory=list)
    deadlines_ms: list[float] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)
    rejected: int = 0
    disturbed: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    absent: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """How tables call it."""
        return f"{', '.join(self.networks)}, deadlines of {self.slack:g} × the time alone"

    @property
    def verdict(self) -> str:
        """The result in one line: the share of requests that met their deadline, by load."""
        parts = [f"{curve.label} {', '.join(f'{p.share:.0%} at {p.load:g}' for p in curve.points)}" for curve in self.curves]
        return f"in time: {'; '.join(parts) or 'nothing was measured'}"


def measure(
    networks: Sequence[Case],
    loads: Sequence[float],
    slack: float,
    seed: int,
    engines: Sequence[str],
    cores: Sequence[int],
    schedule: Schedule,
    say: Say,
) -> DeadlinesResult:
    """Measures a mix on these cores. Loads and deadlines are by the times of the first engine. `schedule`: each load takes `seconds` of a
    round."""
    result = DeadlinesResult(list(cores), [case.label for case in networks], slack)
    with Crews(networks, [Variant(engine, engine, cores) for engine in engines], say) as crews:
        result.settings = crews.settings
        result.alone_ms = _alone(crews, engines[0], len(networks))
        result.deadlines_ms = [slack * ms for ms in result.alone_ms]
        for load in loads:
            arrivals = poisson(result.alone_ms, load, schedule.seconds, random.Random(f"{seed} {load}"))
            rounds = crews.rounds(_orders(engines, arrivals, result.deadlines_ms), schedule, f"load {load:g}")
            result.rejected += rounds.rejected
            result.disturbed += rounds.disturbed
            result.failed |= rounds.failed
            _add(result, rounds, load, engines)
    return result


def _alone(crews: Crews, engine: str, networks: int) -> list[float]:
    """Milliseconds of each network, one request at a time."""
    orders = {str(k): Order(acts=[[Loop(network=k, count=ALONE_RUNS)]]) for k in range(networks)}
    rounds = crews.rounds({engine: orders}, Schedule(rounds=1, spare=1), "alone")
    if engine not in rounds:
        raise RuntimeError(f"{engine} has no times by which loads could be set: {rounds.failed.get(engine)}")
    return [statistics.median(rounds.ms(engine, str(k), k)) for k in range(networks)]


def poisson(alone_ms: Sequence[float], load: float, seconds: float, draw: random.Random) -> list[tuple[float, int]]:
    """When requests come, and of which network, in their order: each network needs the same share of `load`."""
    calls = []
    for network, ms in enumerate(alone_ms):
        rate = load / len(alone_ms) / (ms / 1e3)
        due = draw.expovariate(rate)
        while due < seconds:
            calls.append((due, network))
            due += draw.expovariate(rate)
    return sorted(calls) or [(0.0, 0)]


def _orders(engines: Sequence[str], calls: list[tuple[float, int]], deadlines_ms: Sequence[float]) -> Orders:
    ours = {
        "deadlines": Order(acts=[[Arrivals(calls=calls, threads=CALLERS, deadlines_ms=[*deadlines_ms])]], warm=False),
        "first come": Order(acts=[[Arrivals(calls=calls, threads=CALLERS)]], warm=False),
    }
    theirs = {"first come": Order(acts=[[Arrivals(calls=calls)]], warm=False)}
    return {engine: ours if engine == OURS else theirs for engine in engines}


def _add(result: DeadlinesResult, rounds: Rounds, load: float, engines: Sequence[str]) -> None:
    """A point to the curve of each engine."""
    for engine in engines:
        if engine not in rounds:
            continue
        labels = {OURS: "deadlines", FIFO: "first come"} if engine == OURS else {engine: "first come"}
        for label, name in labels.items():
            curve = next((curve for curve in result.curves if curve.label == label), None)
            if curve is None:
                curve = Curve(label)
                result.curves.append(curve)
            answers = [answer for performance in rounds.of(engine, name) for run in performance.runs for act in run for answer in act]
            curve.points.append(point(load, answers, result.deadlines_ms))


def point(load: float, answers: Sequence[Answer], deadlines_ms: Sequence[float]) -> Point:
    """The outcome of all requests at a load."""
    ended = [answer for answer in answers if answer.outcome == Outcome.DONE]
    refused = [answer for answer in answers if answer.outcome == Outcome.REFUSED]
    met = sum(1e3 * (answer.ended - answer.due) <= deadlines_ms[answer.network] for answer in ended)
    latency = Spread.of([answer.ended - answer.due for answer in ended])
    return Point(load, len(answers), len(refused), met, latency, Spread.of([answer.ended - answer.begun for answer in refused]))


def plot(result: DeadlinesResult, file: Path) -> None:
    """The share of requests that met their deadline against the load; PNG or SVG."""
    from aspen_mp.bench.coexecution.picture import shade
    from aspen_mp.bench.figures.picture import pyplot, save

    figure, axes = pyplot().subplots(figsize=(6.5, 4), layout="constrained")
    for curve in result.curves:
        loads, shares = [p.load for p in curve.points], [p.share for p in curve.points]
        axes.plot(loads, shares, "o-", color=shade(curve.label), label=curve.label, markersize=4)
    loads = sorted({p.load for curve in result.curves for p in curve.points})
    axes.plot(loads, [min(1.0, 1 / load) for load in loads], ":", color="0.4", label="what can be served at all")
    axes.set(xlabel=f"load, of which {OURS} can just serve 1", ylabel="share of requests in time", ylim=(0, 1.03))
    axes.set_title(result.name, fontsize=9)
    axes.legend(fontsize=8)
    save(figure, file)
