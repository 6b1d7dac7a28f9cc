"""Frames of `aspen-mp trace --changed`: each differs from the one before in one square of the largest input, whatever the inputs are."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import typer

from aspen_mp.cli.trace import _frames


class Model:
    """Keeps what its stream was given."""

    def __init__(self) -> None:
        self.given: list[dict[str, Any]] = []

    @contextlib.contextmanager
    def stream(self, *, same_bits: bool) -> Iterator[Model]:
        assert not same_bits
        yield self

    def run(self, feeds: dict[str, Any]) -> None:
        self.given.append({name: np.array(value) if isinstance(value, np.ndarray) else value for name, value in feeds.items()})


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 1.0])
@pytest.mark.parametrize("dtype", ["f4", "u1", "?", "i8"])
@pytest.mark.parametrize("shape", [(7,), (5, 9), (3, 20, 30), (2, 3, 20, 30), (1, 20, 30, 3), (1, 1, 1, 1)])
def test_one_square_of_each_frame_differs(shape: tuple[int, ...], dtype: str, share: float) -> None:
    rng = np.random.default_rng(0)
    feeds = {"n": np.float32(3), "empty": np.zeros((0, 4), np.float32), "text": ["a"], "x": rng.integers(0, 2, shape).astype(dtype)}
    model: Any = Model()
    _frames(model, feeds, 4, share, contextlib.nullcontext())  # type: ignore[arg-type]
    assert len(model.given) == 5
    for before, frame in zip(model.given, model.given[1:], strict=False):
        differs = np.argwhere(before["x"] != frame["x"])
        assert all(before[name] is frame[name] or np.array_equal(before[name], frame[name]) for name in ("n", "empty", "text"))
        if len(differs):
            sides = np.ptp(differs, axis=0) + 1
            long = sorted(range(len(shape)), key=lambda axis: -shape[axis])[:2]
            assert all(sides[axis] <= max(1, round(shape[axis] * share**0.5)) for axis in long if shape[axis] > 3)
        if not share or dtype == "f4":  # others are shuffled, which may change nothing
            assert bool(len(differs)) == bool(share)
        if share == 1.0 and dtype == "f4":
            assert len(differs) == before["x"].size


@pytest.mark.parametrize("feeds", [{}, {"text": ["a"]}, {"n": np.float32(3)}, {"x": np.zeros((0, 3), np.float32)}])
def test_nothing_can_change(feeds: dict[str, Any]) -> None:
    with pytest.raises(typer.BadParameter, match="no input of numbers"):
        _frames(Model(), feeds, 1, 0.5, contextlib.nullcontext())  # type: ignore[arg-type]
