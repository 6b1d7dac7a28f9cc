"""A client process of `clients.py`: it imports nothing but what a client needs, for its memory is measured."""

from __future__ import annotations

import pickle
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aspen_mp.client.model import Model

Run = Callable[[], object]


def client() -> None:
    """The whole life of a client process."""
    engine, what, feeds = pickle.load(sys.stdin.buffer)
    run = _aspen(what, feeds) if engine == "aspen-mp" else _onnxruntime(what[0], what[1], feeds)
    run()
    _say(None)
    while True:
        try:
            in_flight, start, seconds = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        _say(_load(run, in_flight, start, seconds))


def _say(what: object) -> None:
    pickle.dump(what, sys.stdout.buffer)
    sys.stdout.buffer.flush()


def _aspen(model: Model, feeds: Mapping[str, Any]) -> Run:
    return lambda: model.run(feeds)


def _onnxruntime(path: str, cores: list[int], feeds: Mapping[str, Any]) -> Run:
    from aspen_mp.bench.own_session import own_session

    session, inputs = own_session(path, cores), dict(feeds)
    return lambda: session.run(None, inputs)


def _load(run: Run, in_flight: int, start: float, seconds: float) -> tuple[float, list[float]]:
    """The moment of the last end, and how long each request took. `in_flight` run at a time from `start` on, none begun after `seconds`,
    but one at least."""
    latencies: list[float] = []

    def drive() -> None:
        time.sleep(max(0.0, start - time.monotonic()))
        while True:
            began = time.monotonic()
            run()
            ended = time.monotonic()
            latencies.append(ended - began)
            if ended > start + seconds:
                return

    threads = [threading.Thread(target=drive) for _ in range(in_flight - 1)]
    for thread in threads:
        thread.start()
    drive()
    for thread in threads:
        thread.join()
    return time.monotonic(), latencies
