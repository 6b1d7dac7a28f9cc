"""Boxes of what changed in an input, found or told, against numpy."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from aspen_mp.client.streams.changed_inputs import BOXES, ChangedInput
from aspen_mp.client.streams.tolerance import PAIRS, Tolerance
from aspen_mp.shm.errors import RequestError
from aspen_mp.shm.tables import LIMITS, NUMBERS

Array = np.ndarray[Any, np.dtype[Any]]
RANK = LIMITS["rank"]
LENGTHS = [0, 1, 2, 3, 5, 9, 40]
CHANCES = [0.02, 0.2, 0.2, 0.2, 0.18, 0.15, 0.05]
DTYPES = ["u1", "?", "f2", "f4", "f8", "c8", "c16", "i8"]
TOLERANT = ["f4", "f8", "u1", "i1", "u2", "i2"]
"""Types that have a tolerance."""
ROW_BYTES = 32
"""Bytes of a row of a block."""
LARGEST = 30000


def drawn(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Values of few bytes that differ: zeros of both signs are among them."""
    found = rng.choice(np.array([0, 1, 127, 128, 255], np.uint8), (*shape, dtype.itemsize))
    return found[..., 0] % 2 == 1 if dtype.kind == "b" else np.ascontiguousarray(found).view(dtype).reshape(shape)


def differing(a: Array, b: Array) -> Array:
    """Where the bytes of elements differ."""
    if not a.size:
        return np.zeros(a.shape, bool)
    rows = [np.ascontiguousarray(x).reshape(-1).view(np.uint8).reshape(x.size, -1) for x in (a, b)]
    return (rows[0] != rows[1]).any(axis=1).reshape(a.shape)


def laid_out(rng: np.random.Generator, x: Array) -> Array:
    """The same array with other strides."""
    how = rng.integers(0, 3) if x.ndim else 0
    return [x, np.repeat(x, 2, axis=-1)[..., ::2] if x.ndim else x, np.asfortranarray(x)][how]


def told(rng: np.random.Generator, differs: Array) -> Any:
    """A mask, boxes of single elements, or a box that reaches beyond the input."""
    if differs.ndim and rng.random() < 0.4:
        return differs
    if differs.ndim and rng.random() < 0.7:
        return [(at, at + 1) for at in np.argwhere(differs)]
    return [([-3] * differs.ndim, [d + 4 for d in differs.shape])]


def covered(bounds: Array, shape: tuple[int, ...]) -> Array:
    assert bounds[0] <= BOXES
    found, rank = np.zeros(shape, bool), len(shape)
    for k in range(bounds[0]):
        lo, hi = bounds[1 + 2 * k * RANK :][:rank], bounds[1 + (2 * k + 1) * RANK :][:rank]
        assert (lo >= 0).all()
        assert (hi <= shape).all()
        found[tuple(slice(a, b) for a, b in zip(lo, hi, strict=True))] = True
    return found


@pytest.mark.parametrize("group", range(8))
def test_all_that_differs_is_covered(group: int) -> None:
    for seed in range(group * 250, group * 250 + 250):
        rng = np.random.default_rng(seed)
        shape = tuple(int(rng.choice(LENGTHS, p=CHANCES)) for _ in range(rng.integers(0, 7)))
        if seed % 50 == 0:
            shape = (BOXES + 3, 2, 3, 3)  # more images than boxes
        if np.prod(shape) > LARGEST:
            continue
        dtype = np.dtype(rng.choice(DTYPES))
        kept, bounds = np.empty(shape, dtype), np.zeros(NUMBERS["REACH_WORDS"], np.int32)
        one: Any = ChangedInput(SimpleNamespace(name="x", shape=shape, dtype=dtype.name), kept, bounds)  # type: ignore[arg-type]
        x = drawn(rng, shape, dtype)
        one.start(x)
        for _ in range(4):
            y, other = x.copy(), drawn(rng, shape, dtype)
            if y.size:
                which = rng.integers(0, y.size, int(rng.choice([0, 1, 3, 50, 2000])))
                y.reshape(-1)[which] = other.reshape(-1)[which]
            differs = differing(x, y)
            compares = rng.random() < 0.5
            share = one.compare(laid_out(rng, y)) if compares else one.take(laid_out(rng, y), told(rng, differs))
            found = covered(bounds, shape)
            case = f"seed {seed}, {shape} {dtype}, {'compared' if compares else 'told'}"
            assert not (differs & ~found).any(), case
            assert kept.tobytes() == y.tobytes(), case
            assert (share > 0) == bool(found.any()), case
            assert not compares or found.any() == differs.any(), case
            x = y


def row_starts(shape: tuple[int, ...], itemsize: int) -> tuple[int, int]:
    """The axis that rows of blocks cut, and how many of its indices a row has."""
    first = 1 if len(shape) >= 4 else 0
    longest = sorted(range(first, len(shape)), key=lambda axis: (-shape[axis], axis))[:2]
    across = max(longest)
    return across, max(1, ROW_BYTES // (int(np.prod(shape[across + 1 :])) * itemsize))


def taken_over(kept: Array, value: Array, tol: float) -> Array:
    """What an input is after a comparison: rows of blocks with an element that is too far are the new ones."""
    found = np.array(kept)
    if not kept.size:
        return found
    across, columns = row_starts(kept.shape or (1,), kept.itemsize)
    inner = int(np.prod((kept.shape or (1,))[across + 1 :]))
    rows = [x.reshape(-1, (kept.shape or (1,))[across], inner) for x in (found, value)]
    wide = kept.dtype if kept.dtype.kind == "f" else np.dtype(np.int64)
    for k in range(0, rows[0].shape[1], columns):
        old, new = (row[:, k : k + columns] for row in rows)
        with np.errstate(invalid="ignore", over="ignore"):
            near = (np.abs(new.astype(wide) - old.astype(wide)) <= wide.type(min(tol, 1e9))).all(axis=(1, 2))
        differs = differing(old, new).any(axis=(1, 2))
        which = differs & ~near if tol and kept.dtype.str[1:] in TOLERANT else differs
        old[which] = new[which]
    return found


def near_values(rng: np.random.Generator, x: Array) -> Array:
    """Values that differ little in most places, by a multiple of a quarter, and much in a few."""
    kind, y = x.dtype.kind, x.copy()
    if not x.size:
        return y
    step = rng.integers(-6, 7, x.shape) * (rng.random(x.shape) < rng.choice([0.01, 0.3, 1.0]))
    if kind == "f":
        y += (step / 4).astype(x.dtype)
        y.reshape(-1)[rng.integers(0, x.size, rng.integers(0, 3))] = rng.choice([np.nan, np.inf, -np.inf, 6e4, -0.0])
    elif kind in "iu":
        limits = np.iinfo(x.dtype)
        y = np.clip(x.astype(object) + step, limits.min, limits.max).astype(x.dtype)
        y.reshape(-1)[rng.integers(0, x.size, rng.integers(0, 3))] = rng.choice([limits.min, limits.max])
    return y


@pytest.mark.parametrize("group", range(4))
def test_small_differences_stay(group: int) -> None:
    for seed in range(group * 150, group * 150 + 150):
        rng = np.random.default_rng(seed)
        shape = tuple(int(rng.choice(LENGTHS, p=CHANCES)) for _ in range(rng.integers(0, 7)))
        if np.prod(shape) > LARGEST:
            continue
        dtype = np.dtype(str(rng.choice([*TOLERANT, "f2", "i8"])))
        tol = float(rng.choice([0.0, 0.25, 0.5, 1.0, 1.3, 2.0, 300.0, 1e18]))
        tolerance = Tolerance({"x": tol, "other": 7.0} if rng.random() < 0.5 else tol)
        kept, bounds = np.empty(shape, dtype), np.zeros(NUMBERS["REACH_WORDS"], np.int32)
        one: Any = ChangedInput(SimpleNamespace(name="x", shape=shape, dtype=dtype.name), kept, bounds, tolerance)  # type: ignore[arg-type]
        x = (rng.integers(0, 100, shape) / 1).astype(dtype)
        one.start(x)
        for _ in range(5):
            x, before = near_values(rng, x), kept.copy()
            want = taken_over(before, x, tol)
            one.compare(laid_out(rng, x))
            case = f"seed {seed}, {shape} {dtype} {tol}"
            assert kept.tobytes() == want.tobytes(), case
            found, moved = covered(bounds, shape), differing(before, kept)
            assert not (moved & ~found).any(), case
            assert found.any() == moved.any(), case


def test_inputs_without_a_tolerance_of_their_own() -> None:
    kept, bounds = np.zeros((4, 8), np.float32), np.zeros(NUMBERS["REACH_WORDS"], np.int32)
    slot: Any = SimpleNamespace(name="x", shape=(4, 8), dtype="float32")
    one = ChangedInput(slot, kept, bounds, Tolerance({"y": 5.0}))
    one.start(kept)
    assert one.compare(kept + np.float32(1e-6)) > 0
    assert (kept == np.float32(1e-6)).all()


@pytest.mark.parametrize("tol", [0.0, 60.0])
def test_noise_is_tolerated_once_it_is_known(tol: float) -> None:
    """Each frame is taken whole until then. The larger one of both tolerances counts."""
    rng = np.random.default_rng(5)
    shape = (1, 3, 96, 128)
    kept, bounds = np.zeros(shape, np.float32), np.zeros(NUMBERS["REACH_WORDS"], np.int32)
    slot: Any = SimpleNamespace(name="x", shape=shape, dtype="float32")
    one = ChangedInput(slot, kept, bounds, Tolerance(tol, noise=9.0))
    scene = rng.uniform(0, 200, shape).astype(np.float32)

    def frame() -> Array:
        return scene + rng.normal(0, 2.0, shape).astype(np.float32)

    one.start(frame())
    for _ in range(PAIRS):
        x = frame()
        assert one.compare(x) > 0
        assert np.array_equal(kept, x)
    last = kept.copy()
    assert one.compare(frame()) == 0
    x = frame()
    x[0, :, 40:44, 32:40] = scene[0, :, 40:44, 32:40] + 25  # beyond 9 · 2, within 60
    assert (one.compare(x) > 0) == (tol < 20)
    deviation = one._noise.deviation
    assert deviation == pytest.approx(2.0, rel=0.05)
    assert np.array_equal(kept, taken_over(last, x, max(tol, 9 * deviation)))


@pytest.mark.parametrize(("shape", "mask"), [((4,), (3,)), ((2, 3), (3, 2)), ((2, 3, 4, 5), (3, 4)), ((), (1,))])
def test_masks_of_other_shapes(shape: tuple[int, ...], mask: tuple[int, ...]) -> None:
    bounds = np.zeros(NUMBERS["REACH_WORDS"], np.int32)
    one: Any = ChangedInput(SimpleNamespace(name="x", shape=shape, dtype="float32"), np.zeros(shape, np.float32), bounds)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="a mask of shape"):
        one.take(np.zeros(shape, np.float32), np.ones(mask, bool))
