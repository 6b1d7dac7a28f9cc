"""Boxes of what changed in an input, found or told, against numpy."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from aspen_mp.client.streams.changed_inputs import BOXES, ChangedInput
from aspen_mp.shm.errors import RequestError
from aspen_mp.shm.tables import LIMITS, NUMBERS

Array = np.ndarray[Any, np.dtype[Any]]
RANK = LIMITS["rank"]
LENGTHS = [0, 1, 2, 3, 5, 9, 40]
CHANCES = [0.02, 0.2, 0.2, 0.2, 0.18, 0.15, 0.05]
DTYPES = ["u1", "?", "f2", "f4", "f8", "c8", "c16", "i8"]
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


@pytest.mark.parametrize(("shape", "mask"), [((4,), (3,)), ((2, 3), (3, 2)), ((2, 3, 4, 5), (3, 4)), ((), (1,))])
def test_masks_of_other_shapes(shape: tuple[int, ...], mask: tuple[int, ...]) -> None:
    bounds = np.zeros(NUMBERS["REACH_WORDS"], np.int32)
    one: Any = ChangedInput(SimpleNamespace(name="x", shape=shape, dtype="float32"), np.zeros(shape, np.float32), bounds)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="a mask of shape"):
        one.take(np.zeros(shape, np.float32), np.ones(mask, bool))
