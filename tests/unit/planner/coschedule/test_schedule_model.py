"""The model of several networks: contention, core sets, workloads, layer groups, and naive schedules."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from enumerated_schedules import drawn, units
from graphs_by_hand import GraphBuilder
from hypothesis import given
from hypothesis import strategies as st
from small_graphs import residual_block

from aspen_mp.planner.build import build_plan
from aspen_mp.planner.coschedule import units as core_units
from aspen_mp.planner.coschedule.contention import Contention, fair_shares
from aspen_mp.planner.coschedule.evaluate import Placed, ScheduledGroup, evaluate, naive
from aspen_mp.planner.coschedule.problem import Job, Problem, ProfiledNetwork
from aspen_mp.planner.coschedule.profile import layer_groups, live_bytes, profile
from aspen_mp.planner.coschedule.together import Run, together
from aspen_mp.planner.coschedule.workload import Entry, Workload
from aspen_mp.planner.cost.machine import Machine
from aspen_mp.planner.cost.rates import BUILT_IN
from aspen_mp.planner.plan.plan import Plan
from aspen_mp.planner.simulation.simulate import of_plan


def network(times: list[float], demand: float = 0.0, move: float = 0.0, name: str = "n") -> ProfiledNetwork:
    """On two equal units."""
    ns = np.repeat(np.array(times)[:, None], 2, axis=1)
    return ProfiledNetwork(
        name, tuple(map(str, range(len(times)))), ns, np.full_like(ns, demand), np.zeros_like(ns), np.full_like(ns, move)
    )


def problem(*networks: ProfiledNetwork, capacity: float = 10.0) -> Problem:
    domains, sets = units(2)
    return Problem(domains, sets, (Contention.fair(capacity),), tuple(Job(each) for each in networks))


def small_plan() -> Plan:
    return build_plan(residual_block(GraphBuilder(0)), workers=2)


# ------------------------------------------------------------------------------------------------------- contention


@given(st.lists(st.floats(0, 50), min_size=1, max_size=6), st.floats(1, 40))
def test_shares_are_fair(wants: list[float], capacity: float) -> None:
    shares = fair_shares(wants, capacity)
    assert sum(shares) == pytest.approx(min(sum(wants), capacity))
    assert all(share <= want + 1e-9 for share, want in zip(shares, wants, strict=True))
    cut = [share for share, want in zip(shares, wants, strict=True) if share < want - 1e-6]
    assert all(share <= max(cut) + 1e-6 for share in shares) if cut else True


def test_pairs_are_as_measured() -> None:
    measured = Contention.measured([0, 0.5, 1], [[1, 1, 1], [1, 1, 1.2], [1, 1.1, 1.6]], 20.0)
    assert measured.slowdown(20, 20) == 1.6
    assert measured.slowdown(15, 20) == pytest.approx(1.4)
    assert measured.slowdown(99, 99) == 1.6
    assert measured.slowdowns([20, 10]) == pytest.approx([1.1, 1.2])
    assert measured.slowdowns([20, 0, 0]) == [1, 1, 1]


def test_three_share_fairly() -> None:
    assert Contention.fair(12.0).slowdowns([12, 12, 12]) == pytest.approx([3, 3, 3])
    assert Contention.fair(12.0).slowdowns([12, 2, 1]) == pytest.approx([12 / 9, 1, 1])


def test_tables_that_are_none() -> None:
    with pytest.raises(ValueError, match="1 or more"):
        Contention(np.zeros(1), np.zeros(1), np.full((1, 1), 0.5), 1.0)
    with pytest.raises(ValueError, match="ascend"):
        Contention(np.array([1.0, 1.0]), np.zeros(1), np.ones((2, 1)), 1.0)


# ------------------------------------------------------------------------------------------------------- schedules


def test_intervals_of_contention() -> None:
    """Two groups that each ask for all of the memory: twice as long as long as both run, then alone."""
    both = problem(network([4.0], 10.0), network([6.0], 10.0))
    found = evaluate(both, Placed([ScheduledGroup(0, 0, 0, 0.0, 0.0), ScheduledGroup(1, 0, 1, 0.0, 0.0)]))
    assert found.ends == pytest.approx((8.0, 10.0))
    assert [sorted(each.slowdown.items()) for each in found.intervals] == [[(0, 2.0), (1, 2.0)], [(1, 1.0)]]


def test_transitions_take_time() -> None:
    one = problem(network([1.0, 1.0], move=0.5))
    found = evaluate(one, Placed([ScheduledGroup(0, 0, 0, 0.0, 0.0), ScheduledGroup(0, 1, 1, 0.0, 0.0)]))
    assert found.makespan == pytest.approx(2.5)


def test_naive_schedules() -> None:
    found = naive(problem(network([2.0, 2.0], name="a"), network([3.0], name="b")), "latency")
    assert {name: schedule.makespan for name, schedule in found.items()} == pytest.approx({"serial": 7, "apart": 4, "shared": 4})


# ------------------------------------------------------------------------------------------------------- workloads


def test_scenarios() -> None:
    a, b, c = (network([1.0], name=name) for name in "abc")
    assert [job.release for job in Workload((Entry(a, 3, 5.0),)).jobs()] == [0, 5, 10]
    assert [job.after for job in Workload((Entry(a), Entry(b), Entry(c, after=(0, 1)))).jobs()] == [(), (), (0, 1)]
    stream = Workload((Entry(a, 2, 7.0), Entry(b, 2, after=(0,)))).jobs()
    assert [(job.network.name, job.release, job.after) for job in stream] == [("a", 0, ()), ("a", 7, ()), ("b", 0, (0,)), ("b", 7, (1,))]
    assert [job.after for job in Workload((Entry(a, 3, in_order=True),)).jobs()] == [(), (0,), (1,)]


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ((), "needs a network"),
        ((Entry(network([1.0]), after=(0,)),), "those before it"),
        ((Entry(network([1.0]), times=0),), "at least once"),
        ((Entry(network([1.0]), 2), Entry(network([1.0]), after=(0,))), "as often"),
        ((Entry(network([1.0])), Entry(network([1.0]), every_ns=1.0, after=(0,))), "only sources"),
    ],
)
def test_workloads_that_are_none(entries: tuple[Entry, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Workload(entries)


def test_too_many_runs() -> None:
    with pytest.raises(ValueError, match="9 runs"):
        Workload((Entry(network([1.0]), 9),)).jobs()


# ------------------------------------------------------------------------------------------------------- profiles


@pytest.mark.parametrize("cores", ["2", "2P+2E", "4/4", "1"])
def test_core_sets_of_a_machine(cores: str) -> None:
    machine = Machine.parse(cores)
    domains, found = core_units.domains(machine)
    assert sum(domain.cores for domain in domains) == len(machine)
    assert [len(each) for each in found] == [domain.cores for domain in domains]
    sets = core_units.core_sets(domains, 2)
    assert len({each.name for each in sets}) == len(sets)
    assert sets[0].cores == tuple(domain.cores for domain in domains)
    for each in sets:
        alone = core_units.machine_of(machine, found, domains, each)
        assert len(alone) == sum(each.cores)
    assert len(core_units.memories(machine, domains, BUILT_IN)) == (2 if "/" in cores else 1)


@pytest.mark.parametrize("most", [1, 2, 3, 20])
def test_groups_are_a_partition(most: int) -> None:
    plan = small_plan()
    groups = layer_groups(plan, most)
    assert 1 <= len(groups) <= most
    assert (groups[0].first, groups[-1].last) == (0, len(plan.ops) - 3)
    assert all(after.first == before.last + 1 for before, after in itertools.pairwise(groups))
    assert sum(group.ns for group in groups) == pytest.approx(of_plan(plan).ns.sum())


def test_live_bytes_end_with_nothing() -> None:
    live = live_bytes(small_plan())
    assert live[-1] == 0
    assert (live >= 0).all()
    assert live.max() > 0


def test_groups_take_as_long_as_the_whole() -> None:
    plan = small_plan()
    machine = Machine.parse("2P+2E")
    domains, found = core_units.domains(machine)
    sets = core_units.core_sets(domains, 2)
    known = profile(plan, "block", [core_units.machine_of(machine, found, domains, each) for each in sets], sets, BUILT_IN)
    assert known.network.ns.sum(axis=0) == pytest.approx(known.latency)
    assert (known.network.demand <= machine.bytes_per_ns * (1 + 1e-9)).all()


def test_plans_together() -> None:
    plan = small_plan()
    found = together([Run("a", plan), Run("a", plan), Run("b", plan, after=(0,))], Machine.parse("2P+2E"), BUILT_IN, "latency", 0.0)
    assert len(found.schedule.steps) == sum(len(job.network.groups) for job in found.problem.jobs)
    assert found.problem.jobs[0].network is found.problem.jobs[1].network
    assert found.schedule.makespan <= min(each.makespan for each in found.naive.values()) * (1 + 1e-9)


def test_problems_that_are_none() -> None:
    good = drawn(0, 1, 2)
    with pytest.raises(ValueError, match="lower numbers"):
        Problem(good.domains, good.sets, good.memories, (Job(good.jobs[0].network, after=(0,)),))
    with pytest.raises(ValueError, match="takes some time"):
        network([0.0])
