"""The post transforms of `ai.onnx.ml` for raw scores of classifiers and regressors, in float32 as onnxruntime has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_F = np.float32
_SQRT2: Final = _F(1.41421356)
_CURVE: Final = _F(0.147)
_WIDE: Final = 2 / (_F(3.14159) * _CURVE)
_TINY: Final = _F(1e-7)


def logistic(x: Array) -> Array:
    """1 / (1 + exp(-x)), without overflow."""
    v = 1 / (1 + np.exp(-np.abs(x)))
    return np.where(x < 0, 1 - v, v)


def probit(p: Array) -> Array:
    """The quantile of the normal distribution, by the approximation of the inverse error function that onnxruntime takes."""
    x = 2 * p - 1
    log = np.log((1 - x) * (1 + x))
    v = _WIDE + _F(0.5) * log
    root = np.sqrt(np.sqrt(v * v - log / _CURVE) - v)
    return np.asarray(_SQRT2 * np.where(x < 0, -root, root))


def softmax(x: Array) -> Array:
    """The softmax over the last axis."""
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def softmax_zero(x: Array) -> Array:
    """Softmax over the scores that are not zero; zeros stay zero."""
    most = x.max(-1, keepdims=True)
    there = np.abs(x) > _TINY
    e = np.where(there, np.exp(x - most), x * np.exp(-most))
    return np.asarray(e / np.where(there, e, 0).sum(-1, keepdims=True))


_TRANSFORMS: Final[dict[str, Callable[[Array], Array]]] = {
    "NONE": lambda x: x,
    "LOGISTIC": logistic,
    "SOFTMAX": softmax,
    "SOFTMAX_ZERO": softmax_zero,
    "PROBIT": probit,
}
NAMES: Final = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
"""The names in the order in which TreeEnsemble counts them."""


def checked(name: str) -> str:
    """The name of a post transform; ValueError for an unknown one."""
    if name not in _TRANSFORMS:
        raise ValueError(f"no post_transform is called {name!r}; there are {', '.join(_TRANSFORMS)}")
    return name


def transformed(scores: Array, name: str) -> Array:
    """Scores [rows, classes] of two classes or more, as float32."""
    return np.asarray(_TRANSFORMS[name](scores.astype(_F)), _F)


def paired(score: Array, name: str, complement: bool) -> Array:
    """Both columns [rows, 2] of a classifier of two classes that has one score [rows] for a row. `complement`: the scores are
    probabilities, so the other class has what is left; otherwise it has the opposite."""
    score = score.astype(_F)
    if name == "PROBIT":
        return np.stack([probit(score), np.zeros_like(score)], -1)
    if name == "LOGISTIC":
        return np.stack([logistic(-score), logistic(score)], -1)
    return np.stack([1 - score if complement else -score, score], -1)
