"""Products of few rows are cut into two halves for several workers, and nothing that follows waits for both."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from plan_requests import plan_request

from aspen_mp.bench import models
from aspen_mp.planner import api
from aspen_mp.planner.plan.plan import Plan
from aspen_mp.planner.tiling import policy
from aspen_mp.shm.tables import KERNELS


def plan(network: str, workers: int, winograd: bool = True, **options: int) -> Plan:
    model = models.build(network, **{**models.miniature(network), "layers": 1, **options})
    feeds = models.inputs(model)
    bindings = {name: api.Binding(x.dtype, x.shape, None) for name, x in feeds.items()}
    found = api.plan_stage(model, [bindings], workers=workers, request=plan_request(winograd=winograd)).plan
    assert found is not None
    return found


def boxes(found: Plan, kernel: str) -> list[tuple[int, list[tuple[int, int]]]]:
    """For each op of a kernel with many rows and more than one tile: rows of the output, and [lo, hi) of its tiles along them, in order."""
    out = []
    for k, op in enumerate(found.ops):
        tiles = found.tiles[found.tiles["op"] == k]
        if op["kernel"] != KERNELS[kernel].code or len(tiles) < 2:
            continue
        row = found.operands[op["operand"]]
        axis = int(row["rank"]) - 2
        if row["dims"][axis] == 1:
            continue
        out.append((int(row["dims"][axis]), [(int(t["lo"][axis]), int(t["hi"][axis])) for t in np.sort(tiles, order="rank")]))
    return out


@pytest.mark.parametrize("tokens", [128, 197])
def test_halves_follow_each_other(tokens: int) -> None:
    products = boxes(plan("bert_base", 2, hidden=256, seq=tokens), "GEMM")
    assert len(products) >= 3
    for rows, cuts in products:
        lows = [lo for lo, _ in cuts]
        assert rows == tokens
        assert all(a <= b for a, b in pairwise(lows)), "rows first"
        assert len(set(lows)) >= 2


def test_nothing_straddles_the_middle() -> None:
    found = plan("bert_base", 2, hidden=256, seq=128)
    for kernel in ("GEMM", "NORM"):
        for rows, cuts in boxes(found, kernel):
            assert rows == 128
            assert not [c for c in cuts if c[0] < 64 < c[1]]


@pytest.mark.parametrize(
    ("rows", "weights", "axis"),
    [
        ((1, 128), 1 << 20, 1),
        ((4, 64), 1 << 20, 0),
        ((1, 128), 1 << 26, None),
        ((1, 32), 1 << 20, None),
    ],
)
def test_when(rows: tuple[int, int], weights: int, axis: int | None) -> None:
    """Not for weights that are too large to be read twice, not for hardly any rows."""
    assert policy._halved(rows, weights) == axis


def test_not_for_one_worker() -> None:
    found = plan("bert_base", 1, hidden=256, seq=128)
    assert {cut for _, cuts in boxes(found, "GEMM") for cut in cuts} == {(0, 128)}
