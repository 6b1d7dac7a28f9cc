"""Stride arithmetic against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as hs

from aspen_mp.planner.layout import strides as st


def elements(array: np.ndarray) -> tuple[int, ...]:
    return tuple(s // array.itemsize for s in array.strides)


@hs.composite
def views(draw: hs.DrawFn) -> np.ndarray:
    """An int8 view of some memory: transposed, sliced, stepped, reversed, broadcast."""
    shape = draw(hs.lists(hs.integers(1, 5), min_size=1, max_size=4))
    x = np.arange(np.prod(shape), dtype=np.int16).reshape(shape)
    x = x.transpose(draw(hs.permutations(range(len(shape)))))
    index = []
    for d in x.shape:
        start = draw(hs.integers(0, d - 1))
        index.append(slice(start, None, draw(hs.sampled_from([1, 1, 2]))) if draw(hs.booleans()) else slice(None, None, -1))
    x = x[tuple(index)]
    return np.broadcast_to(x, (2, *x.shape)) if draw(hs.integers(0, 4)) == 0 else x


def same_memory(a: np.ndarray, strides: tuple[int, ...], shape: tuple[int, ...]) -> np.ndarray:
    return np.lib.stride_tricks.as_strided(a, shape, [s * a.itemsize for s in strides])


@given(views(), hs.data())
def test_reshape_is_numpys(x: np.ndarray, data: hs.DataObject) -> None:
    factors: list[int] = []
    for d in x.shape:
        factors += {1: [], 4: [2, 2]}.get(d, [d])
    new: list[int] = [1] * data.draw(hs.integers(0, 2))
    for f in data.draw(hs.permutations(factors)):
        if new and data.draw(hs.booleans()):
            new[-1] *= f
        else:
            new.append(f)
    strides = st.reshape(x.shape, elements(x), new)
    copied = x.reshape(new)
    if strides is None:
        assert not np.shares_memory(copied, x)
    else:
        assert (same_memory(x, strides, tuple(new)) == copied).all()
        back = st.reshape(new, strides, x.shape)
        assert back is not None
        assert st.same(x.shape, back, elements(x)), "a view can be undone"


def test_reshape_of_nothing() -> None:
    assert st.reshape((0, 3), (3, 1), (3, 0)) is not None
    assert st.reshape((), (), (1, 1)) is not None


@given(hs.lists(hs.integers(1, 4), max_size=4), hs.data())
def test_order_and_dense(shape: list[int], data: hs.DataObject) -> None:
    order = data.draw(hs.permutations(range(len(shape))))
    strides = st.dense(shape, order)
    again = st.dense(shape, st.order_of(shape, strides))
    assert st.same(shape, strides, again)
    assert sorted(st.order_of(shape, strides)) == list(range(len(shape)))
    assert st.extent(shape, strides) == (0, int(np.prod(shape)) - 1)


@given(hs.data())
def test_transpose(data: hs.DataObject) -> None:
    x = data.draw(views())
    perm = data.draw(hs.permutations(range(x.ndim)))
    assert st.transpose(elements(x), perm) == elements(x.transpose(perm))
    assert st.untranspose(st.transpose(elements(x), perm), perm) == elements(x)


def run_of(memory: np.ndarray, x: np.ndarray) -> st.Run:
    offset = x.__array_interface__["data"][0] - memory.__array_interface__["data"][0]
    run = st.Run.of(offset, x.shape, elements(x), x.itemsize)
    assert run is not None
    return run


@given(hs.data())
def test_overlap_is_exact(data: hs.DataObject) -> None:
    memory = np.zeros(64, np.int16)
    found = []
    for _ in range(2):
        x = memory[data.draw(hs.integers(0, 20)) :]
        shape = data.draw(hs.lists(hs.integers(1, 4), min_size=1, max_size=3))
        strides = [data.draw(hs.integers(0, 4)) for _ in shape]
        view = same_memory(x, tuple(strides), tuple(shape))
        found.append((run_of(memory, view), view))
    (a, x), (b, y) = found
    assert st.overlap(a, b) == np.shares_memory(x, y)


@pytest.mark.parametrize(("first", "second", "want"), [((0, 64), (64, 96), False), ((0, 65), (64, 96), True), ((32, 64), (0, 32), False)])
def test_overlap_of_channel_slices(first: tuple[int, int], second: tuple[int, int], want: bool) -> None:
    memory = np.zeros((1, 56, 56, 96), np.float32)
    x, y = (memory[..., a:b] for a, b in (first, second))
    a, b = run_of(memory, x), run_of(memory, y)
    assert st._overlap_by_digits(a, b) is want
    assert st.overlap(a, b) is want
