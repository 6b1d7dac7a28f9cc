"""Schedules of networks that run together, and whether workers follow them.

Clients say which of their models run together (`Workload`). All of those are one *set*. Once requests of each have ended, a child searches
for schedules of the set, and workers follow each better one at once (docs/protocol/hints.md). Whether that is good is measured
(`schedule_trial.py`). What does harm is reverted, and not tried again for the same set.

    alone ──► waiting ──► naive ──► trial ──► solved
      ▲          ▲                    └──► reverted ◄──┘
      └──────────┴── the set, its plans or the cores change
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from aspen_mp.control.models.schedule_trial import Count, Trial, Window, cost
from aspen_mp.control.planning.schedule_child import Candidate, Core, Network, ScheduleChild
from aspen_mp.control.wire.event_log import EventLog
from aspen_mp.planner.job.options import Objective
from aspen_mp.system import descriptors

LOOK_S: Final = 0.1
"""How often networks that run together are looked at."""
ENDED_FIRST: Final = 2
"""So many requests of each network have ended before a schedule is searched for: then their plans are known, and how often each runs."""
MOST_TIMES: Final = 4
MOST_RUNS: Final = 8
"""Of a network, and of all, in a round that is scheduled."""
MOST_REVERTED: Final = 64
"""Sets that are remembered because their schedules did harm."""
Table = dict[int, list[tuple[int, int, bool]]]
"""Hints by plan and depth."""


class Phase(StrEnum):
    """Of a set."""

    ALONE = "alone"  # a network alone needs no schedule
    WAITING = "waiting"  # for requests of each network
    NAIVE = "naive"  # workers share the cores as they like: nothing has been found yet, or nothing to follow
    TRIAL = "trial"  # a schedule is in force every other window
    SOLVED = "solved"  # a schedule is in force
    REVERTED = "reverted"  # one did harm; as naive


@dataclass(frozen=True, slots=True)
class Live:
    """A model's plan that serves requests. `fd`, `nbytes`: its segment."""

    plan: int
    fd: int
    nbytes: int
    served: int


@dataclass(frozen=True, slots=True)
class View:
    """What is seen of the runtime. `live(model)`: its plans that have numbers; `counts()`: by model, as of `ControlTable.model_counts`;
    `cores()`: of each row with a worker; `publish(table, domains)`: puts hints in force and returns their version; `name(model)`."""

    live: Callable[[int], list[Live]]
    counts: Callable[[], dict[int, dict[str, float]]]
    cores: Callable[[], dict[int, Core]]
    publish: Callable[[Table, Sequence[int]], int]
    name: Callable[[int], str]


@dataclass(slots=True)
class _Entry:
    client: int
    models: list[int]
    objective: Objective


@dataclass(frozen=True, slots=True)
class Signature:
    """What a schedule is for. `plans`: of each model."""

    plans: tuple[tuple[int, int], ...]
    cores: tuple[tuple[int, Core], ...]
    objective: Objective

    @property
    def key(self) -> tuple[Any, ...]:
        """What it is remembered by: a plan that is made again does not make it another set."""
        return tuple(model for model, _ in self.plans), self.cores, self.objective


@dataclass(slots=True)
class Following:
    """A set that is measured: what has been found for it and what is in force. `times`: runs of each network in a round."""

    times: list[int]
    candidate: Candidate | None = None
    trial: Trial | None = None
    window: Window | None = None
    on: bool = False
    version: int = 0
    why: str = ""

    @property
    def phase(self) -> Phase:
        trial = self.trial
        if trial is None:
            return Phase.NAIVE
        if trial.reverted:
            return Phase.REVERTED
        return Phase.SOLVED if trial.kept else Phase.TRIAL


@dataclass(slots=True)
class _Asked:
    entries: dict[int, _Entry] = field(default_factory=dict)
    next: int = 1


class Schedules:
    """`later(seconds, action)` and `child(networks, cores, objective, cache, found, ended)` are the event loop's and `ScheduleChild`'s, but
    for tests. `now()`: seconds. `cache`: the plan cache's folder."""

    def __init__(
        self,
        view: View,
        event_log: EventLog,
        now: Callable[[], float],
        later: Callable[[float, Callable[[], object]], object],
        child: Callable[..., ScheduleChild],
        cache: str = "",
    ) -> None:
        self._view, self._event_log, self._now, self._later, self._make_child = view, event_log, now, later, child
        self._cache = cache
        self._asked = _Asked()
        self._looking = False
        self._first: dict[int, Count] = {}
        self._served: dict[int, int] = {}
        self._plan_of: dict[int, int] = {}
        self._signature: Signature | None = None
        self._set: Following | None = None
        self._child: ScheduleChild | None = None
        self._reverted: OrderedDict[tuple[Any, ...], None] = OrderedDict()

    # ---- what clients say

    def begin(self, client: int, models: Sequence[int], objective: Objective) -> int:
        """These models of a client run together from now on, beside those that others have named. Returns a number to end that by."""
        number, self._asked.next = self._asked.next, self._asked.next + 1
        self._asked.entries[number] = _Entry(client, list(models), objective)
        self._changed()
        return number

    def end(self, client: int, number: int) -> None:
        """They do no longer. A number that is not the client's is left alone."""
        entry = self._asked.entries.get(number)
        if entry is not None and entry.client == client:
            del self._asked.entries[number]
            self._changed()

    def client_gone(self, client: int) -> None:
        """Nothing of this client runs any more."""
        for number in [number for number, entry in self._asked.entries.items() if entry.client == client]:
            self.end(client, number)

    def close(self) -> None:
        """Ends the child."""
        if self._child is not None:
            self._child.close()

    @property
    def _models(self) -> list[int]:
        return sorted({model for entry in self._asked.entries.values() for model in entry.models})

    @property
    def _objective(self) -> Objective:
        every = {entry.objective for entry in self._asked.entries.values()}
        return "throughput" if every == {"throughput"} else "latency"

    def _changed(self) -> None:
        """The set is another one: its hints go."""
        self._drop()
        self._first, self._served, self._plan_of = {}, {}, {}
        if len(self._models) > 1 and not self._looking:
            self._looking = True
            self._later(LOOK_S, self._look)

    def _drop(self) -> None:
        if self._child is not None:
            self._child.close()
            self._child = None
        if self._set is not None and self._set.on:
            self._view.publish({}, [])
        self._set = self._signature = None

    # ---- looking

    def _look(self) -> None:
        models = self._models
        self._looking = len(models) > 1
        if not self._looking:
            return
        self._later(LOOK_S, self._look)
        said = self._view.counts()
        counts = {model: _count(said.get(model)) for model in models}
        signature = self._seen(models)
        if self._signature is not None and signature != self._signature:
            self._drop()
            self._first = {}
        if not self._first:
            self._first = counts
        if signature is None:
            return
        if self._set is None:
            ended = [counts[model].ended - self._first[model].ended for model in models]
            if min(ended) >= ENDED_FIRST:
                self._start(signature, ended)
        else:
            self._measure([counts[model] for model in models])

    def _seen(self, models: Sequence[int]) -> Signature | None:
        """What runs now; None while a model has no plan that serves requests."""
        plans = []
        for model in models:
            live = {each.plan: each.served for each in self._view.live(model)}
            grown = {plan: served - self._served.get(plan, served) for plan, served in live.items()}
            self._served.update(live)
            known = self._plan_of.get(model, 0)
            if known not in live:
                known = max(live, key=lambda plan: grown[plan], default=0)
                if not known or not grown[known]:
                    return None
                self._plan_of[model] = known
            plans.append((model, known))
        return Signature(tuple(plans), tuple(sorted(self._view.cores().items())), self._objective)

    def _start(self, signature: Signature, ended: Sequence[int]) -> None:
        """A child is to search for schedules."""
        self._signature = signature
        self._set = Following(rounds(ended))
        if signature.key in self._reverted:
            self._set.why = "a schedule of these networks has done harm before"
            return
        if len(signature.plans) > MOST_RUNS:
            self._set.why = f"{len(signature.plans)} networks run together, and schedules are for {MOST_RUNS} at most"
            return
        networks = []
        for (model, plan), times in zip(signature.plans, self._set.times, strict=True):
            there = next(each for each in self._view.live(model) if each.plan == plan)
            networks.append(Network(f"{self._view.name(model)} {model}", there.fd, there.nbytes, times))
        cores = [core for _, core in signature.cores]
        try:
            self._child = self._make_child(networks, cores, signature.objective, self._cache, self._found, self._ended)
        except OSError as error:
            self._ended(f"there is no process for it: {error}")

    def _found(self, candidate: Candidate) -> None:
        """A better schedule than the one before: workers follow it from the next tile on."""
        assert self._set is not None
        assert self._signature is not None
        fits = len(candidate.hints) == len(self._signature.plans) and len(candidate.domains) == len(self._signature.cores)
        if not fits or (self._set.trial is not None and self._set.trial.reverted):
            return
        self._set.candidate = candidate
        if not any(any(hint[0] or hint[1] or hint[2] for hint in each) for each in candidate.hints):
            self._set.trial = None  # it is what workers do by themselves
            self._show(False)
            return
        self._set.trial = Trial()
        self._show(True)

    def _ended(self, why: str) -> None:
        self._child = None
        if why and self._set is not None:
            self._set.why = why
            self._event_log.warning("schedule-search-failed", why=why, models=self._names)

    @property
    def _names(self) -> str:
        return ", ".join(self._view.name(model) for model in self._models)

    def _show(self, on: bool) -> None:
        """The schedule is in force, or not."""
        state, signature = self._set, self._signature
        assert state is not None
        assert signature is not None
        state.window = None
        if on:
            assert state.candidate is not None
            domains = [-1] * (max(row for row, _ in signature.cores) + 1)
            for (row, _), domain in zip(signature.cores, state.candidate.domains, strict=True):
                domains[row] = domain
            table = {plan: hints for (_, plan), hints in zip(signature.plans, state.candidate.hints, strict=True)}
            state.version = self._view.publish(table, domains)
        elif state.on:
            state.version = self._view.publish({}, [])
        state.on = on

    def _measure(self, counts: Sequence[Count]) -> None:
        state, signature = self._set, self._signature
        assert state is not None
        assert signature is not None
        trial = state.trial
        if trial is None or trial.reverted:
            return
        if state.window is None:
            state.window = Window(self._now(), counts)
            return
        found = state.window.look(self._now(), counts)
        if found is None:
            return
        state.window = None
        if found:
            trial.add(cost(found, state.times, signature.objective))
        else:
            trial.void()
        if trial.reverted:
            self._reverted[signature.key] = None
            if len(self._reverted) > MOST_REVERTED:
                self._reverted.popitem(last=False)
            state.why = f"networks took {trial.ratio:.3f} times as long by it"
            self._event_log.warning("schedule-reverted", models=self._names, ratio=trial.ratio, pairs=trial.pairs)
            if self._child is not None:
                self._child.close()
                self._child = None
        if trial.on != state.on:
            self._show(trial.on)

    # ---- status

    def describe(self) -> dict[str, Any] | None:
        """For `status`: None where no networks run together."""
        if not self._asked.entries:
            return None
        models, state = self._models, self._set
        candidate, trial = (None, None) if state is None else (state.candidate, state.trial)
        waiting = Phase.WAITING if len(models) > 1 else Phase.ALONE
        latency = self._objective == "latency"
        scale = 1e-6 if latency else 1e9
        return {
            "numbers": sorted(self._asked.entries),
            "models": models,
            "objective": self._objective,
            "phase": str(waiting if state is None else state.phase),
            "version": 0 if state is None else state.version,
            "times": [] if state is None else list(state.times),
            "origin": None if candidate is None else candidate.origin,
            "value": None if candidate is None else candidate.value * scale,
            "bound": None if candidate is None else candidate.bound * scale,
            "naive": None if candidate is None else candidate.naive * scale,
            "proven": candidate is not None and candidate.proven,
            "found_s": None if candidate is None else candidate.seconds,
            "predicted_ms": None if candidate is None else candidate.makespan_ns * 1e-6,
            "measured_ms": _ms(trial, True) if latency else None,
            "without_ms": _ms(trial, False) if latency else None,
            "ratio": None if trial is None else trial.ratio,
            "pairs": 0 if trial is None else trial.pairs,
            "why": "" if state is None else state.why,
        }


def _ms(trial: Trial | None, on: bool) -> float | None:
    found = None if trial is None else trial.latest(on)
    return None if found is None else found * 1e3


def _count(said: dict[str, float] | None) -> Count:
    return Count(0, 0.0) if said is None else Count(int(said["requests"]), said["queue_s"] + said["run_s"])


def rounds(ended: Sequence[int]) -> list[int]:
    """How often each network runs in a round, of which so many requests have ended in the same time."""
    least = min(ended)
    times = [max(1, min(round(n / least), MOST_TIMES)) for n in ended]
    while sum(times) > MOST_RUNS and max(times) > 1:
        times[times.index(max(times))] -= 1
    return times


def live_plan(number: int, fd: int, served: int) -> Live:
    """A plan as `View.live` gives it."""
    return Live(number, fd, descriptors.fstat(fd).st_size, served)
