"""How many cores share a request when several run at a time: by simulation, and never for the worse."""

from __future__ import annotations

import math

import numpy as np
import pytest
from graphs_by_hand import GraphBuilder
from plan_requests import plan_request
from small_graphs import residual_block

from aspen_mp.bench import models
from aspen_mp.planner import api
from aspen_mp.planner.build import build_plan
from aspen_mp.planner.cost.machine import Machine
from aspen_mp.planner.job.options import Experiment
from aspen_mp.planner.job.request import instances_for
from aspen_mp.planner.layout.storage import assign_storage
from aspen_mp.planner.plan.plan import Plan
from aspen_mp.planner.simulation.simulate import of_plan, simulate, throughput
from aspen_mp.planner.tiling import search, teams


def planned(name: str, machine: Machine, in_flight: int, effort: str = "quick") -> Plan:
    model = models.build(name)
    bindings = [{key: api.Binding(x.dtype, x.shape, None) for key, x in models.inputs(model).items()}]
    request = plan_request(planning=Experiment(search=effort, in_flight=in_flight))  # type: ignore[arg-type]
    plan = api.plan_stage(model, bindings, workers=len(machine), machine=machine, request=request).plan
    assert plan is not None
    return plan


@pytest.mark.parametrize(("name", "in_flight", "least"), [("resnet50", 32, 0.97), ("bert_base", 16, 0.97), ("resnet50", 2, 0.0)])
def test_many_cores_at_work(name: str, in_flight: int, least: float) -> None:
    """What 64 cores do beside 64 times what one does, by simulation; requests alone are planned as ever."""
    many, one = Machine.uniform(64), Machine.uniform(1)
    alone = throughput(of_plan(planned(name, one, 1)), one, 2) * 64
    before = throughput(of_plan(planned(name, many, 1)), many, in_flight) / alone
    after = throughput(of_plan(planned(name, many, in_flight)), many, in_flight) / alone
    assert after > max(before, least)


@pytest.mark.parametrize("cores", ["2", "16", "2P+2E"])
@pytest.mark.parametrize("in_flight", [2, 5])
def test_never_less(cores: str, in_flight: int) -> None:
    machine = Machine.parse(cores)
    before, after = (throughput(of_plan(planned("mobilenet_v2", machine, n)), machine, in_flight) for n in (1, in_flight))
    assert after > 0.99 * before


def test_as_requests_alone_where_teams_gain_nothing() -> None:
    """BERT-base on two cores reaches 0.99 of what it could."""
    alone, many = (planned("bert_base", Machine.uniform(2), in_flight) for in_flight in (1, 4))
    assert many.metadata["shared"] == {"in_flight": 4, "cores": 2}
    assert (many.tiles == alone.tiles).all()


@pytest.mark.parametrize("in_flight", [1, 3, 40])
def test_no_other_team_is_better(in_flight: int) -> None:
    storage = assign_storage(residual_block(GraphBuilder()))
    machine = Machine.uniform(16)
    chosen = teams.choose(storage, machine, in_flight, math.inf)
    for team in teams.teams(machine):
        grids = search.policy.choose_grids(storage, len(team))
        assert throughput(search.graph(storage, team, grids), machine, in_flight) <= 1.01 * chosen.requests_per_s


def test_large_networks_are_not_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(teams, "MOST_STEPS", 0)
    storage = assign_storage(residual_block(GraphBuilder()))
    found = [teams.choose(storage, Machine.uniform(12), n, math.inf) for n in (1, 2, 5, 12, 30)]
    assert [len(team.machine) for team in found] == [12, 8, 4, 1, 1]
    assert all(math.isnan(team.requests_per_s) for team in found)


def test_parts_of_a_machine() -> None:
    parts = list(teams.teams(Machine.parse("4P+8E")))
    assert [len(part) for part in parts] == [1, 2, 4, 8, 12]
    assert all(part.cores[0].speed == 1.0 for part in parts)
    assert [sum(core.speed < 1 for core in part.cores) for part in parts] == [0, 1, 2, 5, 8]
    whole = parts[-1].bytes_per_ns
    assert [part.bytes_per_ns / whole for part in parts] == pytest.approx([1 / 12, 2 / 12, 4 / 12, 8 / 12, 1])
    assert [len(part) for part in teams.teams(Machine.uniform(1))] == [1]


def test_a_graph_of_the_search_is_that_of_its_plan() -> None:
    """Recycled memory and trees of JOINs apart."""
    machine = Machine.uniform(4)
    plan = build_plan(residual_block(GraphBuilder()), workers=4, planning=Experiment(search="none"))
    storage = assign_storage(residual_block(GraphBuilder()))
    tiles = search.graph(storage, machine, search.policy.choose_grids(storage, 4))
    assert np.sort(tiles.ns[tiles.ns > 0]) == pytest.approx(np.sort(of_plan(plan).ns[of_plan(plan).ns > 0]))
    assert simulate(tiles, machine).latency_ns == pytest.approx(simulate(of_plan(plan), machine).latency_ns, rel=0.1)


def test_instances() -> None:
    assert [instances_for("latency", n) for n in (1, 64)] == [2, 2]
    assert [instances_for("throughput", n) for n in (1, 2, 4, 16, 64)] == [3, 4, 6, 24, 32]
