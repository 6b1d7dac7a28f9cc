"""How far values are from other ones: errors relative to the largest value, and whether both name the same class."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
LEAST_CLASSES: Final = 2
LEAST_VOCABULARY: Final = 4096
"""Entries of an output's last dimension from which an output of three dimensions is taken for the scores of words."""


def largest_error(got: Array, want: Array) -> float:
    """Largest difference relative to the largest finite magnitude of `want`; infinite where one is NaN or infinite and the other is not."""
    if want.dtype.kind not in "fcV":
        return 0.0 if bool((got == want).all()) else 1.0 if want.dtype.kind in "ObUST" else _distance(got.astype(float), want.astype(float))
    wide = np.complex128 if want.dtype.kind == "c" else np.float64
    return _distance(got.astype(wide), want.astype(wide))


def _distance(got: Array, want: Array) -> float:
    finite = np.isfinite(want)
    if not np.array_equal(finite, np.isfinite(got)) or not np.array_equal(got[~finite], want[~finite], equal_nan=True):
        return float("inf")
    if not finite.any():
        return 0.0
    scale = float(np.abs(want[finite]).max()) or 1.0
    return float(np.abs(got[finite] - want[finite]).max()) / scale


def classes(values: Array) -> Array | None:
    """The class with the largest score of each row, if the array looks like scores: floats [rows, classes], maybe with further dimensions
    of one, or [rows, places, words]. None if not."""
    if values.dtype.kind not in "fV" or values.ndim < 2:
        return None
    shape = values.shape
    if math.prod(shape[2:]) == 1 and shape[1] >= LEAST_CLASSES:
        return np.asarray(values.reshape(shape[:2]).astype(np.float64).argmax(1))
    if values.ndim == 3 and shape[2] >= LEAST_VOCABULARY:
        return np.asarray(values.astype(np.float32).argmax(2).reshape(-1))
    return None


@dataclass(slots=True)
class Difference:
    """How far an output is from a reference, over samples. `error`: the largest difference relative to the sample's largest magnitude, of
    the worst sample. `agreed` of `rows`: rows whose largest score is at the same place, where the output looks like scores of classes."""

    error: float = 0.0
    agreed: int = 0
    rows: int = 0
    _noise: float = 0.0
    _signal: float = 0.0

    def add(self, got: Any, want: Any) -> None:
        """One more sample."""
        a, b = np.asarray(got), np.asarray(want)
        if a.shape != b.shape:
            self.error = math.inf
            return
        self.error = max(self.error, largest_error(a, b))
        if b.dtype.kind not in "fV":
            return
        x, y = a.astype(np.float64).reshape(-1), b.astype(np.float64).reshape(-1)
        self._noise += float(np.square(x - y).sum())
        self._signal += float(np.square(y).sum())
        ours, theirs = classes(a), classes(b)
        if ours is not None and theirs is not None:
            self.agreed += int((ours == theirs).sum())
            self.rows += theirs.size

    @property
    def rms(self) -> float:
        """The root of the summed squares of differences, relative to that of the reference."""
        return math.sqrt(self._noise / self._signal) if self._signal else 0.0 if not self._noise else math.inf

    @property
    def top1(self) -> float | None:
        """The share of rows that name the same class; None where the output does not look like scores."""
        return self.agreed / self.rows if self.rows else None


def add_all(into: dict[str, Difference], got: Mapping[str, Any], want: Mapping[str, Any]) -> None:
    """One more sample's outputs, by name."""
    for name, value in want.items():
        into.setdefault(name, Difference()).add(got[name], value)


def worst(found: Mapping[str, Difference]) -> float:
    """The largest error of any output."""
    return max((each.error for each in found.values()), default=0.0)
