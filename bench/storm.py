"""Workers killed at random while requests run: `aspen-mp bench storm`.

Threads, of other processes too, keep requests of several networks in flight on a runtime of its own. Signals hit random workers at random
moments, now and then all workers at once. Every answer is compared bit for bit with that of an undisturbed run. How long each death held
things up is taken from the runtime's own records, from the signal on. Dead workers count until they are replaced, so plans stay, unless
the machine's cores change their speeds.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import aspen_mp
from aspen_mp.bench.load import WATCHDOG_S, Answer, Load, Spread, Subject, subjects
from aspen_mp.bench.peers.cases import Case

MIX = {"KILL": 0.7, "SEGV": 0.1, "ABRT": 0.1, "STOP": 0.1}
"""Signals and how often each is taken, against each other."""
AT_ONCE = 0.1
"""Share of the strokes that kill all workers together."""
WINDOW_S = 2.0
"""Width of the running mean in the plot."""


@dataclass(frozen=True, slots=True)
class Weather:
    """What is done to the runtime: `seconds` of it, `per_minute` strokes, and the same load in peace for `calm_s`, half before, half after.
    `threads`: client threads in each client process; `processes`: client processes beside this one."""

    seconds: float = 180.0
    per_minute: float = 75.0
    workers: int = 4
    threads: int = 4
    processes: int = 1
    mix: Mapping[str, float] = field(default_factory=lambda: dict(MIX))
    at_once: float = AT_ONCE
    calm_s: float = 20.0
    seed: int = 0


@dataclass(slots=True)
class Stroke:
    """A worker that was hit, `at_s` after the load began. `recovery_ms`: until work went on, on the other workers if there were any,
    else on a new one; None where nothing had to recover. A stopped worker is ended by the runtime after a second; its time runs from
    there."""

    at_s: float
    pid: int
    signal: str
    all_at_once: bool
    survivors: int | None = None
    recovery_ms: float | None = None


@dataclass(slots=True)
class Storm:
    """`requests` and `calm_requests`: answers in and outside the storm, which lasted from `began_s` to `ended_s`. `own_ms`: recovery as the
    runtime itself measures it, from noticing a death to going on; `joins`: from starting a new worker until it runs."""

    cases: list[str]
    weather: Weather
    began_s: float = 0.0
    ended_s: float = 0.0
    strokes: list[Stroke] = field(default_factory=list)
    done_s: list[list[float]] = field(default_factory=list)
    requests: int = 0
    lost: int = 0
    wrong: int = 0
    why: list[str] = field(default_factory=list)
    per_s: float = 0.0
    calm_per_s: float = 0.0
    with_survivors: Spread = field(default_factory=lambda: Spread.of([]))
    with_none: Spread = field(default_factory=lambda: Spread.of([]))
    own_ms: Spread = field(default_factory=lambda: Spread.of([]))
    joins: Spread = field(default_factory=lambda: Spread.of([]))
    recovery: dict[str, Any] = field(default_factory=dict)

    @property
    def per_minute(self) -> float:
        """Workers hit a minute."""
        return 60 * len(self.strokes) / (self.ended_s - self.began_s)

    @property
    def verdict(self) -> str:
        """The result in one line."""
        whole = "none lost, none wrong" if not self.lost + self.wrong else f"{self.lost} LOST, {self.wrong} WRONG"
        return (
            f"{' + '.join(self.cases)}: {len(self.strokes)} workers killed in {self.ended_s - self.began_s:.0f} s "
            f"({self.per_minute:.0f} a minute), {self.requests} requests, {whole}; "
            f"recovery {self.with_survivors} with survivors ({self.with_survivors.number}), "
            f"{self.with_none} with none ({self.with_none.number}); {self.per_s:.1f} requests/s, {self.calm_per_s:.1f} undisturbed"
        )


def measure(cases: Sequence[Case], weather: Weather, say: Callable[[str], None] = lambda _: None) -> Storm:
    """Runs the storm on a runtime of its own."""
    say("starting")
    with aspen_mp.Runtime(workers=weather.workers, log="off") as runtime:
        return rage(runtime, subjects(runtime, cases, say), weather, say)


def rage(runtime: aspen_mp.Runtime, loaded: Sequence[Subject], weather: Weather, say: Callable[[str], None] = lambda _: None) -> Storm:
    """A storm over a runtime that has been started with `weather.workers` workers and holds what is `loaded`."""
    storm = Storm([it.label for it in loaded], weather)
    watch = _Watch(runtime)
    load = Load(loaded, weather.threads, weather.processes)
    try:
        say("undisturbed")
        load.sleep(weather.calm_s / 2)
        storm.began_s = time.monotonic() - load.since
        _strike(watch, weather, load, storm, say)
        storm.ended_s = time.monotonic() - load.since
        watch.settle(weather.workers)
        say("undisturbed")
        load.sleep(weather.calm_s / 2)
    finally:
        answers = load.stop()
    watch.look()
    _account(storm, answers, load.since, watch)
    return storm


class _Watch:
    """Gathers what `status` tells of recoveries, each once."""

    def __init__(self, runtime: aspen_mp.Runtime) -> None:
        self._runtime = runtime
        self.outages: dict[float, dict[str, Any]] = {}
        self.joins: dict[tuple[float, int], float] = {}
        self.totals: dict[str, Any] = {}
        self.look()
        self._old = set(self.joins)

    def look(self) -> list[dict[str, Any]]:
        """The workers, now."""
        status = self._runtime.status()
        recovery = status["recovery"]
        self.outages |= {outage["began"]: outage for outage in recovery["latest"]}
        self.joins |= {(e["time"], e["pid"]): e["seconds"] for e in status["events"] if e["event"] == "worker-joined"}
        self.totals = {key: value for key, value in recovery.items() if key != "latest"}
        workers: list[dict[str, Any]] = status["workers"]
        return workers

    @property
    def new_joins(self) -> list[float]:
        return [seconds for key, seconds in self.joins.items() if key not in self._old]

    def settle(self, workers: int) -> None:
        """Waits until as many workers run as before."""
        deadline = time.monotonic() + WATCHDOG_S
        while sum(w["state"] == "running" for w in self.look()) < workers and time.monotonic() < deadline:
            time.sleep(0.01)


def _strike(watch: _Watch, weather: Weather, load: Load, storm: Storm, say: Callable[[str], None]) -> None:
    rng = random.Random(weather.seed)
    names, shares = list(weather.mix), list(weather.mix.values())
    # A stroke at all of them hits several: so many strokes that the workers hit come to `per_minute`.
    mean = 60 / weather.per_minute * (1 + weather.at_once * (weather.workers - 1))
    end = time.monotonic() + weather.seconds
    due = time.monotonic()
    while True:
        due += mean * rng.uniform(0.5, 1.5)
        if due >= end:
            load.sleep(max(0.0, end - time.monotonic()))
            return
        load.sleep(max(0.0, due - time.monotonic()))
        victims = [w["pid"] for w in watch.look() if w["pid"] and w["state"] == "running"]
        if not victims:
            continue
        everyone = rng.random() < weather.at_once
        name = "KILL" if everyone else rng.choices(names, shares)[0]
        for pid in victims if everyone else [rng.choice(victims)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.Signals[f"SIG{name}"])
                storm.strokes.append(Stroke(time.monotonic() - load.since, pid, name, everyone))
        say(f"{len(storm.strokes)} workers killed, {end - time.monotonic():.0f} s to go")


def _account(storm: Storm, answers: Sequence[Answer], since: float, watch: _Watch) -> None:
    storm.lost = sum(bool(a.lost) for a in answers)
    storm.wrong = sum(a.wrong for a in answers)
    storm.why = sorted({a.lost for a in answers if a.lost})[:8]
    good = [(a.subject, a.done - since) for a in answers if not a.lost]
    storm.done_s = [[done for index, done in good if index == k] for k in range(len(storm.cases))]
    storm.requests = sum(storm.began_s <= done < storm.ended_s for _, done in good)
    storm.per_s = storm.requests / (storm.ended_s - storm.began_s)
    if storm.weather.calm_s:
        storm.calm_per_s = (len(good) - storm.requests) / (max((d for _, d in good), default=0.0) - (storm.ended_s - storm.began_s))
    of_pid = {pid: outage for outage in watch.outages.values() for pid in outage["pids"]}
    for stroke in storm.strokes:
        outage = of_pid.get(stroke.pid)
        if outage is None or outage["runs"] is None:
            continue
        began = outage["began"] if stroke.signal == "STOP" else since + stroke.at_s
        stroke.survivors = outage["survivors"]
        stroke.recovery_ms = (outage["runs"] - began) * 1e3
    storm.with_survivors = Spread.of([s.recovery_ms / 1e3 for s in storm.strokes if s.recovery_ms is not None and s.survivors])
    storm.with_none = Spread.of([s.recovery_ms / 1e3 for s in storm.strokes if s.recovery_ms is not None and not s.survivors])
    storm.own_ms = Spread.of([o["ended"] - o["began"] for o in watch.outages.values()])
    storm.joins = Spread.of(watch.new_joins)
    storm.recovery = watch.totals


def plot(storm: Storm, file: Path) -> None:
    """Throughput, as a running mean over `WINDOW_S`, each stroke and how long its recovery took against time, as a PNG."""
    from aspen_mp.bench.figures.picture import pyplot, save

    done = np.sort(np.concatenate([np.array(times) for times in storm.done_s]))
    end = float(done[-1])
    at = np.arange(0.0, end, WINDOW_S / 5)
    low, high = np.maximum(at - WINDOW_S / 2, 0.0), np.minimum(at + WINDOW_S / 2, end)
    rate = (np.searchsorted(done, high) - np.searchsorted(done, low)) / (high - low)
    figure, axes = pyplot().subplots(figsize=(11, 4.5), layout="constrained")
    axes.plot(at, rate, color="tab:blue", linewidth=1)
    axes.axvspan(storm.began_s, storm.ended_s, color="0.95")
    axes.hlines(storm.calm_per_s, 0, end, color="tab:blue", alpha=0.5, linestyle="--", label="undisturbed")
    axes.hlines(storm.per_s, storm.began_s, storm.ended_s, color="tab:blue", alpha=0.8, linestyle=":", label="in the storm")
    axes.set(xlabel="seconds", ylabel="requests/s", ylim=(0, None), xlim=(0, end))
    axes.set_title(f"{' + '.join(storm.cases)}: {len(storm.strokes)} workers killed, {storm.lost} requests lost, {storm.wrong} wrong")
    times = axes.twinx()
    kinds = (("others went on", "tab:orange", True), ("none was left", "tab:red", False))
    for label, color, others in kinds:
        chosen = [(s.at_s, s.recovery_ms) for s in storm.strokes if s.recovery_ms is not None and bool(s.survivors) == others]
        times.scatter([at for at, _ in chosen], [ms for _, ms in chosen], s=12, color=color, label=label)
    times.set(ylabel="recovery, ms", yscale="log")
    figure.legend(loc="outside lower center", ncols=4, frameon=False)
    save(figure, file)
