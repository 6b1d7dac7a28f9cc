"""Whether the outputs of a network are right: beside the same module in float64, as PyTorch's own benchmarks judge a backend.

Every number of an output counts. PyTorch itself, in the module's own precision, says how far rounding alone takes a result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

COSINE = 0.99
"""The least cosine of the angle between an output and its reference."""
TIMES = 3.0
"""How many times as large as PyTorch's own an error may be, …"""
TOLERANCE = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 3e-2}
"""… and what is allowed beyond that, as a share of the root mean square of the output, by the precision of the module."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The worst of all outputs. `cosine`: of the angle to float64. `error`: root mean square of the difference from float64, as a share of
    the output's; `eager_error`: the same of PyTorch's. `why`: what is wrong, a sentence; empty where all is right."""

    cosine: float
    error: float
    eager_error: float
    why: str = ""

    @property
    def right(self) -> bool:
        return not self.why


def judge(outputs: Sequence[Array], eager: Sequence[Array], exact: Sequence[Array], precision: str = "float32") -> Verdict:
    """Compare outputs with those of PyTorch (`eager`) and of the same module in float64 (`exact`). `precision`: of the module."""
    if len(outputs) != len(eager):
        return Verdict(0.0, math.inf, 0.0, f"There are {len(outputs)} outputs, not {len(eager)}.")
    worst = Verdict(1.0, 0.0, 0.0)
    for index, (ours, theirs, reference) in enumerate(zip(outputs, eager, exact, strict=True)):
        found = _output(index, ours, theirs, reference, precision)
        if found.why:
            return found
        worst = Verdict(min(worst.cosine, found.cosine), max(worst.error, found.error), max(worst.eager_error, found.eager_error))
    return worst


def _output(index: int, ours: Array, theirs: Array, exact: Array, precision: str) -> Verdict:
    name = f"Output {index}"
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        given, wanted = (f"{array.dtype} of {list(array.shape)}" for array in (ours, theirs))
        return Verdict(0.0, math.inf, 0.0, f"{name} is {given}, not {wanted}.")
    if ours.dtype.kind in "biu":
        wrong = int((ours != theirs).sum())
        return Verdict(1.0, 0.0, 0.0, f"{name}: {wrong} of {ours.size} whole numbers differ." if wrong else "")
    a, b, c = (array.astype(np.float64).ravel() for array in (ours, theirs, exact))
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True) or not np.isfinite(a[finite]).all():
        return Verdict(0.0, math.inf, 0.0, f"{name}: infinities or NaN are at other places than PyTorch's.")
    finite &= np.isfinite(c)
    a, b, c = a[finite], b[finite], c[finite]
    if not a.size:
        return Verdict(1.0, 0.0, 0.0)
    scale = _rms(c) or 1.0
    found, allowed = _rms(a - c) / scale, _rms(b - c) / scale
    cosine = _cosine(a, c)
    if cosine < COSINE:
        return Verdict(cosine, found, allowed, f"{name}: the cosine to float64 is {cosine:.4f}.")
    if not found <= TIMES * allowed + TOLERANCE[precision]:
        return Verdict(cosine, found, allowed, f"{name}: the error is {found:.1e}, PyTorch's is {allowed:.1e}.")
    return Verdict(cosine, found, allowed)


def _rms(values: Array) -> float:
    return float(np.sqrt(np.mean(values * values)))


def _cosine(a: Array, b: Array) -> float:
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / lengths if lengths else float(not a.any() and not b.any())
