"""Digests of outputs tell apart whatever users could tell apart, and comparisons of them name what differs."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from aspen_mp.bench.bits import RANDOM, differences, digest

DIFFERENT: list[Any] = [
    np.float32([0.0, 1.0]),
    np.float32([-0.0, 1.0]),
    np.float32([[0.0, 1.0]]),
    np.float64([0.0, 1.0]),
    np.int32([0, 1]),
    np.nextafter(np.float32([0.0, 1.0]), np.float32(2)),
    np.array(["a", "bc"], object),
    np.array(["ab", "c"], object),
    ["a", "bc"],
    [np.float32([0.0, 1.0])],
    [np.float32([0.0]), np.float32([1.0])],
    {"a": np.float32([0.0, 1.0])},
    [{0: 0.5, 1: 0.5}],
    [{"0": 0.5, "1": 0.5}],
    None,
]


def test_what_differs_has_other_digests() -> None:
    for a, b in itertools.combinations(DIFFERENT, 2):
        assert digest(a) != digest(b), (a, b)


def test_what_is_equal_has_one_digest() -> None:
    whole = np.arange(24, dtype=np.float32).reshape(4, 6)
    assert digest(whole.T) == digest(np.ascontiguousarray(whole.T))
    assert digest({"a": whole}) == digest({"a": whole.copy()})


def test_differences_are_named() -> None:
    before = {"avx2, 1 worker": {"a": "1", "b": "2", "c": RANDOM}, "avx512, 1 worker": {"a": "7"}}
    after = {"avx2, 1 worker": {"a": "1", "b": "3", "new": "4"}}
    assert differences(before, after) == ["avx2, 1 worker: b: 2 became 3", f"avx2, 1 worker: c: {RANDOM} became nothing"]
    assert not differences(before, before)
