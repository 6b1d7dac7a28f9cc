"""What a schedule of several networks tells the workers (planner/coschedule/hints.py)."""

from __future__ import annotations

import numpy as np
from enumerated_schedules import two_classes
from graphs_by_hand import GraphBuilder
from small_graphs import residual_block

from aspen_mp.planner.build import build_plan
from aspen_mp.planner.coschedule import units
from aspen_mp.planner.coschedule.anytime import improve
from aspen_mp.planner.coschedule.contention import Contention
from aspen_mp.planner.coschedule.evaluate import Placed, ScheduledGroup, evaluate
from aspen_mp.planner.coschedule.hints import DEPTHS, NONE, Hint, depth_hints, group_hints
from aspen_mp.planner.coschedule.problem import Job, Problem, ProfiledNetwork
from aspen_mp.planner.coschedule.profile import layer_groups
from aspen_mp.planner.coschedule.together import Run
from aspen_mp.planner.cost.machine import Machine
from aspen_mp.planner.cost.rates import BUILT_IN
from aspen_mp.planner.plan import plan_file

ALL, PAIR, FAST, ONE, SLOW = range(5)
"""Core sets of two fast and two slow cores: 2P+2E, 1P+1E, 2P, 1P, 2E."""


def network(name: str, groups: int = 2) -> ProfiledNetwork:
    ns = np.ones((groups, 5))
    return ProfiledNetwork(name, tuple(map(str, range(groups))), ns, np.zeros_like(ns), np.zeros_like(ns), np.zeros_like(ns))


def problem(*networks: ProfiledNetwork) -> Problem:
    domains, sets = two_classes()
    return Problem(domains, sets, (Contention.none(),), tuple(Job(each) for each in networks))


def test_hints_name_domains_and_cores() -> None:
    a, b = network("a"), network("b")
    both = problem(a, b)
    schedule = evaluate(
        both,
        Placed(
            [
                ScheduledGroup(0, 0, FAST, 0, 0),
                ScheduledGroup(0, 1, PAIR, 0, 0),
                ScheduledGroup(1, 0, SLOW, 0, 0),
                ScheduledGroup(1, 1, PAIR, 0, 0),
            ]
        ),
    )
    assert group_hints(both, schedule, a) == [Hint(0b01, 2, False), Hint(0, 2, False)]
    assert group_hints(both, schedule, b) == [Hint(0b10, 2, False), Hint(0, 2, False)]
    assert group_hints(both, schedule, network("c")) == [NONE, NONE]


def test_who_waits_gives_way() -> None:
    """One after the other on all cores: the second one's first group waits for the whole of the first network."""
    a, b = network("a"), network("b")
    both = problem(a, b)
    schedule = evaluate(
        both,
        Placed(
            [
                ScheduledGroup(0, 0, ALL, 0, 0),
                ScheduledGroup(0, 1, ALL, 0, 0),
                ScheduledGroup(1, 0, ALL, 2, 0),
                ScheduledGroup(1, 1, ALL, 0, 0),
            ]
        ),
    )
    assert group_hints(both, schedule, a) == [NONE, NONE]
    assert group_hints(both, schedule, b) == [Hint(0, 0, True), NONE]


def test_runs_of_a_network_share_their_hints() -> None:
    a = network("a", 1)
    both = problem(a, a)
    schedule = evaluate(both, Placed([ScheduledGroup(0, 0, ONE, 0, 0), ScheduledGroup(1, 0, SLOW, 0, 0)]))
    assert group_hints(both, schedule, a) == [Hint(0, 2, False)]


def test_depths_have_the_hints_of_their_groups() -> None:
    plan = build_plan(residual_block(GraphBuilder(0)), workers=2)
    groups = layer_groups(plan, 4)
    given = [Hint(k + 1, 0, False) for k in range(len(groups))]
    found = depth_hints(plan, groups, given)
    assert len(found) == DEPTHS
    costs, depth = plan.tile_costs().ns, plan.tiles["depth"]
    assert all((hint == NONE) == (not costs[depth == d].any()) for d, hint in enumerate(found))
    named = [hint for hint in found if hint != NONE]
    assert {hint.domains for hint in named} <= {hint.domains for hint in given}
    assert named == sorted(named), "groups follow each other as depths do"


def test_a_plan_segment_is_scheduled_as_its_plan_is() -> None:
    """What a planner process knows of a plan is its segment: averages of tiles, and nothing of what they read of each other."""
    plan = build_plan(residual_block(GraphBuilder(0)), workers=2)
    read = plan_file.in_segment(plan.segment())
    assert [(group.first, group.last) for group in layer_groups(read, 1)] == [(0, len(plan.ops) - 3)]
    costs, found = plan.tile_costs(), read.tile_costs()
    assert np.array_equal(read.tiles, plan.tiles)
    of_op = plan.tiles["op"]
    for whole, average in ((costs.ns, found.ns), (costs.bytes, found.bytes)):
        assert np.allclose(np.bincount(of_op, whole), np.bincount(of_op, average), rtol=1e-4)
    assert [info.name.rpartition(" (")[0] for info in read.info[:-2]] == [info.name for info in plan.info]


def test_improve_yields_better_and_better_schedules() -> None:
    plan = plan_file.in_segment(build_plan(residual_block(GraphBuilder(0)), workers=4).segment())
    machine = Machine.parse("2P+2E")
    steps = list(improve([Run("a", plan, 2), Run("b", plan)], machine, BUILT_IN, "latency"))
    values = [step.incumbent.value for step in steps]
    assert values == sorted(values, reverse=True)
    assert len(set(values)) == len(values) >= 1
    assert all(step.naive >= step.incumbent.value >= step.incumbent.bound > 0 for step in steps)
    assert all([len(hints) for hints in step.hints] == [DEPTHS, DEPTHS] for step in steps)
    assert units.domain_of(machine) == [0, 0, 1, 1]
