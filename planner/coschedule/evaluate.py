"""Evaluates a schedule: a simulation from event to event, by the equations of HaX-CoNN, section 3.4.

Time is divided into *contention intervals*, between any two starts or ends of groups. In each, every running group has one slowdown. A
group ends when its time alone is used up: the sum over intervals of their lengths divided by its slowdown there. Units may wait, which the
paper forbids. This is the oracle of the search in `search.h`, and is written independently of it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from aspen_mp.planner.coschedule.problem import Objective, Problem, better

ROUNDING: Final = 1e-9


@dataclass(frozen=True, slots=True)
class ScheduledGroup:
    """A layer group of a job on a core set, by their numbers, from `start` to `end` in ns."""

    job: int
    group: int
    set: int
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Interval:
    """A contention interval, in ns. `slowdown`: of each job that runs a group in it."""

    start: float
    end: float
    slowdown: dict[int, float]


@dataclass(frozen=True, slots=True)
class Schedule:
    """`steps` in the order of ends; `ends`: of each job, ns. `intervals`: only of what has been evaluated here, see `Placed`."""

    steps: tuple[ScheduledGroup, ...]
    ends: tuple[float, ...]
    intervals: tuple[Interval, ...] = ()

    @property
    def makespan(self) -> float:
        """Nanoseconds until the last job ends."""
        return max(self.ends)


class Policy(Protocol):
    """Decides where the groups of a schedule run, and when."""

    def choose(self, state: State, job: int) -> int | None:
        """The core set for the next group of a job, or None to ask again at the next event. It is asked first when the group before has
        ended. Data move at once where they must; then `starts` is asked."""

    def starts(self, state: State, job: int) -> bool:
        """Whether a group may start whose data are there and whose cores are idle."""


@dataclass(slots=True)
class State:
    """The view of `Policy`: `group` and `set` of each job, the group being the next one while none runs. `left`: ns alone of running
    groups."""

    problem: Problem
    now: float
    group: list[int]
    set: list[int]
    phase: list[str]
    left: list[float]
    began: list[float]
    ends: list[float]
    steps: list[ScheduledGroup] = field(default_factory=list)
    intervals: list[Interval] = field(default_factory=list)

    @classmethod
    def at_begin(cls, problem: Problem) -> State:
        """Nothing has started."""
        n = len(problem.jobs)
        return cls(problem, 0.0, [0] * n, [0] * n, ["waits"] * n, [0.0] * n, [0.0] * n, [math.inf] * n)

    def fits(self, set_: int) -> bool:
        """Whether the cores of a set are idle."""
        running = [self.problem.sets[self.set[k]].cores for k, phase in enumerate(self.phase) if phase == "runs"]
        wanted = self.problem.sets[set_].cores
        return all(n + sum(cores[d] for cores in running) <= self.problem.domains[d].cores for d, n in enumerate(wanted) if n)

    def active(self) -> list[int]:
        """Jobs that are released and have not ended."""
        return [k for k, phase in enumerate(self.phase) if phase not in ("waits", "done")]

    def slowdowns(self) -> dict[int, float]:
        """Slowdown of each job that runs a group: the largest by any of the memories that it uses."""
        running = [k for k, phase in enumerate(self.phase) if phase == "runs"]
        found = dict.fromkeys(running, 1.0)
        for m, memory in enumerate(self.problem.memories):
            wants = [self.problem.jobs[k].network.demand[self.group[k], self.set[k]] * self.problem.share(self.set[k])[m] for k in running]
            for k, factor in zip(running, memory.slowdowns(wants), strict=True):
                found[k] = max(found[k], factor)
        return found


def evaluate(problem: Problem, policy: Policy) -> Schedule:
    """The schedule that a policy makes. ValueError: it leaves everything idle while jobs are left."""
    state = State.at_begin(problem)
    _release(state)
    while any(phase != "done" for phase in state.phase):
        _decide(state, policy)
        _advance(state)
    return Schedule(tuple(state.steps), tuple(state.ends), tuple(state.intervals))


def _release(state: State) -> None:
    for k, job in enumerate(state.problem.jobs):
        due = job.release <= state.now + ROUNDING * max(state.now, 1.0)
        if state.phase[k] == "waits" and due and all(state.phase[m] == "done" for m in job.after):
            state.phase[k] = "free"


def _decide(state: State, policy: Policy) -> None:
    for k in range(len(state.problem.jobs)):
        if state.phase[k] == "free":
            chosen = policy.choose(state, k)
            if chosen is None:
                continue
            state.left[k] = state.problem.transition(k, state.group[k], state.set[k], chosen)
            state.set[k], state.phase[k] = chosen, "moves" if state.left[k] > 0 else "ready"
        if state.phase[k] == "ready" and state.fits(state.set[k]) and policy.starts(state, k):
            state.phase[k], state.began[k] = "runs", state.now
            state.left[k] = float(state.problem.jobs[k].network.ns[state.group[k], state.set[k]])


def _advance(state: State) -> None:
    slower = state.slowdowns()
    after = {k: state.left[k] * slower.get(k, 1.0) for k, phase in enumerate(state.phase) if phase in ("runs", "moves")}
    releases = [job.release - state.now for k, job in enumerate(state.problem.jobs) if state.phase[k] == "waits"]
    step = min([*after.values(), *(wait for wait in releases if wait > 0)], default=math.inf)
    if math.isinf(step):
        names = [job.network.name for k, job in enumerate(state.problem.jobs) if state.phase[k] != "done"]
        raise ValueError(f"the schedule starts nothing although {', '.join(names)} have not ended")
    if slower:
        state.intervals.append(Interval(state.now, state.now + step, slower))
    state.now += step
    for k in after:
        state.left[k] -= step / slower.get(k, 1.0)
        if state.left[k] > ROUNDING * max(state.now, 1e-300):
            continue
        if state.phase[k] == "moves":
            state.phase[k] = "ready"
            continue
        state.steps.append(ScheduledGroup(k, state.group[k], state.set[k], state.began[k], state.now))
        state.group[k] += 1
        state.phase[k] = "free"
        if state.group[k] == len(state.problem.jobs[k].network.groups):
            state.phase[k], state.ends[k] = "done", state.now
    _release(state)


# ---------------------------------------------------------------------------------------------------- given schedules


class Placed:
    """The core set and the start of each group are given, as `ScheduledGroup`; ends follow."""

    def __init__(self, steps: Sequence[ScheduledGroup]) -> None:
        self._steps = {(step.job, step.group): step for step in steps}

    def choose(self, state: State, job: int) -> int | None:
        """The given set. Data that must move do so at once, whenever the group starts."""
        return self._steps[job, state.group[job]].set

    def starts(self, state: State, job: int) -> bool:
        """Whether the given start has come."""
        return state.now >= self._steps[job, state.group[job]].start * (1 - ROUNDING)


# ---------------------------------------------------------------------------------------------------- naive schedules


class Serial:
    """One job after the other, in a given order. Each runs on the core set that is best for the whole of it, usually all cores."""

    def __init__(self, problem: Problem, order: Sequence[int]) -> None:
        self._order = list(order)
        self._set = [int(job.network.ns.sum(axis=0).argmin()) for job in problem.jobs]

    def choose(self, state: State, job: int) -> int | None:
        """Nothing while a job before this one in the order is active."""
        active = state.active()
        first = next(k for k in self._order if k in active)
        begun = [k for k in active if state.group[k] or state.phase[k] == "runs"]
        return self._set[job] if job == (begun[0] if begun else first) else None

    def starts(self, state: State, job: int) -> bool:
        """Whether the group starts: always at once."""
        return True


class Apart:
    """Each job stays on a core set of its own; jobs of one set queue for it."""

    def __init__(self, sets: Sequence[int]) -> None:
        self._sets = list(sets)

    def choose(self, state: State, job: int) -> int | None:
        """The job's set, as soon as it is idle."""
        return self._sets[job] if state.fits(self._sets[job]) else None

    def starts(self, state: State, job: int) -> bool:
        """Whether the group starts: always at once."""
        return True


class Shared:
    """All jobs at once, each on an equal share of the cores: as a pool does that knows nothing of the networks. A share grows at the next
    group when a job has ended."""

    def choose(self, state: State, job: int) -> int | None:
        """The largest core set that fits into the share."""
        problem, many = state.problem, max(len(state.active()), 1)
        share = [domain.cores / many for domain in problem.domains]
        within = [k for k, each in enumerate(problem.sets) if all(n <= most for n, most in zip(each.cores, share, strict=True))]
        if not within:  # fewer cores than jobs: one each
            least = min(sum(each.cores) for each in problem.sets)
            within = [k for k, each in enumerate(problem.sets) if sum(each.cores) == least]
        group = problem.jobs[job].network.ns[state.group[job]]
        return min((k for k in within if state.fits(k)), key=lambda k: (-sum(problem.sets[k].cores), group[k], k), default=None)

    def starts(self, state: State, job: int) -> bool:
        """Whether the group starts: always at once."""
        return True


def naive(problem: Problem, objective: Objective) -> dict[str, Schedule]:
    """The schedules that nobody has to search for, by name: "serial", "apart" and "shared".

    The best order of "serial" and the best sets of "apart" are taken, so that nothing is gained over a weak opponent.
    """
    orders = itertools.permutations(range(len(problem.jobs)))
    lengths = [float(job.network.ns.sum(axis=0).min()) for job in problem.jobs]
    sorted_once = [sorted(range(len(lengths)), key=lambda k: lengths[k])]
    serial = (Serial(problem, order) for order in (list(orders) if len(lengths) <= MOST_PERMUTED else sorted_once))
    whole = [_whole(problem, d) for d in range(len(problem.domains))]
    there = [k for k in whole if k is not None]
    sets = itertools.product(there, repeat=len(lengths)) if len(there) ** len(lengths) <= MOST_PLACED else [_cycle(there, lengths)]
    found = {"serial": _best(problem, objective, serial)}
    if len(there) > 1:
        found["apart"] = _best(problem, objective, (Apart(each) for each in sets))
    found["shared"] = evaluate(problem, Shared())
    return found


MOST_PERMUTED: Final = 4
"""Jobs whose orders are all tried; of more, shorter ones go first."""
MOST_PLACED: Final = 256
"""Ways to give each job a domain that are all tried; of more, domains are taken in turn."""


def _best(problem: Problem, objective: Objective, policies: Iterable[Policy]) -> Schedule:
    best: Schedule | None = None
    for policy in policies:
        schedule = evaluate(problem, policy)
        if best is None or better(problem.value(schedule.ends, objective), problem.value(best.ends, objective), objective):
            best = schedule
    assert best is not None
    return best


def _whole(problem: Problem, domain: int) -> int | None:
    """The core set of all cores of a domain and no others."""
    wanted = tuple(each.cores if d == domain else 0 for d, each in enumerate(problem.domains))
    return next((k for k, each in enumerate(problem.sets) if each.cores == wanted), None)


def _cycle(sets: Sequence[int], jobs: Sequence[object]) -> tuple[int, ...]:
    return tuple(sets[k % len(sets)] for k in range(len(jobs)))
