"""A camera of `cameras.py`: a process that sends the frames of its clip, one after the other, when it is told to."""

from __future__ import annotations

import itertools
import pickle
import sys
import time
from collections.abc import Callable
from typing import Any

from aspen_mp.bench.streams.cameras import LEARNING, NEAR, PEER, STREAM, Scene

FRAMES = 6
"""Frames of the clip that are in memory; the object goes through them forwards and backwards."""


def camera() -> None:
    """The whole life of the process."""
    engine, what, scene, (name, height, width), number = pickle.load(sys.stdin.buffer)
    frames = scene.clip(height, width, number).frames(FRAMES)
    frames = itertools.cycle([*frames, *frames[-2:0:-1]])
    run = _engine(engine, what, scene, name)
    for _ in range(LEARNING if engine in (STREAM, NEAR) else 1):
        run(next(frames))
    _say(None)
    while True:
        try:
            start, seconds = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        time.sleep(max(0.0, start - time.monotonic()))
        latencies: list[float] = []
        while time.monotonic() <= start + seconds or not latencies:
            began = time.monotonic()
            run(next(frames))
            latencies.append(time.monotonic() - began)
        _say((time.monotonic(), latencies))


def _engine(engine: str, what: Any, scene: Scene, name: str) -> Callable[[Any], object]:
    if engine == PEER:
        from aspen_mp.bench.own_session import own_session

        session = own_session(*what)
        return lambda frame: session.run(None, {name: frame})
    if engine in (STREAM, NEAR):
        stream = what.stream(**scene.terms(engine))
        return lambda frame: stream.run({name: frame})
    return lambda frame: what.run({name: frame})


def _say(what: object) -> None:
    pickle.dump(what, sys.stdout.buffer)
    sys.stdout.buffer.flush()
