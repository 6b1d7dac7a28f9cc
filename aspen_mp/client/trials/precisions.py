"""`precision="auto"`: the fastest precision whose error on samples stays within a bound."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from aspen_mp.client.trials import difference, turns
from aspen_mp.client.trials.choice import Choice, Trial
from aspen_mp.client.trials.samples import Feeds, Given, Samples
from aspen_mp.planner.job.options import PRECISIONS, Precision

if TYPE_CHECKING:
    from aspen_mp.client.model import Model

log = logging.getLogger("aspen_mp.precision")
Wanted: TypeAlias = Precision | Literal["auto"]
EXACT: Final[Precision] = "f32"
MOST_SAMPLES: Final = 64
"""Samples that are tried, of those given."""
WORTH: Final = 0.97
"""The share of the time in f32 below which another precision is worth its error."""


def fastest(load: Callable[[Precision], Model], given: Given, within: float) -> Model:
    """The model in the fastest precision that is exact enough; the others are unloaded. `load`: loads it in one precision."""
    models = {EXACT: load(EXACT)}
    try:
        samples = Samples(given, models[EXACT].inputs)
        tried = samples[:MOST_SAMPLES]
        exact = [models[EXACT].run(feeds) for feeds in tried]
        errors = {EXACT: 0.0}
        for precision in PRECISIONS:
            if precision != EXACT:
                models[precision] = load(precision)
                errors[precision] = _error(models[precision], tried, exact)
        same = [each for each in models if each != EXACT and errors[each] == 0]  # the processor computes it in f32
        for each in same:
            models.pop(each).unload()
        times = _times({each: model for each, model in models.items() if errors[each] <= within}, tried[0])
        best = min(times, key=lambda each: times[each], default=EXACT)
        if times and times[best] > WORTH * times[EXACT]:
            best = EXACT
        trials = tuple(Trial(each, errors[each], times.get(each)) for each in models)
        chosen = models.pop(best)
        chosen.precision_choice = Choice(best, within, len(tried), trials)
        log.info("model %r: %s", chosen.name, chosen.precision_choice)
        return chosen
    finally:
        for model in models.values():
            model.unload()


def _error(model: Model, tried: list[Feeds], exact: list[dict[str, Any]]) -> float:
    found: dict[str, difference.Difference] = {}
    for feeds, want in zip(tried, exact, strict=True):
        difference.add_all(found, model.run(feeds), want)
    return difference.worst(found)


def _times(models: Mapping[Precision, Model], feeds: Feeds) -> dict[Precision, float]:
    """Milliseconds of a request, with searched plans; none where there is one model alone."""
    if len(models) < 2:
        return {}
    for model in models.values():
        model.prepare({name: value.shape for name, value in feeds.items()})
    return dict(zip(models, turns.medians([partial(model.run, feeds) for model in models.values()]), strict=True))
