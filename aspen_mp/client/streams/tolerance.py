"""How far a stream's input may differ from what it has computed with: a number, or a multiple of the input's noise."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from aspen_mp.client import arguments
from aspen_mp.client.streams._changes import FAR

Array = npt.NDArray[Any]
PAIRS: Final = 8
"""Pairs of frames from which noise is estimated."""
SAMPLES: Final = 1 << 16
"""Elements of a frame that are looked at, at most."""
_CLIP: Final = 3.0  # differences beyond this many standard deviations are something that moved
_CLIPPED_VARIANCE: Final = 0.9733  # of a normal distribution that is cut off there
_ROUNDS: Final = 12


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The differences that a stream counts as none. `tol`: the largest one of an element, for all inputs or {input: difference}. `noise`:
    the same as a multiple of the standard deviation of the input's noise. `layer_tol`: the same of an activation, as a share of its range.
    `refresh`: one of this number of frames runs whole; 0: none."""

    tol: float | Mapping[str, float] = 0.0
    noise: float = 0.0
    refresh: int = 0
    layer_tol: float = 0.0

    @property
    def exact(self) -> bool:
        """Whether every difference counts."""
        return not self.noise and not self.layer_tol and not any(self.tol.values() if isinstance(self.tol, Mapping) else (self.tol,))

    def names(self) -> Iterable[str]:
        """Inputs that have a tolerance of their own."""
        return self.tol if isinstance(self.tol, Mapping) else ()

    def of(self, name: str) -> float:
        """The tolerance of an input, without noise."""
        return self.tol.get(name, 0.0) if isinstance(self.tol, Mapping) else self.tol


EXACT: Final = Tolerance()


class InputNoise:
    """The noise of an input, from differences of successive frames. It leaves out what moves, whose differences are larger than most."""

    def __init__(self) -> None:
        self._found: list[float] = []

    @property
    def deviation(self) -> float | None:
        """Standard deviation of an element's noise. None: too few frames have been seen."""
        return float(np.median(self._found)) if len(self._found) >= PAIRS else None

    def see(self, before: Array, after: Array) -> None:
        """Learn from two frames of the same shape, both contiguous."""
        step = max(1, before.size // SAMPLES)
        by = after.reshape(-1)[::step].astype(np.float64) - before.reshape(-1)[::step].astype(np.float64)
        by = by[np.isfinite(by)]
        self._found.append(_clipped_deviation(by) / np.sqrt(2.0))  # a difference has the noise of two frames


def _clipped_deviation(by: npt.NDArray[np.float64]) -> float:
    """Standard deviation around zero of the bulk of some numbers."""
    far = np.abs(by)
    deviation = float(np.median(far)) / 0.6745 if far.size else 0.0  # of a normal distribution with that median
    deviation = deviation or float(np.sqrt(np.mean(far**2))) if far.size else 0.0
    for _ in range(_ROUNDS):
        kept = far[far <= _CLIP * deviation]
        last, deviation = deviation, float(np.sqrt(np.mean(kept**2) / _CLIPPED_VARIANCE)) if kept.size else 0.0
        if abs(deviation - last) <= 1e-3 * last:
            break
    return deviation


def checked(tol: Any = 0.0, noise: Any = 0.0, layer_tol: Any = 0.0, refresh: Any = 0, same_bits: Any = None) -> Tolerance:
    """A tolerance from what the caller gave. TypeError, ValueError for what is none, or does not go with `same_bits` of `Model.stream`."""
    if isinstance(tol, Mapping):
        tol = {arguments.text("a name of tol", name): arguments.bound(f"tol[{name!r}]", one) for name, one in tol.items()}
    else:
        tol = arguments.bound("tol", tol)
    layers = arguments.bound("layer_tol", layer_tol)
    if layers and same_bits:
        raise ValueError("layer_tol does not go with same_bits=True: results are near those of a whole frame. Leave out one of them")
    return Tolerance(tol, arguments.bound("noise", noise), arguments.whole("refresh", refresh, 0), layers)


def applies(dtype: str) -> bool:
    """Whether elements of a type have a tolerance. Those of other types always change when their bits do."""
    return dtype in FAR


def distance(near: Mapping[str, Array], whole: Mapping[str, Array]) -> float:
    """The largest difference of two results, as a share of the range of that output. Infinite where shapes differ, or where one of them is
    not a number."""
    most = 0.0
    for name, right in whole.items():
        left = near[name]
        if left.shape != right.shape:
            return np.inf
        if not right.size or right.dtype.kind not in "fiub":
            continue
        a, b = left.astype(np.float64), right.astype(np.float64)
        with np.errstate(invalid="ignore"):
            by = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.nan_to_num(np.abs(a - b), nan=np.inf, posinf=np.inf)).max()
            span = np.ptp(b[np.isfinite(b)]) if np.isfinite(b).any() else 0.0
        if by:
            most = max(most, float(by / span) if span else np.inf)
    return most
