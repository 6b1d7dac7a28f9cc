"""Masks of what changed, against loops over pixels."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from aspen_mp.client.streams.telling import changed_pixels, from_motion_vectors, mask_of_blocks
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


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.float16, np.float32])
@pytest.mark.parametrize("shape", [(7, 9), (3, 7, 9), (2, 3, 7, 9)])
def test_pixels(shape: tuple[int, ...], dtype: type) -> None:
    rng = np.random.default_rng(len(shape))
    before, after = rng.integers(0, 256, (2, *shape)).astype(dtype)
    for tol in (0, 3, 200):
        want = np.zeros(shape[-2:], bool)
        for place in np.ndindex(*shape):
            want[place[-2:]] |= abs(float(before[place]) - float(after[place])) > tol
        assert np.array_equal(changed_pixels(before, after, tol), want)
    assert not changed_pixels(before, before).any()
    with pytest.raises(RequestError, match="compared"):
        changed_pixels(before, after[..., 1:])


def test_what_is_no_number_differs_and_infinity_does_not() -> None:
    frame = np.array([[np.nan, np.inf, -np.inf, 1]], np.float32)
    assert changed_pixels(frame, frame, 1e9).tolist() == [[True, False, False, False]]
    assert changed_pixels(frame, -frame, 1e9).tolist() == [[True, True, True, False]]


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
    assert np.array_equal(from_motion_vectors(array, (40, 50)), want)
    objects = [SimpleNamespace(**{name: int(v[name]) for name in names}) for v in array]
    assert np.array_equal(from_motion_vectors(objects, (40, 50)), want)
