"""Rounds in which every engine has one turn, in rotating order, and what they add up to."""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnx

from aspen_mp.bench import models

from .accuracy import Accuracy, judge
from .cases import Case
from .engines import ENGINES
from .seat import Seat, SeatError, Turn

FOREIGN_LIMIT = 0.1
"""Cores that other processes may use in a round that counts, on up to four cores; on more, `FOREIGN_SHARE` of them."""
FOREIGN_SHARE = 0.025
OURS = "aspen-mp"
OURS_BF16 = "aspen-mp, bf16"
"""The label of aspen-mp with products in bf16, where it stands beside aspen-mp in f32."""


class Labelled(Protocol):
    """The label of rounds."""

    @property
    def label(self) -> str: ...


class Sitting(Labelled, Protocol):
    """An engine in a process of its own that takes turns; see `Seat`."""

    cores: list[int]

    def turn(self, seconds: float, runs: int, beside: Callable[[], float] = float) -> Turn: ...


@dataclass(frozen=True, slots=True)
class Schedule:
    """How to measure: rounds that must count, how many may be lost to other load, seconds and runs of a turn."""

    rounds: int = 7
    spare: int = 14
    seconds: float = 0.3
    runs: int = 3


@dataclass(slots=True)
class EngineResult:
    """Milliseconds: `median` over rounds of the turn's median, `min` over all runs; `rounds_ms`, `rounds_min_ms`: the median and
    the fastest run of each round. Ratios are aspen-mp's time divided by this engine's,
    from the same rounds; difference: largest difference of any output from aspen-mp's, as a share of the output's largest magnitude;
    error: the same from aspen-mp's in float32, where the case is in another precision. `counters`: see `shares`. `accuracy`: where errors
    against float64 were measured. `engine`: its label; `runs`: in all rounds."""

    engine: str
    version: str
    settings: str
    load_s: float
    first_s: float
    median: float
    min: float
    runs: int
    rounds_ms: list[float]
    rounds_min_ms: list[float]
    counters: dict[str, float] | None = None
    ratio_median: float | None = None
    ratio_min: float | None = None
    difference: float | None = None
    error: float | None = None
    accuracy: Accuracy | None = None


@dataclass(slots=True)
class CaseResult:
    """`inputs`: how many the errors against float64 are of."""

    case: str
    macs: int | None
    threads: int
    cores: list[int]
    rounds: int
    rejected: int
    disturbed: int  # rounds that count although other processes ran: too few were quiet
    engines: list[EngineResult]
    failed: dict[str, str]
    inputs: int = 0

    @property
    def best_peer(self) -> EngineResult | None:
        """The fastest of the others, by median: the one whose ratio is the largest."""
        return max((e for e in self.engines if e.ratio_median is not None), key=lambda e: e.ratio_median or 0.0, default=None)


@dataclass(frozen=True, slots=True)
class Contender:
    """An engine of a comparison, by what it is called there. `how`: options of its loader."""

    label: str
    engine: str
    how: Mapping[str, Any] = field(default_factory=dict)


def alike(case: Case, engines: Sequence[str]) -> list[Contender]:
    """The engines with the same arithmetic: float32, or what the case allows those that can."""
    return [Contender(name, name, {"precision": case.precision} if name in ENGINES and ENGINES[name].rounds else {}) for name in engines]


def as_they_come(engines: Sequence[str]) -> list[Contender]:
    """The engines with their defaults, and aspen-mp in bf16 beside, which OpenVINO chooses by itself where the processor has it."""
    found = []
    for name in engines:
        found.append(Contender(name, name, {"defaults": True} if name in ENGINES and ENGINES[name].settable else {}))
        if name == OURS:
            found.append(Contender(OURS_BF16, name, {"defaults": True, "precision": "bf16"}))
    return found


def measure(
    case: Case,
    contenders: Sequence[Contender],
    cores: list[int],
    schedule: Schedule,
    advance: Callable[[str], None] = lambda _: None,
    inputs: int = 0,
) -> CaseResult:
    """Measures a case. An engine that fails is reported and left out; the others go on. `inputs`: for how many errors are measured."""
    with prepared(case) as (here, macs):
        seats: list[Seat] = []
        failed: dict[str, str] = {}
        try:
            for each in contenders:
                advance(f"{case.label}: loading {each.label}")
                outputs = here / f"{each.label}.npz"
                try:
                    seats.append(Seat.start(each.engine, here / "model.onnx", here / "feeds.npz", outputs, cores, each.how, each.label))
                except SeatError as error:
                    failed[each.label] = str(error)
            os.sync()  # what loading wrote would go to disk during the first rounds, by threads of the kernel's
            turns, rejected, disturbed = take_turns(case, seats, failed, schedule, advance)
            there = [seat for seat in seats if turns and seat.label in turns[0]]
            results = [result(seat, [r[seat.label] for r in turns]) for seat in there]
            compare(results, turns, here)
            judged = judge(case, there, inputs, here, advance) if inputs else {}
        finally:
            for seat in seats:
                seat.close()
        for found in results:
            found.accuracy = judged.get(found.engine)
        if case.precision != "f32" and results:
            advance(f"{case.label}: in float32")
            Seat.start(OURS, here / "model.onnx", here / "feeds.npz", here / "f32.npz", cores).close()
            for found in results:
                found.error = difference(here / f"{found.engine}.npz", here / "f32.npz")
    return CaseResult(case.label, macs, len(cores), cores, len(turns), rejected, disturbed, results, failed, inputs)


@contextmanager
def prepared(case: Case) -> Iterator[tuple[Path, int | None]]:
    """A folder with `model.onnx` and `feeds.npz`, and the multiply-adds of a run, where they are known."""
    with tempfile.TemporaryDirectory(prefix="aspen-mp-peers-") as folder:
        here = Path(folder)
        model = models.build(case.network, batch=case.batch, seq=case.seq, **case.options)
        macs = models.describe(model).macs
        onnx.save(model, here / "model.onnx")
        np.savez(here / "feeds.npz", allow_pickle=False, **models.inputs(model))
        del model
        yield here, macs


def take_turns(
    case: Labelled,
    seats: Sequence[Sitting],
    failed: dict[str, str],
    schedule: Schedule,
    advance: Callable[[str], None],
    beside: Callable[[], float] = float,
    probe: Callable[[], float] | None = None,
) -> tuple[list[dict[str, Turn]], int, int]:
    """Turns by label of each round that counts; how many rounds do not; how many count although they were disturbed. `beside`: see
    `Seat.turn`; `probe`: measures the machine between turns."""
    counted: list[dict[str, Turn]] = []
    noisy: list[tuple[float, dict[str, Turn]]] = []
    alive = list(seats)
    while alive and len(counted) < schedule.rounds and len(noisy) < schedule.spare:
        shift = (len(counted) + len(noisy)) % len(alive)
        turns: dict[str, Turn] = {}
        before = probe() if probe else None
        for seat in alive[shift:] + alive[:shift]:
            try:
                turns[seat.label] = seat.turn(schedule.seconds, schedule.runs, beside)
            except SeatError as error:
                failed[seat.label] = str(error)
                continue
            if probe and before is not None:
                after = probe()
                turns[seat.label].probes = before, after
                before = after
        if len(turns) < len(alive):  # rounds are compared engine by engine: all must have the same
            alive = [seat for seat in alive if seat.label in turns]
            counted, noisy = [], []
            continue
        foreign = max(turn.foreign for turn in turns.values())
        if foreign > max(FOREIGN_LIMIT, FOREIGN_SHARE * max(len(seat.cores) for seat in alive)):
            noisy.append((foreign, turns))
        else:
            counted.append(turns)
        advance(f"{case.label}: round {len(counted)} of {schedule.rounds}" + (f", {len(noisy)} disturbed" if noisy else ""))
    disturbed = 0
    if len(counted) < schedule.rounds and noisy:  # a busy machine: the least disturbed rounds, and the report says so
        noisy.sort(key=lambda item: item[0])
        disturbed = min(len(noisy), schedule.rounds - len(counted))
        counted += [turns for _, turns in noisy[:disturbed]]
    return counted, len(noisy) - disturbed, disturbed


def result(seat: Seat, turns: Sequence[Turn]) -> EngineResult:
    return EngineResult(
        engine=seat.label,
        version=seat.info["version"],
        settings=seat.info["settings"],
        load_s=seat.info["load_s"],
        first_s=seat.info["first_s"],
        median=1e3 * statistics.median(statistics.median(turn.seconds) for turn in turns),
        min=1e3 * min(min(turn.seconds) for turn in turns),
        runs=sum(len(turn.seconds) for turn in turns),
        rounds_ms=[1e3 * statistics.median(turn.seconds) for turn in turns],
        rounds_min_ms=[1e3 * min(turn.seconds) for turn in turns],
        counters=shares(turns, len(seat.cores)),
    )


def shares(turns: Sequence[Turn], threads: int) -> dict[str, float] | None:
    """How an engine that counts spent its cores' time during the runs, as shares. They are `kernels`, `scheduling`, and `idle`, the rest
    (looking for work, the client's copying in and out). `overhead`: scheduling's share of these two. `tiles`, `steals`: a run."""
    if not turns[0].counters:
        return None
    total = {name: sum(turn.counters[name] for turn in turns) for name in turns[0].counters}
    runs, cores_ns = sum(len(turn.seconds) for turn in turns), 1e9 * threads * sum(sum(turn.seconds) for turn in turns)
    kernels, scheduling = total["kernel_ns"], total["schedule_ns"]
    return {
        "kernels": kernels / cores_ns,
        "scheduling": scheduling / cores_ns,
        "idle": 1 - (kernels + scheduling) / cores_ns,
        "overhead": scheduling / max(kernels + scheduling, 1),
        "tiles": total["tiles"] / runs,
        "steals": total["steals"] / runs,
    }


def compare(results: list[EngineResult], turns: list[dict[str, Turn]], folder: Path) -> None:
    """Fills in ratios and differences where aspen-mp was measured too."""
    ours = next((r for r in results if r.engine == OURS), None)
    if ours is None:
        return
    for other in results:
        if other is ours:
            continue
        pairs = [(statistics.median(t[OURS].seconds), statistics.median(t[other.engine].seconds)) for t in turns]
        other.ratio_median = statistics.median(a / b for a, b in pairs)
        other.ratio_min = ours.min / other.min
        other.difference = difference(folder / f"{OURS}.npz", folder / f"{other.engine}.npz")


def difference(ours: Path, theirs: Path) -> float:
    worst = 0.0
    with np.load(ours) as a, np.load(theirs) as b:
        for name in b.files:
            x, y = a[name].astype(np.float64), b[name].astype(np.float64)
            worst = max(worst, float(np.abs(x - y).max() / max(float(np.abs(y).max()), np.finfo(np.float32).tiny)))
    return worst
