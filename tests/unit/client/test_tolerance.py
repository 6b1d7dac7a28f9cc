"""Noise that is estimated, tolerances by input, and how far results lie apart."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from aspen_mp.client.streams.tolerance import EXACT, PAIRS, InputNoise, Tolerance, applies, checked, distance

Array = np.ndarray[Any, np.dtype[Any]]
SIDES = (3, 240, 320)


def frames(rng: np.random.Generator, dtype: Any, deviation: float, number: int, side: int = 80) -> list[Array]:
    """A scene with noise, before which a square moves from frame to frame."""
    scene, found = rng.uniform(40, 200, SIDES), []
    for k in range(number):
        x = scene.copy()
        x[:, 20 + 7 * k :, 30 + 11 * k :][:, :side, :side] = 220
        x += rng.normal(0, deviation, SIDES)
        found.append(np.clip(np.rint(x), 0, 255).astype(dtype) if np.dtype(dtype).kind in "iu" else x.astype(dtype))
    return found


def estimated(all_frames: list[Array]) -> float | None:
    noise = InputNoise()
    for before, after in itertools.pairwise(all_frames):
        noise.see(before, after)
    return noise.deviation


@pytest.mark.parametrize("deviation", [1.0, 2.0, 4.0, 9.0])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint8, np.int16])
def test_noise_within_five_percent(dtype: Any, deviation: float) -> None:
    """Rounding to integers is noise, too."""
    rng = np.random.default_rng(int(deviation))
    found = estimated(frames(rng, dtype, deviation, PAIRS + 1))
    true = np.sqrt(deviation**2 + (1 / 12 if np.dtype(dtype).kind in "iu" else 0))
    assert found == pytest.approx(true, rel=0.05)


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_noise_of_any_unit(scale: float) -> None:
    rng = np.random.default_rng(3)
    found = estimated([(x * scale).astype(np.float32) for x in frames(rng, np.float64, 3.0, PAIRS + 1)])
    assert found == pytest.approx(3.0 * scale, rel=0.05)


def test_noise_of_few_frames_is_not_known() -> None:
    assert estimated(frames(np.random.default_rng(0), np.float32, 1.0, PAIRS)) is None


def test_frames_without_noise() -> None:
    """The square alone differs. Values that are not numbers are left out."""
    still = frames(np.random.default_rng(0), np.float32, 0.0, PAIRS + 1)
    assert estimated([still[0]] * (PAIRS + 1)) == 0.0
    still[3][0, 0, 0], still[4][0, 0, 1] = np.nan, np.inf
    found = estimated(frames(np.random.default_rng(1), np.float32, 2.0, PAIRS + 1))
    assert found is not None
    noise = InputNoise()
    for _ in range(PAIRS):
        noise.see(np.full(10, np.nan, np.float32), np.zeros(10, np.float32))
    assert noise.deviation == 0.0


def test_tolerances_by_input() -> None:
    one, each = checked(0.5, 0), checked({"a": 1, "b": np.float32(0.25)}, 8, refresh=np.int64(3))
    assert (one.of("a"), one.of("z"), list(one.names())) == (0.5, 0.5, [])
    assert (each.of("a"), each.of("b"), each.of("z"), sorted(each.names())) == (1.0, 0.25, 0.0, ["a", "b"])
    assert each.noise == 8.0
    assert each.refresh == 3
    assert EXACT.exact
    assert checked({"a": 0.0}, 0.0, refresh=5).exact
    assert not one.exact
    assert not Tolerance(noise=1.0).exact
    assert [applies(name) for name in ("float32", "float64", "uint8", "int8", "uint16", "int16")] == [True] * 6
    assert [applies(name) for name in ("float16", "bfloat16", "int32", "int64", "bool", "complex64", "object")] == [False] * 7


@pytest.mark.parametrize(
    ("tol", "noise", "refresh"),
    [(-1, 0, 0), (np.nan, 0, 0), (np.inf, 0, 0), ({"a": -1}, 0, 0), (0, -1, 0), (0, np.inf, 0), (0, 0, -1)],
)
def test_values_out_of_range(tol: Any, noise: Any, refresh: Any) -> None:
    with pytest.raises(ValueError, match="must be"):
        checked(tol, noise, refresh=refresh)


@pytest.mark.parametrize(
    ("tol", "noise", "refresh"),
    [("1", 0, 0), (None, 0, 0), (True, 0, 0), ({1: 0.5}, 0, 0), ({"a": "b"}, 0, 0), (0, "1", 0), (0, 0, 1.5), (0, 0, True)],
)
def test_values_of_other_types(tol: Any, noise: Any, refresh: Any) -> None:
    with pytest.raises(TypeError, match="must be"):
        checked(tol, noise, refresh=refresh)


NAN, INF = np.nan, np.inf


@pytest.mark.parametrize(
    ("near", "whole", "want"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([1.0, 2.5], [1.0, 2.0], 0.5),
        ([0.0, 10.0], [0.0, -10.0], 2.0),
        ([3.0, 3.0], [3.0, 3.0], 0.0),
        ([3.0, 3.5], [3.0, 3.0], INF),  # the range is 0
        ([NAN, 1.0, 3.0], [NAN, 1.0, 2.0], 1.0),
        ([1.0, 1.0, 2.0], [NAN, 1.0, 2.0], INF),
        ([NAN, 1.0, 2.0], [0.0, 1.0, 2.0], INF),
        ([INF, 1.0, 2.0], [INF, 1.0, 2.0], 0.0),
        ([INF, 1.0, 2.0], [-INF, 1.0, 2.0], INF),
        ([NAN, NAN], [NAN, NAN], 0.0),
        ([], [], 0.0),
        ([1.0], [1.0, 2.0], INF),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_distance(near: list[float], whole: list[float], want: float, dtype: Any) -> None:
    results = [{"other": np.zeros(2), "y": np.array(values, dtype)} for values in (near, whole)]
    assert distance(*results) == pytest.approx(want)


def test_distance_is_that_of_the_worst_output() -> None:
    whole = {"a": np.array([0, 255], np.uint8), "b": np.array([True, False]), "c": np.array(["x", "y"], object), "d": np.arange(5)}
    near = {"a": np.array([51, 255], np.uint8), "b": np.array([True, False]), "c": np.array(["x", "z"], object), "d": np.arange(5)}
    assert distance(near, whole) == pytest.approx(0.2)
    near["b"] = np.array([False, False])
    assert distance(near, whole) == 1.0
    near["d"] = near["d"] + 8
    assert distance(near, whole) == 2.0
