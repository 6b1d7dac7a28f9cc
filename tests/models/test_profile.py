"""Times of ops: every op of the plan is there, and the results' shape does not depend on luck."""

from __future__ import annotations

import pytest

from aspen_mp.bench import models, profile
from aspen_mp.planner import api


@pytest.mark.parametrize("network", ["mobilenet_v2", "bert_base"])
def test_every_op_is_timed(network: str) -> None:
    model = models.build(network, seq=16, **models.miniature(network))
    feeds = models.inputs(model)
    bindings = [{name: api.Binding(x.dtype, x.shape, None) for name, x in feeds.items()}]
    plan = api.plan_stage(model, bindings, workers=2).plan
    assert plan is not None
    result = profile.profile(plan, feeds, rounds=3)
    assert [op.info for op in result.ops] == plan.info
    assert all(op.min_ns <= op.median_ns for op in result.ops)
    assert 0 < result.min_ns <= result.median_ns
    assert result.tiles == plan.n_tiles


def test_command_shows_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert profile.main(["tcn", "--seq", "32", "--rounds", "2", "--top", "3"]) == 0
    assert "CONV" in capsys.readouterr().out
