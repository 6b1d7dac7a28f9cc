"""What a schedule of several networks tells the workers (planner/coschedule/hints.py)."""

from __future__ import annotations

import numpy as np
from enumerated_schedules import two_classes
from graphs_by_hand import GraphBuilder
from small_graphs import residual_block

from aspen_mp.planner.build import build_plan
from aspen_mp.planner.coschedule.contention import Contention
from aspen_mp.planner.coschedule.evaluate import Placed, Step, evaluate
from aspen_mp.planner.coschedule.hints import DEPTHS, NONE, Hint, depth_hints, group_hints
from aspen_mp.planner.coschedule.problem import Job, Network, Problem
from aspen_mp.planner.coschedule.profile import layer_groups

ALL, PAIR, FAST, ONE, SLOW = range(5)
"""Core sets of two fast and two slow cores: 2P+2E, 1P+1E, 2P, 1P, 2E."""


def network(name: str, groups: int = 2) -> Network:
    ns = np.ones((groups, 5))
    return Network(name, tuple(map(str, range(groups))), ns, np.zeros_like(ns), np.zeros_like(ns), np.zeros_like(ns))


def problem(*networks: Network) -> Problem:
    domains, sets = two_classes()
    return Problem(domains, sets, (Contention.none(),), tuple(Job(each) for each in networks))


def test_hints_name_domains_and_cores() -> None:
    a, b = network("a"), network("b")
    both = problem(a, b)
    schedule = evaluate(both, Placed([Step(0, 0, FAST, 0, 0), Step(0, 1, PAIR, 0, 0), Step(1, 0, SLOW, 0, 0), Step(1, 1, PAIR, 0, 0)]))
    assert group_hints(both, schedule, a) == [Hint(0b01, 2, False), Hint(0, 2, False)]
    assert group_hints(both, schedule, b) == [Hint(0b10, 2, False), Hint(0, 2, False)]
    assert group_hints(both, schedule, network("c")) == [NONE, NONE]


def test_who_waits_gives_way() -> None:
    """One after the other on all cores: the second one's first group waits for the whole of the first network."""
    a, b = network("a"), network("b")
    both = problem(a, b)
    schedule = evaluate(both, Placed([Step(0, 0, ALL, 0, 0), Step(0, 1, ALL, 0, 0), Step(1, 0, ALL, 2, 0), Step(1, 1, ALL, 0, 0)]))
    assert group_hints(both, schedule, a) == [NONE, NONE]
    assert group_hints(both, schedule, b) == [Hint(0, 0, True), NONE]


def test_runs_of_a_network_share_their_hints() -> None:
    a = network("a", 1)
    both = problem(a, a)
    schedule = evaluate(both, Placed([Step(0, 0, ONE, 0, 0), Step(1, 0, SLOW, 0, 0)]))
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
