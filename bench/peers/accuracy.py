"""Errors of engines against the network in float64, and the classes that they name.

The network in floats is the reference of all engines, whatever they have been given: a quantised file, or weights in half precision. So the
error holds that of the file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from aspen_mp.bench import models
from aspen_mp.bench.models.text import TextOptions
from aspen_mp.bench.models.zoo import entry_of
from aspen_mp.client.trials.difference import Difference
from aspen_mp.shm.errors import UnsupportedModelError

from .cases import Case
from .process import SeatError
from .seat import Seat

Array = NDArray[Any]
INPUTS: Final = 8
"""Inputs on which engines are judged, unless somebody says how many."""
REFERENCE: Final = "onnxruntime"
"""The engine whose classes those of others are compared with, too."""
_FIRST_SEED: Final = 1000
"""Seeds of these inputs; the zoo's quantised networks have their ranges from smaller ones (`models.quantized.CALIBRATED`)."""


@dataclass(slots=True)
class Accuracy:
    """The accuracy of an engine. `error`: the largest difference from the network in float64, relative to the input's largest
    magnitude, of the worst output. `top1`: the share of rows that name the class that float64 names. `same`: the share that name the class
    that onnxruntime names on the same file. None where nothing is to be compared."""

    error: float | None = None
    top1: float | None = None
    same: float | None = None


def is_rounded(case: Case) -> bool:
    """Whether engines compute a case in less than float32, or from fewer bits."""
    return case.precision != "f32" or case.options.get("dtype", "f32") != "f32"


def judge(
    case: Case, seats: Sequence[Seat], inputs: int, folder: Path, advance: Callable[[str], None] = lambda _: None
) -> dict[str, Accuracy]:
    """The accuracy of each engine, by label. Files lie in `folder` for a while."""
    exact = _float64(case) if inputs else None
    text = entry_of(case.network).options is TextOptions
    judges = {seat.label: _Judge(text) for seat in seats}
    for k in range(inputs):
        advance(f"{case.label}: errors, {k + 1} of {inputs} inputs")
        feeds = models.inputs(case.network, seed=_FIRST_SEED + k, batch=case.batch, seq=case.seq, **_sizes(case))
        np.savez(folder / "judged.npz", allow_pickle=False, **feeds)
        want = None
        if exact is not None:
            try:
                want = exact(feeds)
            except UnsupportedModelError:
                exact = None
        found = {seat.label: _answer(seat, folder) for seat in seats}
        for label, outputs in found.items():
            judges[label].add(outputs, want, found.get(REFERENCE) if label != REFERENCE else None)
    return {label: each.verdict() for label, each in judges.items()}


def _sizes(case: Case) -> dict[str, Any]:
    return {key: value for key, value in case.options.items() if key != "dtype"}


def _float64(case: Case) -> Callable[[dict[str, Array]], list[Any]] | None:
    """The network in floats, evaluated in float64."""
    from aspen_mp.tools import float64

    model = models.build(case.network, batch=case.batch, seq=case.seq, **_sizes(case))
    return float64.evaluator(model, [output.name for output in model.graph.output])


def _answer(seat: Seat, folder: Path) -> list[Array] | None:
    """The outputs of an engine; None where it cannot take other inputs."""
    try:
        seat.answer(folder / "judged.npz", folder / "answers.npz")
    except SeatError:
        return None
    with np.load(folder / "answers.npz") as archive:
        return [archive[name] for name in archive.files]


class _Judge:
    """The comparisons of one engine. `text`: outputs of two dimensions are features of a text, and not scores of classes."""

    def __init__(self, text: bool) -> None:
        self._text = text
        self._exact: list[Difference] = []
        self._other: list[Difference] = []

    def add(self, got: list[Array] | None, want: list[Any] | None, other: list[Array] | None) -> None:
        """One more input: this engine's outputs, those in float64, and those of onnxruntime."""
        for kept, reference in ((self._exact, want), (self._other, other)):
            if got is None or reference is None:
                continue
            if not kept:
                kept.extend(Difference() for _ in reference)
            for difference, value, wanted in zip(kept, got, reference, strict=True):
                difference.add(value.astype(np.float64), np.asarray(wanted).astype(np.float64))
                if self._text and value.ndim == 2:
                    difference.agreed = difference.rows = 0

    def verdict(self) -> Accuracy:
        error = max((each.error for each in self._exact), default=None)
        return Accuracy(error, _share(self._exact), _share(self._other))


def _share(found: Sequence[Difference]) -> float | None:
    """The share of rows that agree, over the outputs that look like scores of classes."""
    rows = sum(each.rows for each in found)
    return sum(each.agreed for each in found) / rows if rows else None
