"""Several networks at once: what sources ask for, and what their answers add up to."""

from __future__ import annotations

import json
import math
import random
import threading
from typing import Any

import msgspec
import pytest

from aspen_mp.bench.coexecution import contention, crew, deadlines, dynamic, priority, together, traffic
from aspen_mp.bench.coexecution.crew import Outcome, Terms
from aspen_mp.bench.coexecution.rounds import Rounds
from aspen_mp.bench.coexecution.seat import Performance
from aspen_mp.bench.coexecution.traffic import Answer, Arrivals, Loop, Order
from aspen_mp.bench.load import Spread
from aspen_mp.bench.peers.rounds import OURS
from aspen_mp.errors import DeadlineMissed


class Called:
    """A crew that answers at once and keeps what it was asked for."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, Terms]] = []
        self._lock = threading.Lock()

    def __call__(self, network: int, terms: Terms) -> Outcome:
        with self._lock:
            self.calls.append((network, terms))
        return Outcome.DONE


def answer(network: int, begun: float, ended: float, due: float | None = None, outcome: Outcome = Outcome.DONE, source: int = 0) -> Answer:
    return Answer(source, network, begun if due is None else due, begun, ended, outcome)


def test_orders_travel_as_json() -> None:
    order = Order(acts=[[Loop(network=1, count=3), Arrivals(calls=[(0.5, 2)], deadlines_ms=[1.5, 2.5, 7.5])]], runs=2)
    assert msgspec.convert(json.loads(json.dumps(msgspec.to_builtins(order))), Order) == order


def test_acts_come_one_after_the_other_and_loops_share_their_count() -> None:
    called = Called()
    order = Order(acts=[[Loop(network=0, count=5, threads=3, priority="low")], [Loop(network=1, count=2), Loop(network=2, count=1)]])
    (run,) = traffic.play(called, order)
    assert [[answer.network for answer in act].count(0) for act in run] == [5, 0]
    assert sorted(answer.network for answer in run[1]) == [1, 1, 2]
    assert len(called.calls) == 2 * 8, "once to warm up"
    assert {terms.priority for network, terms in called.calls if network == 0} == {"low"}


def test_arrivals_are_due_when_they_are_and_know_what_is_left() -> None:
    called = Called()
    source = Arrivals(calls=[(0.0, 0), (0.01, 1), (0.0, 1)], threads=2, deadlines_ms=[1e6, 1e-9])
    ((act,),) = traffic.play(called, Order(acts=[[source]], warm=False))
    assert sorted((answer.due, answer.network) for answer in act) == [(0.0, 0), (0.0, 1), (0.01, 1)]
    assert {answer.outcome for answer in act if answer.network == 1} == {Outcome.LATE}, "their time was over before they could begin"
    ((_, terms),) = called.calls
    assert terms.deadline_ms is not None
    assert terms.deadline_ms <= 1e6


def test_a_failing_crew_ends_the_act() -> None:
    def fails(network: int, terms: Terms) -> Outcome:
        raise ValueError("no such network")

    with pytest.raises(ValueError, match="no such network"):
        traffic.play(fails, Order(acts=[[Loop(network=0, threads=3)]]))


def test_a_makespan_is_that_of_all_acts() -> None:
    run = [[answer(0, 1.0, 2.0), answer(1, 0.5, 1.0)], [answer(0, 0.0, 0.25)]]
    assert traffic.makespan_ms(run) == pytest.approx(1750)


class Served:
    """A model whose requests miss their deadlines: `late_ms`, as of DeadlineMissed; none where it is "never"."""

    def __init__(self, late_ms: float | str | None) -> None:
        self.late_ms, self.asked = late_ms, dict[str, Any]()

    def run(self, feeds: object, **terms: Any) -> None:
        self.asked = terms
        if not isinstance(self.late_ms, str):
            missed = DeadlineMissed("too late")
            missed.late_ms = self.late_ms
            raise missed


@pytest.mark.parametrize(("late_ms", "outcome"), [(None, Outcome.REFUSED), (3.5, Outcome.LATE), ("never", Outcome.DONE)])
def test_requests_with_deadlines(late_ms: float | str | None, outcome: Outcome) -> None:
    model = Served(late_ms)
    assert crew._caller([(model, {})])(0, Terms("high", 12.5)) == outcome  # type: ignore[list-item]
    assert model.asked == {"priority": "high", "deadline_ms": 12.5}


def test_engines_are_ours_first_and_known() -> None:
    chosen, absent = crew.wanted(["openvino", "aspen-mp", "onnxruntime"])
    assert chosen[0] == OURS
    assert set(chosen) | set(absent) == {"openvino", "aspen-mp", "onnxruntime"}
    with pytest.raises(ValueError, match="there is no engine 'abacus'"):
        crew.wanted(["abacus"])


def spans(*ms: float) -> list[Performance]:
    """A run of so many milliseconds in each round."""
    return [Performance([[[answer(0, 0.0, value / 1e3)]]]) for value in ms]


def test_a_bound_is_the_largest_of_three() -> None:
    turns = {together.ONE: {"alone 0": spans(30), "alone 1": spans(10)}, OURS: {"alone 0": spans(16), "alone 1": spans(9)}}
    rounds = Rounds([{label: {name: found[0] for name, found in orders.items()} for label, orders in turns.items()}])
    bound = together._bound(rounds, [0, 1], [1, 2], [0, 200_000_000], 20.0, 2)
    assert (bound.cores, bound.memory, bound.longest) == pytest.approx((20, 20, 16))
    assert bound.ms == pytest.approx(20)


def test_a_group_by_its_bound() -> None:
    shares = [together.Share(Spread.of([0.010]), Spread.of([0.015]))] * 2
    entries = [together.Entry(OURS, [80.0], [100.0], shares, 0.8), together.Entry("onnxruntime", [120.0], [110.0], shares, 1.09, 1.5)]
    group = together.Group(["a", "b"], [3, 1], entries, together.Bound(76, 10, 50, 40))
    assert group.least == pytest.approx(0.76)
    assert group["onnxruntime"].of_ours == 1.5
    assert group[OURS].shares[0].slowdown == pytest.approx(1.5)
    assert group.verdict.startswith("3 × a + b: time at once by one after the other: aspen-mp 0.800, onnxruntime 1.090; bound 0.760")


def test_what_a_load_keeps() -> None:
    alone, beside = priority.Quantiles.of([4.0] * 99 + [8.0]), priority.Quantiles.of([5.0] * 90 + [20.0] * 10)
    entry = priority.Entry(OURS, alone, beside, [10.0, 20.0, 30.0], [8.0, 16.0, 20.0], left=0.8)
    assert (entry.p50, entry.p99, entry.kept) == pytest.approx((1.25, 5.0, 1.0))
    assert math.isnan(priority.Entry(OURS, alone, beside, [10.0], [8.0], left=0.0).kept)


def test_arrivals_of_a_load() -> None:
    calls = deadlines.poisson([10.0, 40.0], 0.8, 200.0, random.Random(1))
    assert calls == sorted(calls)
    counts = [sum(network == k for _, network in calls) for k in (0, 1)]
    assert counts[0] * 0.010 / 200 == pytest.approx(0.4, rel=0.1)
    assert counts[1] * 0.040 / 200 == pytest.approx(0.4, rel=0.1)


def test_what_became_of_requests() -> None:
    answers = [
        answer(0, 0.001, 0.010, due=0.0),
        answer(0, 0.001, 0.030, due=0.0),
        answer(1, 0.0, 0.030, due=0.0),
        answer(0, 0.005, 0.0055, due=0.004, outcome=Outcome.REFUSED),
        answer(0, 0.005, 0.0055, due=0.004, outcome=Outcome.LATE),
    ]
    found = deadlines.point(0.9, answers, [20.0, 40.0])
    assert (found.requests, found.refused, found.met) == (5, 1, 2)
    assert (found.share, found.kept) == pytest.approx((0.4, 0.5))
    assert found.refusal.p50_ms == pytest.approx(0.5)


def test_a_client_stays_from_phase_to_phase() -> None:
    result = dynamic.DynamicResult([0], [["a"], ["a", "b"], ["b"], ["a"]], 2.0)
    (act,) = dynamic._orders(result, {"a": 0, "b": 1}, [OURS])[OURS]["phases"].acts
    assert [(loop.network, loop.begin_s, loop.end_s) for loop in act if isinstance(loop, Loop)] == [(0, 0, 4), (1, 2, 6), (0, 6, 8)]


def test_a_pair_counts_while_both_are_there() -> None:
    act = [answer(0, 0.1, 0.2), answer(0, 0.2, 0.5), answer(0, 0.5, 1.5), answer(7, 0.0, 1.0, source=1)]
    assert contention._middle(act, 0) == pytest.approx(200)
