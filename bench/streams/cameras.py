"""A detector on what cameras send: noise in every pixel, and one object that moves. `aspen-mp bench cameras`.

First one camera: a stream with a tolerance runs each frame, and then the model runs it whole. Boxes of both are compared. Then several
cameras, each in a process of its own, with its own clip. They run streams on one runtime, whole frames on it, and onnxruntime with a
session for each process. Engines take turns.
"""

from __future__ import annotations

import importlib.util
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
import numpy.typing as npt

import aspen_mp
from aspen_mp.bench import models
from aspen_mp.bench.child import Child
from aspen_mp.bench.load import Spread
from aspen_mp.bench.peers.cases import Case
from aspen_mp.bench.streams.clip import Clip
from aspen_mp.control.wire import python

CASE: Final = "yolov3@image=1280,decode=1"
LEARNING: Final = 10
"""Frames from which a stream learns the noise; they are not counted."""
BOXES: Final = 300
"""Boxes that are compared: those that most likely hold an object."""
CLOSE: Final = 0.95
"""Boxes of a larger intersection over union are the same."""
STREAM, WHOLE, PEER = "aspen-mp, streams", "aspen-mp, whole frames", "onnxruntime, whole frames"


@dataclass(frozen=True, slots=True)
class Scene:
    """A clip and how it is watched. `share`: of the picture that the object covers. `noise`: standard deviation of a pixel's noise, where
    pixels are in [0, 1]. `multiple`: the stream's tolerance, in units of the noise."""

    share: float
    noise: float
    multiple: float

    def clip(self, height: int, width: int, seed: int) -> Clip:
        return Clip(height, width, share=self.share, noise=self.noise, seed=seed)


@dataclass(slots=True)
class Fleet:
    """Several cameras on one engine. `per_s`: frames a second of all together, of each round."""

    engine: str
    per_s: list[float] = field(default_factory=list)
    latencies_s: list[float] = field(default_factory=list)

    @property
    def spread(self) -> Spread:
        return Spread.of(self.latencies_s)


@dataclass(slots=True)
class CamerasResult:
    """One camera: milliseconds of each frame, whole and in a stream, and the share of the arithmetic that ran. `same`: the share of boxes
    that are the same; `least`: the smallest intersection over union. `cameras` of them: `fleets`."""

    case: str
    cores: list[int]
    scene: Scene
    whole_ms: list[float] = field(default_factory=list)
    stream_ms: list[float] = field(default_factory=list)
    work: list[float] = field(default_factory=list)
    same: float = 1.0
    least: float = 1.0
    bytes: int = 0
    cameras: int = 0
    fleets: list[Fleet] = field(default_factory=list)

    @property
    def speedup(self) -> float:
        return median(a / b for a, b in zip(self.whole_ms, self.stream_ms, strict=True))

    @property
    def verdict(self) -> str:
        """The result in a line."""
        parts = [f"a stream is {self.speedup:.2f} times as fast as whole frames, and {self.same:.2%} of the boxes are the same"]
        parts += [f"{one.engine}: {median(one.per_s):.2f} frames/s, p99 {one.spread.p99_ms:.0f} ms" for one in self.fleets]
        return f"{self.case}: {'; '.join(parts)}"


def measure(
    case: Case, cores: Sequence[int], scene: Scene, frames: int, cameras: int, seconds: float, rounds: int, say: Callable[[str], None]
) -> CamerasResult:
    """Measure a detector whose only input is a picture [1, 3, height, width], and whose output is boxes [1, boxes, fields]. ValueError for
    others. `seconds`: of each engine in each round."""
    graph = models.build(case.network, batch=case.batch, seq=case.seq, **case.options)
    (name, picture), *others = models.inputs(graph, batch=case.batch, seq=case.seq).items()
    boxes = graph.graph.output[0].type.tensor_type.shape.dim
    if others or picture.ndim != 4 or len(graph.graph.output) != 1 or len(boxes) != 3:
        raise ValueError(f"{case.label} is not a detector with one picture and one output, such as {CASE}")
    height, width = picture.shape[2:]
    result = CamerasResult(case.label, list(cores), scene, cameras=cameras)
    with ExitStack() as stack:
        runtime = stack.enter_context(aspen_mp.Runtime(workers=len(cores), cores=list(cores)))
        say(f"loading {case.label}")
        model = runtime.load(graph, instances=max(cameras, 1))
        model.prepare({name: picture.shape})
        with model.stream(noise=scene.multiple) as stream:
            for number, frame in enumerate(scene.clip(height, width, 0).frames(LEARNING + frames)):
                say(f"one camera: frame {number + 1}")
                _compare(result, model, stream, {name: frame}, counts=number >= LEARNING)
            result.bytes = stream.nbytes
        if cameras:
            file = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "model.onnx"
            file.write_bytes(graph.SerializeToString())
            told = {STREAM: model, WHOLE: model, PEER: (str(file), list(cores))}
            seats = {engine: _seats(stack, engine, what, scene, (name, height, width), cameras, say) for engine, what in told.items()}
            result.fleets = _fleets({engine: have for engine, have in seats.items() if have}, seconds, rounds, say)
    return result


def _compare(result: CamerasResult, model: Any, stream: Any, feeds: dict[str, Any], *, counts: bool) -> None:
    began = time.perf_counter()
    (whole,) = model.run(feeds).values()
    middle = time.perf_counter()
    (near,) = stream.run(feeds).values()
    ended = time.perf_counter()
    if counts:
        result.whole_ms.append(1e3 * (middle - began))
        result.stream_ms.append(1e3 * (ended - middle))
        result.work.append(stream.last.work)
        found = overlaps(near[0], whole[0])
        n = len(result.whole_ms)
        result.same += (float((found >= CLOSE).mean()) - result.same) / n
        result.least = min(result.least, float(found.min()))


def overlaps(near: npt.NDArray[Any], whole: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Intersection over union of boxes [boxes, fields] of two results: of the `BOXES` that most likely hold an object in either of them.
    Fields: centre, size, the likelihood of an object, and others."""
    likely = {int(k) for boxes in (near, whole) for k in np.argsort(-boxes[:, 4], kind="stable")[:BOXES]}
    a, b = (boxes[sorted(likely), :4].astype(np.float64) for boxes in (near, whole))
    low = np.maximum(a[:, :2] - a[:, 2:] / 2, b[:, :2] - b[:, 2:] / 2)
    high = np.minimum(a[:, :2] + a[:, 2:] / 2, b[:, :2] + b[:, 2:] / 2)
    both = np.maximum(high - low, 0).prod(axis=1)
    either = a[:, 2:].prod(axis=1) + b[:, 2:].prod(axis=1) - both
    return np.asarray(both / np.maximum(either, 1e-300), np.float64)


# ---- several cameras


def _seats(
    stack: ExitStack, engine: str, what: Any, scene: Scene, picture: tuple[str, int, int], cameras: int, say: Callable[[str], None]
) -> list[Child]:
    if engine == PEER and importlib.util.find_spec("onnxruntime") is None:
        return []
    found = []
    for number in range(cameras):
        say(f"{engine}: starting camera {number + 1}")
        child = stack.enter_context(Child(python.command("aspen_mp.bench.streams.camera", function="camera")))
        child.tell((engine, what, scene, picture, number))
        child.hear()
        found.append(child)
    return found


def _fleets(seats: dict[str, list[Child]], seconds: float, rounds: int, say: Callable[[str], None]) -> list[Fleet]:
    fleets = {engine: Fleet(engine) for engine in seats}
    for number in range(rounds):
        order: Iterable[str] = list(seats)[:: 1 if number % 2 else -1]
        for engine in order:
            say(f"round {number + 1} of {rounds}: {engine}")
            start = time.monotonic() + 0.02
            for seat in seats[engine]:
                seat.tell((start, seconds))
            answers = [seat.hear() for seat in seats[engine]]
            found = list(chain.from_iterable(latencies for _, latencies in answers))
            fleets[engine].per_s.append(len(found) / (max(end for end, _ in answers) - start))
            fleets[engine].latencies_s += found
    return list(fleets.values())
