"""The search for schedules of several networks: against all schedules, against CP-SAT, and what must hold of any."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
from enumerated_schedules import best_value, drawn, units
from hypothesis import given, settings
from hypothesis import strategies as st

from aspen_mp.planner.coschedule.contention import Contention
from aspen_mp.planner.coschedule.evaluate import Placed, evaluate
from aspen_mp.planner.coschedule.problem import OBJECTIVES, Job, Objective, Problem, ProfiledNetwork, better
from aspen_mp.planner.coschedule.search import Incumbent, Search

LONG = 60.0
"""Seconds after which a test gives up waiting for a proof."""

CASES = [
    ("units", 2, 2, False),
    ("units", 2, 2, True),
    ("units", 2, 3, False),
    ("classes", 2, 2, False),
    ("classes", 2, 2, True),
    ("three", 2, 2, True),
    ("units", 3, 2, True),
]

GOOGLENET = np.array(
    [
        [0.45, 0.75, 0.056, 0.15, 41.97],
        [0.19, 0.34, 0.075, 0.13, 62.21],
        [0.31, 0.45, 0.062, 0.08, 78.49],
        [0.18, 0.37, 0.011, 0.03, 53.41],
        [0.16, 0.31, 0.055, 0.03, 55.70],
        [0.17, 0.33, 0.024, 0.04, 59.24],
        [0.21, 0.31, 0.058, 0.05, 62.60],
        [0.25, 0.35, 0.030, 0.06, 76.12],
        [0.16, 0.27, 0.024, 0.07, 66.95],
        [0.24, 0.36, 0.007, 0.05, 47.96],
    ]
)
"""GoogleNet as the paper publishes it: ms on units G and D, transitions G to D and D to G after the group, % of the memory's throughput."""


def proven(problem: Problem, objective: Objective = "latency") -> Incumbent:
    found = Search(problem, objective).run(time.monotonic() + LONG)
    assert found.proven
    return found


def published() -> ProfiledNetwork:
    """What leaves a group is entered by the next one; a transition is charged whole when it enters the other unit."""
    g, d, to_d, to_g, memory = GOOGLENET.T
    enter = np.zeros((len(g), 2))
    enter[1:, 1], enter[1:, 0] = to_d[:-1], to_g[:-1]
    demand = np.stack([memory, memory * g / d], axis=1)  # the same bytes in another time
    return ProfiledNetwork("GoogleNet", tuple(map(str, range(len(g)))), np.stack([g, d], axis=1), demand, np.zeros_like(enter), enter)


@pytest.mark.parametrize("seed", range(16))
@pytest.mark.parametrize(("kind", "jobs", "groups", "waits"), CASES)
def test_a_proven_schedule_is_the_best_of_all(kind: str, jobs: int, groups: int, waits: bool, seed: int) -> None:
    problem = drawn(seed, jobs, groups, kind=kind, waits=waits)
    objective = OBJECTIVES[seed % 2]
    assert proven(problem, objective).value == pytest.approx(best_value(problem, objective), rel=1e-7)


@settings(deadline=None, max_examples=40)
@given(
    st.integers(0, 10**6),
    st.integers(1, 3),
    st.integers(1, 6),
    st.sampled_from(["units", "three", "classes"]),
    st.booleans(),
    st.booleans(),
)
def test_no_schedule_is_worse_than_naive_or_better_than_its_bound(
    seed: int, jobs: int, groups: int, kind: str, waits: bool, throughput: bool
) -> None:
    problem = drawn(seed, jobs, groups, kind=kind, waits=waits)
    objective = OBJECTIVES[throughput]
    search = Search(problem, objective)
    naive = [problem.value(schedule.ends, objective) for schedule in search.naive.values()]
    best = search.best
    for _ in range(6):
        found = search.next_incumbent(time.monotonic() + 0.02)
        assert not any(better(value, found.value, objective) for value in [*naive, best.value])
        assert not better(found.value, found.bound, objective)
        again = evaluate(problem, Placed(found.schedule.steps))
        assert again.ends == pytest.approx(found.schedule.ends, rel=1e-6)
        best = found


def test_schedules_follow_each_other_in_the_same_order() -> None:
    def values() -> list[float]:
        search, out = Search(drawn(3, 2, 8)), []
        while not search.finished:
            out.append(search.next_incumbent(time.monotonic() + LONG).value)
        return out

    first = values()
    assert first == values()
    assert first == sorted(first, reverse=True)


def test_cores_are_not_used_twice() -> None:
    problem = drawn(5, 3, 3, kind="classes")
    steps = Search(problem).run(time.monotonic() + 0.2).schedule.steps
    for step in steps:
        there = [other for other in steps if other.start < step.end - 1e-9 and step.start < other.end - 1e-9]
        for at in [other.start for other in there]:
            running = [problem.sets[other.set].cores for other in there if other.start <= at < other.end - 1e-9]
            assert all(sum(used) <= domain.cores for used, domain in zip(zip(*running, strict=True), problem.domains, strict=True))


def test_published_network_beside_itself() -> None:
    """On two unlike units under contention both are used, and waiting is allowed, so the schedule beats the naive ones."""
    network = published()
    domains, sets = units(2)
    problem = Problem(domains, sets, (Contention.fair(100.0),), (Job(network), Job(network)))
    search = Search(problem)
    found = search.run(time.monotonic() + LONG)
    assert found.settled
    assert search.naive["serial"].makespan == pytest.approx(2 * GOOGLENET[:, 0].sum())
    assert min(schedule.makespan for schedule in search.naive.values()) == pytest.approx(3.486638)
    assert found.proven
    assert found.value == pytest.approx(3.124305, abs=1e-6)
    assert {step.set for step in found.schedule.steps} == {0, 1}


def test_equal_objectives_of_one_network() -> None:
    problem = drawn(1, 1, 4)
    assert proven(problem, "throughput").value == pytest.approx(1 / proven(problem).value)


def test_what_a_search_does_not_take() -> None:
    problem = drawn(1, 2, 2)
    with pytest.raises(ValueError, match="one of latency, throughput"):
        Search(problem, "energy")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="9 jobs"):
        Problem(problem.domains, problem.sets, problem.memories, problem.jobs[:1] * 9)


# ------------------------------------------------------------------------------------------------------- CP-SAT


@pytest.mark.parametrize("seed", range(6))
def test_within_two_percent_of_cp_sat(seed: int) -> None:
    """Without contention the problem is a flexible job shop with set-up times, which CP-SAT solves. Times are integers there."""
    problem = drawn(seed, 3, 4, contention=False)
    found = Search(problem).run(time.monotonic() + LONG)
    assert found.value <= 1.02 * _cp_sat(problem)
    assert found.value >= 0.999 * _cp_sat(problem)


def _cp_sat(problem: Problem, scale: float = 1e4) -> float:
    cp_model = pytest.importorskip("ortools.sat.python.cp_model")
    model = cp_model.CpModel()
    horizon = int(scale * 4 * sum(float(job.network.ns.max(axis=1).sum()) for job in problem.jobs))
    on_set: list[list[object]] = [[] for _ in problem.sets]
    last = []
    for k, job in enumerate(problem.jobs):
        end, before = 0, []
        for i in range(len(job.network.groups)):
            start, stop = model.new_int_var(0, horizon, ""), model.new_int_var(0, horizon, "")
            here = [model.new_bool_var("") for _ in problem.sets]
            model.add_exactly_one(here)
            for a, chosen in enumerate(here):
                ns = math.floor(scale * job.network.ns[i, a])
                on_set[a].append(model.new_optional_interval_var(start, ns, stop, chosen, ""))
                for b, left in enumerate(before):
                    model.add(start >= end + math.floor(scale * problem.transition(k, i, b, a))).only_enforce_if(chosen, left)
            end, before = stop, here
        last.append(end)
    for intervals in on_set:
        model.add_no_overlap(intervals)
    latest = model.new_int_var(0, horizon, "")
    model.add_max_equality(latest, last)
    model.minimize(latest)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = 20
    solver.parameters.num_workers = 2
    assert solver.solve(model) in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    return float(solver.objective_value) / scale
