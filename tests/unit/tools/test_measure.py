"""Profiles: tiles run as a worker runs them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from net_tools import Net
from plan_requests import plan_request

from aspen_mp.planner import api
from aspen_mp.planner.job.options import Experiment
from aspen_mp.planner.plan.plan import Plan
from aspen_mp.tools import measure


def blocks() -> tuple[Plan, dict[str, Any]]:
    """Two convolutions in blocks, in tiles of the same pixels, and what comes after them."""
    net = Net(x=(1, 64, 14, 14))
    y = net("Conv", "x", net.weight(256, 64, 3, 3), pads=[1, 1, 1, 1])
    z = net("Conv", net("Relu", y), net.weight(128, 256, 3, 3), pads=[1, 1, 1, 1])
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 64, 14, 14), dtype=np.float32)}
    bindings = [{"x": api.Binding(np.dtype(np.float32), (1, 64, 14, 14), None)}]
    found = api.plan_stage(net.model(net("Sigmoid", z)), bindings, workers=2, request=plan_request(planning=Experiment(tiles=4)))
    assert found.plan is not None
    return found.plan, feeds


def test_a_tile_goes_on_where_one_of_its_op_left_off(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, feeds = blocks()
    ran: list[tuple[int, bool]] = []

    class Runner(measure.PlanRunner):
        def run_tile(self, tile: int, again: bool = False) -> int:
            ran.append((tile, again))
            return super().run_tile(tile, again)

    monkeypatch.setattr(measure, "PlanRunner", Runner)
    found = measure.profile(plan, feeds, rounds=2)
    assert [op.info.kernel for op in found.ops if "WINO" in op.info.kernel]
    assert len(ran) == 3 * found.tiles
    last = None
    for tile, again in ran[: found.tiles]:
        op = int(plan.tiles["op"][tile])
        if int(plan.ops["kernel"][op]) >= 2:  # neither JOIN nor END
            assert again == (op == last)
            last = op
    assert sum(again for _, again in ran) >= 3 * 2, "several tiles of an op, one after the other"
    assert ran[: found.tiles] == ran[found.tiles : 2 * found.tiles]


def test_and_computes_the_same() -> None:
    plan, feeds = blocks()
    results = []
    for goes_on in (False, True):
        runner, request = measure._runner(plan, None)
        (x,) = plan.inputs
        request[x.offset : x.offset + x.nbytes] = feeds["x"].view(np.uint8).reshape(-1)
        last = -1
        for tile in measure._order(plan):
            op = int(plan.tiles["op"][tile])
            idle = int(plan.ops["kernel"][op]) < 2
            assert runner.run_tile(tile, goes_on and not idle and op == last) == 0
            last = last if idle else op
        (y,) = plan.outputs
        results.append(request[y.offset : y.offset + y.nbytes].tobytes())
    assert results[0] == results[1]
