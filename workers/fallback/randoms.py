"""Operators that draw numbers, of any shape: ONNX's reference has none of scalars, and no Multinomial.

A node with a seed draws the same numbers every time. Draws are made in float64 and rounded to the type that is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import helper
from onnx.reference.op_run import OpRun

Array = npt.NDArray[Any]


def _state(seed: float | None) -> np.random.RandomState:
    return np.random.RandomState(None if seed is None or np.isnan(seed) else int(seed))


def _dtype(number: int | None, like: Array | None = None) -> np.dtype[Any]:
    """By the number that ONNX gives the type; else that of `like`, else float32."""
    if number:
        return np.dtype(helper.tensor_dtype_to_np_dtype(number))
    return np.dtype(np.float32) if like is None else like.dtype


def _uniform(shape: Sequence[int], dtype: np.dtype[Any], low: float | None, high: float | None, seed: float | None) -> Array:
    first, last = 0.0 if low is None else low, 1.0 if high is None else high
    drawn = np.asarray(first + _state(seed).random_sample(tuple(shape)) * (last - first)).astype(dtype)
    if first < last:  # the end is excluded, and rounding may reach it
        drawn = np.where(drawn < last, drawn, np.asarray(first).astype(dtype))
    return drawn


def _normal(shape: Sequence[int], dtype: np.dtype[Any], mean: float | None, scale: float | None, seed: float | None) -> Array:
    drawn = _state(seed).standard_normal(tuple(shape))
    return np.asarray((0.0 if mean is None else mean) + drawn * (1.0 if scale is None else scale)).astype(dtype)


class RandomUniform(OpRun):
    def _run(self, dtype: Any = None, high: Any = None, low: Any = None, seed: Any = None, shape: Any = None) -> tuple[Any, ...]:
        return (_uniform(shape or (), _dtype(dtype), low, high, seed),)


class RandomUniformLike(OpRun):
    def _run(self, x: Any, dtype: Any = None, high: Any = None, low: Any = None, seed: Any = None) -> tuple[Any, ...]:
        return (_uniform(x.shape, _dtype(dtype, x), low, high, seed),)


class RandomNormal(OpRun):
    def _run(self, dtype: Any = None, mean: Any = None, scale: Any = None, seed: Any = None, shape: Any = None) -> tuple[Any, ...]:
        return (_normal(shape or (), _dtype(dtype), mean, scale, seed),)


class RandomNormalLike(OpRun):
    def _run(self, x: Any, dtype: Any = None, mean: Any = None, scale: Any = None, seed: Any = None) -> tuple[Any, ...]:
        return (_normal(x.shape, _dtype(dtype, x), mean, scale, seed),)


class Bernoulli(OpRun):
    def _run(self, x: Any, dtype: Any = None, seed: Any = None) -> tuple[Any, ...]:
        return (np.asarray(_state(seed).random_sample(x.shape) < x.astype(np.float64)).astype(_dtype(dtype, x)),)


class Multinomial(OpRun):
    """Classes of each row by unnormalised logarithms of their probabilities. A class is drawn where the sum of those up to it passes the
    random number."""

    def _run(self, x: Any, dtype: Any = None, sample_size: Any = None, seed: Any = None) -> tuple[Any, ...]:
        wide = x.astype(np.float64)
        weights = np.exp(wide - wide.max(1, keepdims=True))
        ends = np.cumsum(weights, 1)
        drawn = _state(seed).random_sample((x.shape[0], sample_size or 1)) * ends[:, -1:]
        found = (drawn[:, :, None] >= ends[:, None, :]).sum(-1)
        return (np.minimum(found, x.shape[1] - 1).astype(np.int32 if not dtype else _dtype(dtype)),)


OPERATORS: list[type[OpRun]] = [RandomUniform, RandomUniformLike, RandomNormal, RandomNormalLike, Bernoulli, Multinomial]
