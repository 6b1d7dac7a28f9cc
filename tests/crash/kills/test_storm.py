"""Workers that are killed at random, and workers that come and go, while several networks run: no request is lost, no bit differs.

`make stress` does it with whole networks, for minutes.
"""

from __future__ import annotations

import os

import pytest

from aspen_mp.bench import churn, storm
from aspen_mp.bench.peers import cases

LONG = os.environ.get("ASPEN_MP_TIER") == "long"
NETWORKS = ("resnet50", "bert_base") if LONG else ("resnet18@image=64", "bert_base@layers=2,hidden=128,heads=4,seq=64")


def test_workers_are_killed() -> None:
    weather = storm.Weather(seconds=180 if LONG else 5, per_minute=75 if LONG else 300, calm_s=10 if LONG else 0.5, at_once=0.15, seed=3)
    found = storm.measure([cases.parse(text) for text in NETWORKS], weather)
    assert (found.lost, found.wrong, found.why) == (0, 0, [])
    assert found.requests
    assert {stroke.signal for stroke in found.strokes} >= {"KILL", "SEGV"}
    assert found.with_survivors.number
    assert found.with_none.number
    assert found.own_ms.number
    assert found.joins.number
    hit = {stroke.pid for stroke in found.strokes}
    assert len(hit) <= found.recovery["worker_deaths"] + 1  # a stopped one may have been let go on


def test_workers_come_and_go() -> None:
    plan = churn.ChurnSchedule(changes=1200 if LONG else 100, rest_s=0.02 if LONG else 0.005, seed=5)
    found = churn.measure([cases.parse(text) for text in NETWORKS], plan)
    assert (found.lost, found.wrong, found.why) == (0, 0, [])
    assert found.requests
    assert len(found.changes) == plan.changes
    assert all(change.before != change.after for change in found.changes)
    assert {change.after for change in found.changes} == set(range(plan.workers + 1))
    assert found.joins.number + found.leaves.number == plan.changes


@pytest.mark.parametrize("at_once", [0.0, 1.0])
def test_strokes_are_as_asked(at_once: float) -> None:
    weather = storm.Weather(seconds=1.5, per_minute=400, workers=2, threads=2, processes=0, mix={"ABRT": 1}, at_once=at_once, calm_s=0)
    found = storm.measure([cases.parse("squeezenet1_1@image=64")], weather)
    assert (found.lost, found.wrong) == (0, 0)
    assert {stroke.signal for stroke in found.strokes} == {"KILL" if at_once else "ABRT"}
    assert {stroke.all_at_once for stroke in found.strokes} == {bool(at_once)}
