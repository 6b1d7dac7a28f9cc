"""The choice of layers that stay in floats, so that the error of a quantised model stays within a bound."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Final

from aspen_mp.quantization.layers import Layer

MUCH_WORSE: Final = 4.0
"""Times the error of the layer before it that a layer has where the rounding between both is to blame."""
CONSPICUOUS: Final = 0.05
"""An error of a layer that is worth a word, if it is also `MUCH_WORSE` times the median."""


def order(layers: Sequence[Layer], among: Sequence[Layer] = ()) -> list[tuple[str, ...]]:
    """The groups of layers to keep in floats, the first one first. `among`: all layers, where `layers` are some of them.

    A layer comes with the one before it where what lies between them cannot be rounded well. Scores with a mask of huge numbers are rounded
    by the addition of the mask, and Softmax reads them.
    """
    known = {layer.name: layer for layer in among or layers}
    return [(layer.name, *(name for name in layer.before if _spoils(known.get(name), layer))) for layer in layers if layer.error > 0]


def _spoils(before: Layer | None, layer: Layer) -> bool:
    return before is not None and before.error * MUCH_WORSE < layer.error


def conspicuous(layers: Sequence[Layer]) -> list[str]:
    """The layers whose errors stand out, with those before them that are to be kept, too."""
    if not layers:
        return []
    limit = max(CONSPICUOUS, MUCH_WORSE * median(layer.error for layer in layers))
    return list(_union(order([layer for layer in layers if layer.error > limit], layers)))


def least(groups: Sequence[Sequence[str]], error_with: Callable[[tuple[str, ...]], float], within: float) -> tuple[str, ...]:
    """The fewest first groups that, kept in floats, bring the error within the bound; all where that does not help.

    `error_with`: quantises and measures with some layers in floats. It is called about twice the logarithm of the number of groups.
    """
    found: dict[int, float] = {}

    def good(n: int) -> bool:
        if n not in found:
            found[n] = error_with(_union(groups[:n]))
        return found[n] <= within

    if good(0):
        return ()
    high = 1
    while high < len(groups) and not good(high):
        high *= 2
    high = min(high, len(groups))
    if not good(high):
        return _union(groups[:high])
    low = high // 2  # is not good: tried, or zero
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if good(middle) else (middle, high)
    return _union(groups[:high])


def _union(groups: Sequence[Sequence[str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for group in groups for name in group))
