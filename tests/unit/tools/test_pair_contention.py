"""Slowdowns of pairs of cores: what becomes of them in a machine's rates."""

from __future__ import annotations

from aspen_mp.planner.coschedule.contention import Contention
from aspen_mp.planner.cost.rates import BUILT_IN
from aspen_mp.tools import pair_contention
from aspen_mp.tools.calibrate import contended


def test_parts_of_what_all_cores_read() -> None:
    n = len(pair_contention.PARTS)
    pairs = [[1.0] * n for _ in range(n)]
    pairs[-1][-1] = 1.5
    measured = contended(BUILT_IN, pairs, 0.75)
    assert measured.contended_at[-1] == 0.75
    memory = Contention.of(measured, 40.0)
    assert memory.slowdown(30.0, 30.0) == 1.5
    assert memory.slowdown(30.0, 0.0) == 1.0


def test_one_core_has_no_pairs() -> None:
    assert contended(BUILT_IN, [], 1.0) is BUILT_IN
