"""Pictures of ever new sizes: what does it cost that each is another shape? `aspen-mp bench sizes`.

A stream of pictures whose sides are random, from the first request of a runtime that has no plan yet. Then the same pictures come again.
Engines take turns as in `lengths`.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import onnx

from aspen_mp.bench import models
from aspen_mp.bench.figures.lengths import Found, LengthsResult, Say, Turns, plot
from aspen_mp.bench.figures.seats import OURS
from aspen_mp.bench.peers import cases

__all__ = ["SizesResult", "network", "plot", "stream"]

SUFFIX: Final = ".onnx"


@dataclass(slots=True)
class SizesResult(LengthsResult):
    """`sizes`: height and width of each picture. `lengths`: their pixels. Each engine has twice as many seconds: of new sizes, then
    again."""

    sizes: list[tuple[int, int]] = field(default_factory=list)

    def new(self, found: Found) -> list[float]:
        """Seconds of each size when it came first."""
        return found.seconds[: len(self.sizes)]

    def again(self, found: Found) -> list[float]:
        """Seconds of each size when it came again."""
        return found.seconds[len(self.sizes) :]

    def ratios(self) -> dict[str, tuple[float, float]]:
        """Our time by that of each of the others: of all new sizes, and of all sizes again."""
        ours = next((found for found in self.found if found.engine == OURS), None)
        if ours is None:
            return {}
        new, again = sum(self.new(ours)), sum(self.again(ours))
        return {f.engine: (new / sum(self.new(f)), again / sum(self.again(f))) for f in self.found if f is not ours}

    def waited(self, found: Found) -> float:
        """The median of how many times as long a size took when it came first."""
        return statistics.median(a / b for a, b in zip(self.new(found), self.again(found), strict=True))

    @property
    def verdict(self) -> str:
        if not self.found:
            return f"{self.case}: nothing was measured"
        parts = [f"{f.engine} {sum(self.new(f)):.2f} s for new sizes, {sum(self.again(f)):.2f} again" for f in self.found]
        parts += [f"{OURS} by {name} {new:.3f} new, {again:.3f} again" for name, (new, again) in self.ratios().items()]
        return f"{self.case}: {'; '.join(parts)}"


def network(text: str) -> tuple[str, onnx.ModelProto]:
    """A network whose input is a picture of any size, by its name in the zoo or as an ONNX file. Raises ValueError."""
    if text.endswith(SUFFIX):
        name, model = Path(text).name.removesuffix(SUFFIX), onnx.load(text)
    else:
        case = cases.parse(text, 1, 1)
        name, model = case.network, models.build(case.network, symbolic=True, **case.options)
        _open_sides(model)
    if len(model.graph.input) != 1 or len(_dims(model)) != 4 or any(dim.HasField("dim_value") for dim in _dims(model)[2:]):
        raise ValueError(f"{text} does not take a picture of any size, [n, channels, height, width]")
    return name, model


def _dims(model: onnx.ModelProto) -> list[onnx.TensorShapeProto.Dimension]:
    return list(model.graph.input[0].type.tensor_type.shape.dim)


def _open_sides(model: onnx.ModelProto) -> None:
    """Makes the sides of the picture unknown, and forgets shapes that followed from them."""
    for dim, side in zip(_dims(model)[2:], ("height", "width"), strict=False):
        dim.dim_param = side
    del model.graph.value_info[:]
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")


def stream(
    text: str, engines: Sequence[str], cores: Sequence[int], requests: int, least: int, most: int, multiple: int, seed: int, say: Say
) -> SizesResult:
    """`requests` pictures with sides of `least` to `most`, multiples of `multiple`, uniformly at random."""
    name, model = network(text)
    sides = multiple * np.random.default_rng(seed).integers(-(-least // multiple), most // multiple, (requests, 2), endpoint=True)
    sizes = [(int(h), int(w)) for h, w in sides]
    result = SizesResult(f"{name}, sides {least} to {most}", list(cores), [h * w for h, w in sizes], sizes=sizes)
    channels = _dims(model)[1].dim_value or 3
    with Turns(model, engines, result, say) as turns:
        for k, (h, w) in enumerate([*sizes, *sizes]):
            picture = np.random.default_rng(seed + k % requests).standard_normal((1, channels, h, w), np.float32)
            np.savez(turns.feeds, allow_pickle=False, **{model.graph.input[0].name: picture})
            say(f"{result.case}: request", k, 2 * requests)
            turns.take(lambda seat: (seat.once(turns.feeds), None))
    return result
