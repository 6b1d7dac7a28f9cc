"""Masks of what changed, against loops over pixels."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from aspen_mp.client.streams.masks import mask_of_blocks, mask_of_motion
from aspen_mp.errors import RequestError


@pytest.mark.parametrize("seed", range(20))
def test_blocks(seed: int) -> None:
    rng = np.random.default_rng(seed)
    (h, w), block = rng.integers(1, 40, 2).tolist(), int(rng.integers(1, 17))
    marks = rng.integers(0, 3, (-(-h // block), -(-w // block)))
    want = [[bool(marks[y // block, x // block]) for x in range(w)] for y in range(h)]
    assert np.array_equal(mask_of_blocks(marks, block, (h, w)), want)
    with pytest.raises(RequestError, match="cover"):
        mask_of_blocks(marks[:0], block, (h, w))
    with pytest.raises(RequestError, match="cover"):
        mask_of_blocks(marks, 0, (h, w))


@pytest.mark.parametrize("seed", range(10))
def test_motion_vectors(seed: int) -> None:
    """Vectors as a structured array, and as objects: those that move mark their block, cut at the edges."""
    rng = np.random.default_rng(seed)
    names = ("w", "h", "dst_x", "dst_y", "motion_x", "motion_y")
    array = np.zeros(12, [(name, np.int32) for name in names])
    array["w"], array["h"] = rng.choice([8, 16], (2, 12))
    array["dst_x"], array["dst_y"] = rng.integers(-10, 60, (2, 12))
    array["motion_x"], array["motion_y"] = rng.integers(-1, 2, (2, 12))
    want = np.zeros((40, 50), bool)
    for v in array:
        for y, x in np.ndindex(40, 50):
            inside = -(v["h"] // 2) <= y - v["dst_y"] < v["h"] // 2 and -(v["w"] // 2) <= x - v["dst_x"] < v["w"] // 2
            want[y, x] |= inside and bool(v["motion_x"] or v["motion_y"])
    assert np.array_equal(mask_of_motion(array, (40, 50)), want)
    objects = [SimpleNamespace(**{name: int(v[name]) for name in names}) for v in array]
    assert np.array_equal(mask_of_motion(objects, (40, 50)), want)
