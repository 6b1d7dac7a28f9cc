"""A detector on what cameras send: noise in every pixel, and one object that moves. `aspen-mp bench cameras`.

First one camera: the model runs each frame whole, and then streams run it. One has a tolerance for the input alone, the other one for
layers as well. Their boxes are compared with those of the whole frame. Then several cameras, each in a process of its own, with its own
clip. They run streams of the second kind on one runtime, whole frames on it, and onnxruntime with a session for each process. The threads
of all sessions are as many as the cores, or one in each. Engines take turns.
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
STREAM, NEAR = "aspen-mp, streams", "aspen-mp, streams with a tolerance of layers"
WHOLE, PEER = "aspen-mp, whole frames", "onnxruntime, whole frames"


@dataclass(frozen=True, slots=True)
class Scene:
    """A clip and how it is watched. `share`: of the picture that the object covers. `noise`: standard deviation of a pixel's noise, where
    pixels are in [0, 1]. `multiple`: the streams' tolerance, in units of the noise. `layer_tol`: as of `Model.stream`, of `NEAR`."""

    share: float
    noise: float
    multiple: float
    layer_tol: float

    def terms(self, engine: str) -> dict[str, Any]:
        """Arguments of `Model.stream`."""
        return {"noise": self.multiple, "layer_tol": self.layer_tol if engine == NEAR else 0.0}

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
class Watched:
    """Frames of one camera in a stream: milliseconds of each, those of the same frame whole, and the share of the arithmetic that ran.
    `same`: the share of boxes that are the same; `least`: the smallest intersection over union. `bytes`: of shared memory."""

    engine: str
    whole_ms: list[float] = field(default_factory=list)
    stream_ms: list[float] = field(default_factory=list)
    work: list[float] = field(default_factory=list)
    same: float = 1.0
    least: float = 1.0
    bytes: int = 0

    @property
    def speedup(self) -> float:
        return median(a / b for a, b in zip(self.whole_ms, self.stream_ms, strict=True))


@dataclass(slots=True)
class CamerasResult:
    """`watched`: one camera, by each kind of stream. `fleets`: several `cameras`, by each engine. `peer_threads`: of each session of the
    peer; 0: one on each core."""

    case: str
    cores: list[int]
    scene: Scene
    watched: list[Watched] = field(default_factory=list)
    cameras: int = 0
    peer_threads: int = 0
    fleets: list[Fleet] = field(default_factory=list)

    @property
    def alone(self) -> list[tuple[str, list[float]]]:
        """(engine, milliseconds of each frame) of one camera."""
        return [*((one.engine, one.stream_ms) for one in self.watched), (WHOLE, self.watched[0].whole_ms)]

    @property
    def verdict(self) -> str:
        """The result in a line."""
        parts = [f"{one.engine}: {one.speedup:.2f} times as fast, {one.same:.2%} of the boxes are the same" for one in self.watched]
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
        with ExitStack() as streams:
            watching = {engine: streams.enter_context(model.stream(**scene.terms(engine))) for engine in (STREAM, NEAR)}
            result.watched = [Watched(engine) for engine in watching]
            for number, frame in enumerate(scene.clip(height, width, 0).frames(LEARNING + frames)):
                say(f"one camera: frame {number + 1}")
                _compare(result.watched, model, watching, {name: frame}, counts=number >= LEARNING)
            for one in result.watched:
                one.bytes = watching[one.engine].nbytes
        if cameras:
            result.peer_threads = max(1, len(cores) // cameras)  # sessions with a thread for each core would be in each other's way
            file = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "model.onnx"
            file.write_bytes(graph.SerializeToString())
            told = {NEAR: model, WHOLE: model, PEER: (str(file), list(cores), result.peer_threads)}  # all are in memory at once
            seats = {engine: _seats(stack, engine, what, scene, (name, height, width), cameras, say) for engine, what in told.items()}
            result.fleets = _fleets({engine: have for engine, have in seats.items() if have}, seconds, rounds, say)
    return result


def _compare(watched: Sequence[Watched], model: Any, streams: dict[str, Any], feeds: dict[str, Any], *, counts: bool) -> None:
    began = time.perf_counter()
    (whole,) = model.run(feeds).values()
    whole_ms = 1e3 * (time.perf_counter() - began)
    for one in watched:
        began = time.perf_counter()
        (near,) = streams[one.engine].run(feeds).values()
        stream_ms = 1e3 * (time.perf_counter() - began)
        if not counts:
            continue
        one.whole_ms.append(whole_ms)
        one.stream_ms.append(stream_ms)
        one.work.append(streams[one.engine].last.work)
        found = overlaps(near[0], whole[0])
        one.same += (float((found >= CLOSE).mean()) - one.same) / len(one.whole_ms)
        one.least = min(one.least, float(found.min()))


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
