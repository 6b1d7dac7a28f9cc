"""Pictures of ever new sizes: what does it cost that each is another shape? `aspen-mp bench sizes`.

A stream of pictures whose sides are random, from the first request of a runtime that has no plan yet. Then the same pictures come again.
Engines take turns as in `lengths`.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import onnx

from aspen_mp.bench import models
from aspen_mp.bench.figures.lengths import Found, LengthsResult, Say, Turns, plot
from aspen_mp.bench.figures.seats import OURS
from aspen_mp.bench.peers import cases

__all__ = ["Medians", "Pictures", "SizesResult", "network", "plot", "stream"]

SUFFIX: Final = ".onnx"


@dataclass(frozen=True, slots=True)
class Medians:
    """An engine's times, as medians of `rounds`.

    `first_ms`, `second_ms`: the first two requests. `new_ms`: a new size behind these. `again_ms`: a size that comes again. `new_s`,
    `again_s`: all sizes together. `new_by_again`: how many times as long a size takes when it is new."""

    engine: str
    rounds: int
    first_ms: float
    second_ms: float
    new_ms: float
    again_ms: float
    new_s: float
    again_s: float
    new_by_again: float


@dataclass(slots=True)
class SizesResult(LengthsResult):
    """`sizes`: height and width of each picture. `lengths`: their pixels. Each engine has twice as many seconds: of new sizes, then
    again. `repeats`: `found` of each further round, in new processes. `medians`: of all rounds."""

    sizes: list[tuple[int, int]] = field(default_factory=list)
    repeats: list[list[Found]] = field(default_factory=list)
    medians: list[Medians] = field(default_factory=list)

    def new(self, found: Found) -> list[float]:
        """Seconds of each size when it came first."""
        return found.seconds[: len(self.sizes)]

    def again(self, found: Found) -> list[float]:
        """Seconds of each size when it came again."""
        return found.seconds[len(self.sizes) :]

    def by_engine(self) -> dict[str, list[Found]]:
        """The rounds of each engine in which it has answered all requests."""
        engines: dict[str, list[Found]] = {}
        for found in (found for each in (self.found, *self.repeats) for found in each):
            if len(found.seconds) == 2 * len(self.sizes):
                engines.setdefault(found.engine, []).append(found)
        return engines

    def summary(self) -> list[Medians]:
        """The medians of each engine."""
        return [self._medians(engine, rounds) for engine, rounds in self.by_engine().items()]

    def _medians(self, engine: str, rounds: Sequence[Found]) -> Medians:
        whole = [(self.new(f), self.again(f)) for f in rounds]

        def over(figure: Callable[[list[float], list[float]], float]) -> float:
            return statistics.median(figure(new, again) for new, again in whole)

        return Medians(
            engine,
            len(whole),
            first_ms=over(lambda new, _: 1e3 * new[0]),
            second_ms=over(lambda new, _: 1e3 * new[1]),
            new_ms=over(lambda new, _: 1e3 * statistics.median(new[2:] or new)),
            again_ms=over(lambda _, again: 1e3 * statistics.median(again)),
            new_s=over(lambda new, _: sum(new)),
            again_s=over(lambda _, again: sum(again)),
            new_by_again=over(lambda new, again: statistics.median(a / b for a, b in zip(new, again, strict=True))),
        )

    def ratios(self) -> dict[str, tuple[float, float]]:
        """Our time by that of each of the others: of all new sizes, and of all sizes again."""
        engines = {one.engine: one for one in self.summary()}
        ours = engines.pop(OURS, None)
        return {} if ours is None else {name: (ours.new_s / one.new_s, ours.again_s / one.again_s) for name, one in engines.items()}

    @property
    def verdict(self) -> str:
        if not self.by_engine():
            return f"{self.case}: nothing was measured"
        parts = [f"{one.engine} {one.new_s:.2f} s for new sizes, {one.again_s:.2f} again" for one in self.summary()]
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


@dataclass(frozen=True, slots=True)
class Pictures:
    """A stream of `requests` pictures with sides of `least` to `most`, multiples of `multiple`, uniformly at random."""

    requests: int
    least: int
    most: int
    multiple: int
    seed: int

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """Height and width of each."""
        ends = -(-self.least // self.multiple), self.most // self.multiple
        sides = self.multiple * np.random.default_rng(self.seed).integers(*ends, (self.requests, 2), endpoint=True)
        return [(int(h), int(w)) for h, w in sides]


def stream(text: str, engines: Sequence[str], cores: Sequence[int], pictures: Pictures, rounds: int, say: Say) -> SizesResult:
    """Pictures of new sizes, then the same again, in each of `rounds` with new processes and without plans from before."""
    name, model = network(text)
    result = SizesResult(f"{name}, sides {pictures.least} to {pictures.most}", list(cores), [])
    result.sizes = pictures.sizes
    result.lengths = [h * w for h, w in result.sizes]
    for number in range(rounds):
        one = LengthsResult(result.case, result.cores, result.lengths)

        def told(what: str, done: int, total: int, number: int = number) -> None:
            say(f"round {number + 1}, {what}" if rounds > 1 else what, done, total)

        _round(model, engines, one, pictures, told)
        result.failed |= one.failed
        if number:
            result.repeats.append(one.found)
        else:
            result.found = one.found
    result.medians = result.summary()
    return result


def _round(model: onnx.ModelProto, engines: Sequence[str], result: LengthsResult, pictures: Pictures, say: Say) -> None:
    """One stream through engines in new processes."""
    channels, sizes = _dims(model)[1].dim_value or 3, pictures.sizes
    with Turns(model, engines, result, say) as turns:
        for k, (h, w) in enumerate([*sizes, *sizes]):
            drawn = np.random.default_rng(pictures.seed + k % len(sizes)).standard_normal((1, channels, h, w), np.float32)
            np.savez(turns.feeds, allow_pickle=False, **{model.graph.input[0].name: drawn})
            say(f"{result.case}: request", k, 2 * len(sizes))
            turns.take(lambda seat: (seat.once(turns.feeds), None))
