"""Frames of which a part has changed: `aspen-mp bench stream`.

One square at a random place gets new pixels. A stream runs the frame, and then the model runs it whole by its ordinary plan. They take
turns in one process. Results are copies, as they are by default. Both kinds of stream are measured: `bits` gives the bits of the
whole frame, `values` lets rounding errors differ.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import numpy as np

import aspen_mp
from aspen_mp.bench import models
from aspen_mp.bench.peers.cases import Case
from aspen_mp.bench.streams.clip import side_of

if TYPE_CHECKING:
    from aspen_mp.client.model import Model
    from aspen_mp.client.streams.model_stream import ModelStream

CASES: Final = ("yolov3@image=1280,backbone=1", "yolov3@image=1280", "unet@image=1024", "resnet50@image=896")
PERCENT: Final = (0.0, 0.25, 1.0, 5.0, 20.0, 100.0)
KINDS: Final = {"bits": True, "values": False}
"""The kinds of stream, with their `same_bits`."""


@dataclass(slots=True)
class Part:
    """Frames of which `percent` have changed. Milliseconds of each round. `work`: the share of the arithmetic that ran, by kind of
    stream, the median of the rounds."""

    percent: float
    whole_ms: list[float] = field(default_factory=list)
    stream_ms: dict[str, list[float]] = field(default_factory=dict)
    work: dict[str, float] = field(default_factory=dict)

    def speedup(self, kind: str) -> float:
        """Time of the whole frame by that of the stream's: the median of the rounds' ratios."""
        return median(a / b for a, b in zip(self.whole_ms, self.stream_ms[kind], strict=True))

    def bound(self, kind: str) -> float | None:
        """The speedup if only arithmetic took time. None where nothing ran."""
        return 1 / self.work[kind] if self.work[kind] else None


@dataclass(slots=True)
class StreamResult:
    """One network. `bytes`: shared memory of a stream, by kind. `wrong`: rows after which the stream of kind `bits` has other outputs than
    the first frame of a new stream."""

    case: str
    workers: int
    parts: list[Part] = field(default_factory=list)
    bytes: dict[str, int] = field(default_factory=dict)
    wrong: int = 0

    @property
    def verdict(self) -> str:
        """The result in one line."""
        parts = [f"{p.percent:g} %: {p.speedup('bits'):.2f} and {p.speedup('values'):.2f} times as fast" for p in self.parts]
        return f"{self.case}: {'; '.join(parts)} (same bits, and without); {self.wrong} wrong"


def measure(case: Case, workers: int, percent: Sequence[float], rounds: int, seed: int, say: Callable[[str], None]) -> StreamResult:
    """Measure a network whose only input is a picture [batch, channels, height, width]. ValueError for others."""
    graph = models.build(case.network, batch=case.batch, seq=case.seq, **case.options)
    feeds = models.inputs(graph, batch=case.batch, seq=case.seq)
    if len(feeds) != 1 or next(iter(feeds.values())).ndim != 4:
        raise ValueError(f"{case.label} does not take one picture, [batch, channels, height, width]")
    (name, frame), rng = next(iter(feeds.items())), np.random.default_rng(seed)
    result = StreamResult(case.label, workers)
    with ExitStack() as stack:
        runtime = stack.enter_context(aspen_mp.Runtime(workers=workers))
        say(f"loading {case.label}")
        model = runtime.load(graph)
        model.prepare({name: frame.shape})
        streams = {kind: stack.enter_context(model.stream(same_bits=same)) for kind, same in KINDS.items()}
        for stream in streams.values():
            stream.run(feeds)
        result.bytes = {kind: stream.nbytes for kind, stream in streams.items()}
        for share in percent:
            result.parts.append(Part(share, stream_ms={kind: [] for kind in KINDS}))
            works: dict[str, list[float]] = {kind: [] for kind in KINDS}
            for number in range(-1, rounds):  # the first one is to warm up
                say(f"{case.label}: {share:g} %, round {number + 1} of {rounds}")
                _change(frame, share / 100, rng)
                _round(model, streams, feeds, result.parts[-1], works, counts=number >= 0)
            result.parts[-1].work = {kind: median(found) for kind, found in works.items()}
            result.wrong += _differing(model, streams["bits"], feeds)
    return result


def _change(frame: np.ndarray[Any, np.dtype[Any]], share: float, rng: np.random.Generator) -> None:
    """Give a square at a random place new pixels."""
    height, width = frame.shape[2:]
    side = side_of(share, height, width)
    high, wide = (height, width) if share >= 1 else (side, side)
    y, x = rng.integers(height - high, endpoint=True), rng.integers(width - wide, endpoint=True)
    place = frame[..., y : y + high, x : x + wide]
    place[...] = rng.random(place.shape)


def _round(
    model: Model, streams: dict[str, ModelStream], feeds: dict[str, Any], part: Part, works: dict[str, list[float]], *, counts: bool
) -> None:
    whole = _timed(lambda: model.run(feeds))
    for kind, stream in streams.items():
        took = _timed(lambda stream=stream: stream.run(feeds))  # type: ignore[misc]
        if counts:
            part.stream_ms[kind].append(took)
            works[kind].append(stream.last.work if stream.last is not None else 1.0)
    if counts:
        part.whole_ms.append(whole)


def _timed(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return 1e3 * (time.perf_counter() - began)


def _differing(model: Model, stream: ModelStream, feeds: dict[str, Any]) -> int:
    """1 where the stream's last frame has other bits than the first frame of a new stream."""
    got = stream.run(feeds)
    with model.stream() as new:
        want = new.run(feeds)
    return int(any(got[key].tobytes() != want[key].tobytes() for key in want))
