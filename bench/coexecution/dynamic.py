"""How do latencies change while networks come and go? `aspen-mp bench dynamic`.

This is HaX-CoNN's dynamic experiment (section 5.3, figure 7). Every few seconds another set of networks is at work, each with a client that
runs one request after the other. All networks are loaded when it begins, and each engine goes through the same phases. The progress of an
engine in a phase is what its requests take one after the other, each alone, by the time that passed.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from aspen_mp.bench.coexecution.rounds import Crews, Orders, Rounds, Say, Schedule, Variant
from aspen_mp.bench.coexecution.traffic import Answer, Loop, Order
from aspen_mp.bench.load import Spread
from aspen_mp.bench.peers.cases import Case

PHASES = ("resnet50", "resnet50+bert_base@seq=128", "resnet50+bert_base@seq=128+gpt2@seq=1", "gpt2@seq=1+mobilenet_v2", "mobilenet_v2")
"""The networks of each phase, unless others are named."""
ALONE_RUNS = 5
STEP_S = 0.25
"""Seconds over which latencies are medians."""


@dataclass(slots=True)
class Line:
    """A network in a phase of an engine: latencies of the requests that ended in it. `times_s`, `ms`: the median of each `STEP_S`."""

    phase: int
    network: str
    latency: Spread
    per_s: float
    times_s: list[float] = field(default_factory=list)
    ms: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Course:
    """An engine. `progress`: for each phase, what its requests take one after the other, each alone on this engine, by the time that
    passed."""

    label: str
    lines: list[Line]
    progress: list[float]


@dataclass(slots=True)
class DynamicResult:
    """What `aspen-mp bench dynamic` has found. `phases`: networks at work in each, which is `seconds` long. `settings`: of each engine."""

    cores: list[int]
    phases: list[list[str]]
    seconds: float
    courses: list[Course] = field(default_factory=list)
    rejected: int = 0
    disturbed: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    absent: list[str] = field(default_factory=list)

    def of(self, label: str) -> Course:
        """An engine's course."""
        return next(course for course in self.courses if course.label == label)

    @property
    def verdict(self) -> str:
        """The result in one line."""
        parts = [f"{course.label} {', '.join(f'{share:.2f}' for share in course.progress)}" for course in self.courses]
        return f"work done by time, phase by phase: {'; '.join(parts) or 'nothing was measured'}"


def measure(phases: Sequence[Sequence[Case]], engines: Sequence[str], cores: Sequence[int], schedule: Schedule, say: Say) -> DynamicResult:
    """Measures all phases on these cores, `seconds` of the schedule each. The middle one of several rounds by its progress counts."""
    cases = list({case.label: case for phase in phases for case in phase}.values())
    at = {case.label: number for number, case in enumerate(cases)}
    result = DynamicResult(list(cores), [[case.label for case in phase] for phase in phases], schedule.seconds)
    with Crews(cases, [Variant(engine, engine, cores) for engine in engines], say) as crews:
        result.settings = crews.settings
        rounds = crews.rounds(_orders(result, at, engines), schedule, f"{len(phases)} phases of {schedule.seconds:g} s")
    result.rejected, result.disturbed, result.failed = rounds.rejected, rounds.disturbed, rounds.failed
    result.courses = [_course(result, rounds, at, engine) for engine in engines if engine in rounds]
    return result


def _orders(result: DynamicResult, at: dict[str, int], engines: Sequence[str]) -> Orders:
    """A client stays for as many phases as follow each other with its network."""
    orders = {f"alone {network}": Order(acts=[[Loop(network=number, count=ALONE_RUNS)]]) for network, number in at.items()}
    loops = []
    for phase, networks in enumerate(result.phases):
        for network in networks:
            if phase and network in result.phases[phase - 1]:
                continue
            last = next((k for k in range(phase, len(result.phases)) if network not in result.phases[k]), len(result.phases))
            loops.append(Loop(network=at[network], begin_s=phase * result.seconds, end_s=last * result.seconds))
    orders["phases"] = Order(acts=[[*loops]], warm=False)
    return dict.fromkeys(engines, orders)


def _course(result: DynamicResult, rounds: Rounds, at: dict[str, int], engine: str) -> Course:
    alone = {network: statistics.median(rounds.ms(engine, f"alone {network}", number)) for network, number in at.items()}
    names = {number: network for network, number in at.items()}
    courses = []
    for performance in rounds.of(engine, "phases"):
        (act,) = performance.runs[0]
        lines, progress = [], []
        for phase, networks in enumerate(result.phases):
            begin, end = phase * result.seconds, (phase + 1) * result.seconds
            there = [answer for answer in act if begin <= answer.ended < end]
            lines += [_line(phase, network, [a for a in there if a.network == at[network]], begin, result.seconds) for network in networks]
            work = sum(alone[names[answer.network]] * _inside(answer, begin, end) for answer in act)
            progress.append(work / 1e3 / result.seconds)
        courses.append(Course(engine, lines, progress))
    return sorted(courses, key=lambda course: sum(course.progress))[(len(courses) - 1) // 2]


def _inside(answer: Answer, begin: float, end: float) -> float:
    """The share of a request that lies in a phase."""
    return max(0.0, min(answer.ended, end) - max(answer.begun, begin)) / max(answer.ended - answer.begun, 1e-9)


def _line(phase: int, network: str, answers: Sequence[Answer], begin: float, seconds: float) -> Line:
    line = Line(phase, network, Spread.of([answer.ms / 1e3 for answer in answers]), len(answers) / seconds)
    steps: dict[int, list[float]] = {}
    for answer in answers:
        steps.setdefault(int((answer.ended - begin) / STEP_S), []).append(answer.ms)
    for step, values in sorted(steps.items()):
        line.times_s.append(begin + (step + 0.5) * STEP_S)
        line.ms.append(statistics.median(values))
    return line


def plot(result: DynamicResult, file: Path) -> None:
    """Latency against time, a picture for each network and a curve for each engine; PNG or SVG."""
    from aspen_mp.bench.coexecution.picture import shade
    from aspen_mp.bench.figures.picture import pyplot, save

    networks = list(dict.fromkeys(network for phase in result.phases for network in phase))
    figure, panes = pyplot().subplots(
        len(networks), 1, figsize=(8, 1.7 * len(networks) + 0.6), layout="constrained", squeeze=False, sharex=True
    )
    for axes, network in zip(panes[:, 0], networks, strict=True):
        for course in result.courses:
            for k, line in enumerate(line for line in course.lines if line.network == network):
                label = course.label if not k else None
                axes.plot(line.times_s, line.ms, color=shade(course.label), label=label, linewidth=1)
        for phase in range(1, len(result.phases)):
            axes.axvline(phase * result.seconds, color="0.8", linewidth=0.8)
        axes.set(ylabel="ms", ylim=(0, None), xlim=(0, len(result.phases) * result.seconds))
        axes.set_title(network, fontsize=9, loc="left")
    panes[-1, 0].set_xlabel("seconds")
    figure.legend(*panes[0, 0].get_legend_handles_labels(), fontsize=8, loc="outside upper right", ncols=3)
    save(figure, file)
