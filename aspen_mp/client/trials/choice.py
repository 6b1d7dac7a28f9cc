"""A choice of ``precision="auto"``, and what was tried for it."""

from __future__ import annotations

from dataclasses import dataclass

from aspen_mp.planner.job.options import Precision


@dataclass(frozen=True, slots=True)
class Trial:
    """A precision that was tried. `error`: the largest difference of an output from f32, relative to the sample's largest magnitude. `ms`:
    of a request; None where the error is above the bound, or nothing is to be compared."""

    precision: Precision
    error: float
    ms: float | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """A choice of ``precision="auto"``. `within`: the bound of the error; `samples`: how many were tried; `trials`: f32 first. A precision
    for which the processor has no instruction is not among them."""

    precision: Precision
    within: float
    samples: int
    trials: tuple[Trial, ...]

    def __str__(self) -> str:
        return "; ".join(map(self._said, self.trials))

    def _said(self, trial: Trial) -> str:
        time = "" if trial.ms is None else f", {trial.ms:.3g} ms"
        above = "" if trial.error <= self.within else f", above {self.within:g}"
        return f"{trial.precision}{' (chosen)' if trial.precision == self.precision else ''}: error {trial.error:.2g}{above}{time}"
