"""What benchmarks predict, simulate and profile is the plan that a runtime runs, tile by tile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace
from test_cache import entries, wait_for

import aspen_mp
from aspen_mp import config
from aspen_mp.bench import clients, models, prediction, profile
from aspen_mp.bench.figures.simulated import SimulatedNetwork
from aspen_mp.bench.peers import engines
from aspen_mp.bench.peers.cases import Case, parse
from aspen_mp.control.planning import local_rates
from aspen_mp.planner.cost import op_cost
from aspen_mp.planner.cost.machine import Machine
from aspen_mp.planner.plan import plan_file
from aspen_mp.planner.plan.plan import Plan
from aspen_mp.tools.local_plans import calibrated, counting_with, cpus_for, machine_of, planned
from aspen_mp.tools.measure import PlanTimes

NETWORK = "squeezenet1_1"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """The plan that a runtime has made for two workers, from its cache."""
    cache = tmp_path_factory.mktemp("plans")
    model = models.build(NETWORK)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASPEN_MP_CACHE", str(cache))
        feeds = models.inputs(model)
        with aspen_mp.Runtime(workers=2) as runtime:
            runtime.load(model, input_shapes={name: value.shape for name, value in feeds.items()}).run(feeds)
        wait_for(lambda: entries(cache, "plans"))
        return plan_file.load(entries(cache, "plans")[0].read_bytes())


@pytest.fixture(autouse=True)
def no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASPEN_MP_CACHE", str(tmp_path))


def same(plan: Plan, runs: Plan) -> bool:
    return plan.tiles.tobytes() == runs.tiles.tobytes() and plan.children.tobytes() == runs.children.tobytes()


def test_planned(runs: Plan) -> None:
    model = models.build(NETWORK)
    with calibrated():
        assert same(planned(model, models.inputs(model), machine_of(cpus_for(2))), runs)


def test_calibrated_for_a_while() -> None:
    """Then the planner counts as it did before, whatever that was."""
    before, here = op_cost.rates(), local_rates.predicting("")
    other = replace(before, matrix=2 * before.matrix)
    op_cost.use(other)
    try:
        with calibrated():
            assert op_cost.rates() == here
        assert op_cost.rates() == other
    finally:
        op_cost.use(before)


def test_rates_predict_and_change_no_plan(runs: Plan) -> None:
    """What the plan is expected to take follows the rates in use, op by op and together; its tiles are those of a runtime."""
    model = models.build(NETWORK)
    found = []
    for by in (1.0, 2.0):
        rates = replace(op_cost.rates(), matrix=by, cold=1e4, warm=1e4)
        with counting_with(rates):
            plan = planned(model, models.inputs(model), Machine.uniform(2))
        assert same(plan, runs)
        ns = plan.tile_costs().ns.sum()
        assert sum(row.predicted_ms for row in plan.info) == pytest.approx(ns * 1e-6)
        found.append(ns)
    assert 1.5 < found[0] / found[1] <= 2.0
    assert plan_file.load(plan_file.dump(plan)).predicted_anew().info == plan.info, "a file's figures stay"


def test_simulated(runs: Plan) -> None:
    with calibrated():
        assert same(SimulatedNetwork(parse(NETWORK)).plan(machine_of(cpus_for(2))), runs)


def test_profiled(runs: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Plan] = []
    monkeypatch.setattr(profile, "profile", lambda plan, feeds, rounds: found.append(plan) or PlanTimes([], 0.0, 0.0, 0))
    monkeypatch.setattr(profile, "show", lambda *_: None)
    assert profile.main([NETWORK, "--workers", "2"]) == 0
    assert same(found[0], runs)


def test_predicted(runs: Plan) -> None:
    model = models.build(NETWORK)
    assert prediction.measure(Case(NETWORK), model, 2, rounds=1, seconds=0).tiles == runs.n_tiles


@pytest.mark.parametrize(
    ("measure", "follows"),
    [
        (lambda: prediction.measure(parse(NETWORK), models.build(NETWORK), 1, 1, 0.0), False),
        (lambda: clients.measure(parse(NETWORK), [0], 1, 0.0, 1, False, lambda text: None), False),
        (lambda: engines.load_aspen("", {}, [0]), False),
        (lambda: engines.load_aspen("", {}, [0], replan=True), True),
    ],
)
def test_one_plan_is_measured(measure: Callable[[], object], follows: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not made again meanwhile, unless it is measured how plans follow the cores."""
    profiles: list[config.Profile] = []

    def start(profile: config.Profile | None = None, **_: object) -> None:
        profiles.append(profile or config.load(None))
        raise InterruptedError

    monkeypatch.setattr(aspen_mp, "Runtime", start)
    with pytest.raises(InterruptedError):
        measure()
    assert [profile.models.replan for profile in profiles] == [follows]
