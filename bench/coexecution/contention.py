"""What do networks that need arithmetic or memory take from each other? `aspen-mp bench contention`.

This is HaX-CoNN's contention (section 3.3) on CPU cores, with networks whose phases need one thing only
(`bench.models.synthetic.phases`). First, each kind of phase runs on a core beside each kind on another core. Its slowdown is the time
beside the other by the time alone. Then two networks whose phases of arithmetic and of memory alternate run on a core each. Aligned,
phases of one kind meet; opposed, one computes while the other reads. They also run one after the other on both cores, and at once on one
runtime.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import onnx

from aspen_mp.bench.coexecution.rounds import Crews, Orders, Rounds, Say, Schedule, Variant
from aspen_mp.bench.coexecution.traffic import Answer, Loop, Order, Source
from aspen_mp.bench.models.synthetic.phases import KINDS
from aspen_mp.bench.peers.cases import Case
from aspen_mp.bench.peers.rounds import OURS

ALIGNED, OPPOSED = "cmcm", "mcmc"
"""Phases of the networks that alternate."""
APART, BOTH = "a core each", "both cores"
"""Labels of the crews."""
WARM_S = 0.05


@dataclass(slots=True)
class Kind:
    """A kind of phase alone on a core. `gb_s`: weights that it reads a second."""

    kind: str
    ms: float
    gb_s: float


@dataclass(slots=True)
class Pair:
    """A phase beside another on the next core: its time by the time alone, the middle of the rounds. `predicted`: by the planner's model of
    contention, where that was asked."""

    kind: str
    beside: str
    slowdown: float
    rounds: list[float] = field(default_factory=list)
    predicted: float | None = None


@dataclass(slots=True)
class Meeting:
    """Two networks in one of the ways. Milliseconds until both have ended, of the middle run of each round."""

    way: str
    rounds_ms: list[float]
    predicted_ms: float | None = None

    @property
    def ms(self) -> float:
        """The median of rounds."""
        return statistics.median(self.rounds_ms)


@dataclass(slots=True)
class ContentionResult:
    """What `aspen-mp bench contention` has found. `size`: of the networks, as `bench.models.synthetic.phases` takes it."""

    cores: list[int]
    size: int
    kinds: list[Kind] = field(default_factory=list)
    pairs: list[Pair] = field(default_factory=list)
    meetings: list[Meeting] = field(default_factory=list)
    rejected: int = 0
    disturbed: int = 0
    failed: dict[str, str] = field(default_factory=dict)

    def slowdown(self, kind: str, beside: str) -> float:
        """The slowdown of a pair; not a number where it was not measured."""
        return next((pair.slowdown for pair in self.pairs if (pair.kind, pair.beside) == (kind, beside)), math.nan)

    @property
    def verdict(self) -> str:
        """The result in one line."""
        if not self.pairs or not self.meetings:
            return "nothing was measured"
        worst = max(self.pairs, key=lambda pair: pair.slowdown)
        text = f"{worst.kind} beside {worst.beside} takes {worst.slowdown:.2f} of its time alone, c beside m {self.slowdown('c', 'm'):.2f}"
        first = self.meetings[0]
        others = ", ".join(f"{meeting.way} {meeting.ms / first.ms:.3f}" for meeting in self.meetings[1:])
        return f"{text}; phases {first.way} take {first.ms:.1f} ms; by that: {others}"


def measure(cores: Sequence[int], size: int, schedule: Schedule, say: Say) -> ContentionResult:
    """Measures on the first two of `cores`. `schedule`: seconds of each pair of phases, and runs of networks that alternate."""
    pair = list(cores[:2])
    orders = [*KINDS, ALIGNED, OPPOSED]
    cases = [Case("phases", options={"order": order, "size": size}) for order in orders]
    at = {order: number for number, order in enumerate(orders)}
    variants = [Variant(APART, "aspen-mp-apart", pair), Variant(BOTH, OURS, pair)]
    result = ContentionResult(pair, size)
    with Crews(cases, variants, say) as crews:
        sizes = [_read(model) for model in crews.models]
        for kind in KINDS:
            _beside_each(result, crews, kind, at, schedule, sizes[at[kind]])
        rounds = crews.rounds(_networks(at, schedule), schedule, "networks of phases")
        _count(result, rounds)
        if APART in rounds and BOTH in rounds:
            result.meetings = [
                Meeting("aligned, a core each", rounds.spans_ms(APART, "aligned")),
                Meeting("opposed, a core each", rounds.spans_ms(APART, "opposed")),
                Meeting("one after the other on both cores", rounds.spans_ms(BOTH, "in turn")),
                Meeting("aligned, one runtime", rounds.spans_ms(BOTH, "aligned")),
                Meeting("opposed, one runtime", rounds.spans_ms(BOTH, "opposed")),
            ]
    return result


def _count(result: ContentionResult, rounds: Rounds) -> None:
    result.rejected += rounds.rejected
    result.disturbed += rounds.disturbed
    result.failed |= rounds.failed


def _beside_each(result: ContentionResult, crews: Crews, kind: str, at: dict[str, int], schedule: Schedule, read: int) -> None:
    """A kind on the first core, alone and beside each kind that is on the other core all the time. Rounds are of one pair, so that a
    disturbance costs little. `read`: bytes of weights that a request reads."""
    until = WARM_S + schedule.seconds
    own = Loop(network=at[kind], end_s=until)
    times: list[float] = []
    for beside in KINDS:
        other = Loop(network=len(at) + at[beside], end_s=until)
        orders = {"alone": Order(acts=[[own]], warm=False), "beside": Order(acts=[[own, other]], warm=False)}
        rounds = crews.rounds({APART: orders}, schedule, f"{kind} beside {beside}")
        _count(result, rounds)
        if APART not in rounds:
            continue
        alone, both = (
            [_middle(performance.runs[0][0], at[kind]) for performance in rounds.of(APART, name)] for name in ("alone", "beside")
        )
        ratios = [b / a for a, b in zip(alone, both, strict=True)]
        result.pairs.append(Pair(kind, beside, statistics.median(ratios), ratios))
        times += alone
    if times:
        ms = statistics.median(times)
        result.kinds.append(Kind(kind, ms, read / 1e6 / ms))


def _middle(act: Sequence[Answer], network: int) -> float:
    """The median time of a network's requests, milliseconds, of those that ended before the other source's last one did."""
    ends = [max(answer.ended for answer in act if answer.source == source) for source in {answer.source for answer in act}]
    own = [answer for answer in act if answer.network == network]
    kept = [answer.ms for answer in own if answer.begun >= WARM_S and answer.ended <= min(ends)]
    return statistics.median(kept or [answer.ms for answer in own])


def _networks(at: dict[str, int], schedule: Schedule) -> Orders:
    most = len(at)

    def order(*acts: list[Source]) -> Order:
        return Order(acts=[*acts], runs=schedule.runs, seconds=schedule.seconds)

    def once(network: int) -> Loop:
        return Loop(network=network, count=1)

    aligned, opposed = at[ALIGNED], at[OPPOSED]
    apart = {"aligned": order([once(aligned), once(most + aligned)]), "opposed": order([once(aligned), once(most + opposed)])}
    both = {
        "in turn": order([once(aligned)], [once(opposed)]),
        "aligned": order([once(aligned), once(aligned)]),
        "opposed": order([once(aligned), once(opposed)]),
    }
    return {APART: apart, BOTH: both}


def _read(file: Path) -> int:
    """Bytes of weights that a request reads: those of each product, as often as there are products."""
    graph = onnx.load(file, load_external_data=False).graph
    sizes = {weight.name: 4 * math.prod(weight.dims) for weight in graph.initializer}
    return sum(sizes.get(node.input[1], 0) for node in graph.node if node.op_type == "MatMul")


def plot(result: ContentionResult, file: Path) -> None:
    """Slowdowns as a table in colours, and the ways in which two networks met as bars; PNG or SVG."""
    from aspen_mp.bench.figures.picture import pyplot, save

    figure, (left, right) = pyplot().subplots(1, 2, figsize=(10, 3.6), layout="constrained", width_ratios=(1, 1.6))
    kinds = [kind.kind for kind in result.kinds]
    values = [[result.slowdown(kind, beside) for beside in kinds] for kind in kinds]
    left.imshow(values, cmap="Blues", vmin=0.9, vmax=2)
    for row, line in enumerate(values):
        for column, value in enumerate(line):
            left.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=9, color="white" if value > 1.5 else "black")
    left.set_xticks(range(len(kinds)), kinds)
    left.set_yticks(range(len(kinds)), kinds)
    left.set(title="time by time alone", xlabel="on the other core", ylabel="phase")
    ways = result.meetings
    drawn = right.barh([meeting.way for meeting in ways], [meeting.ms for meeting in ways], color="tab:blue")
    right.bar_label(drawn, fmt="%.1f", fontsize=8, padding=3)
    right.invert_yaxis()
    right.margins(x=0.12)
    right.set(title="two networks of alternating phases", xlabel="ms until both have ended")
    save(figure, file)
