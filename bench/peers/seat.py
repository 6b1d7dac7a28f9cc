"""One engine in a process of its own, and the parent's handle on it.

The child is pinned, loads the engine, then does nothing until told: engines take turns and never run at the same time.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from .engines import LOADERS, Array, Loaded
from .process import EngineProcess, SeatError

__all__ = ["Seat", "SeatError", "Turn"]


@dataclass(slots=True)
class Turn:
    """Seconds of each run of one turn, load of the cores by anything else meanwhile (in cores), and the rise of the engine's own counters.
    `probes`: what was measured of the machine before it and after."""

    seconds: list[float]
    foreign: float = 0.0
    counters: dict[str, float] = field(default_factory=dict)
    probes: tuple[float, ...] = ()


@dataclass(slots=True)
class Seat(EngineProcess):
    """Parent's handle on the process of an engine with one model."""

    @classmethod
    def start(
        cls,
        engine: str,
        model: Path,
        feeds: Path | None,
        outputs: Path | None,
        cores: list[int],
        options: Mapping[str, Any] | None = None,
        label: str = "",
    ) -> Seat:
        """Starts the process and waits until the model ran once; `outputs` is the .npz file it writes. Without `feeds` the model is loaded
        only, for `once`. `options`: for the engine's loader."""
        module = __spec__.name if __spec__ else __name__
        arguments = [engine, str(model), str(feeds or ""), str(outputs or ""), ",".join(map(str, cores)), json.dumps(dict(options or {}))]
        return cls.launch(module, engine, label or engine, cores, arguments)

    def turn(self, seconds: float, runs: int, beside: Callable[[], float] = float) -> Turn:
        """Runs the model once to warm up, then at least `runs` times and `seconds` long. `beside`: CPU time so far of what runs beside it
        on purpose."""
        reply, foreign = self.watched(beside, seconds=seconds, runs=runs)
        return Turn(reply["times"], foreign, reply["counters"])

    def once(self, feeds: Path) -> float:
        """Runs the model once, on inputs of an .npz file; seconds."""
        self.ask(once=str(feeds))
        return float(self.reply()["seconds"])

    def answer(self, feeds: Path, outputs: Path) -> None:
        """Runs the model once, on inputs of an .npz file, and writes its outputs to another."""
        self.ask(answer=str(feeds), outputs=str(outputs))
        self.reply()

    def step(self, prompt: Path | None = None) -> tuple[float, int]:
        """Runs a decoder once, on a prompt (an .npz file) or on its last token and cache. Returns seconds, and the token that it chooses
        now (the largest logit of the last place)."""
        self.ask(step=None if prompt is None else str(prompt))
        reply = self.reply()
        return float(reply["seconds"]), int(reply["token"])


def read(file: str) -> dict[str, Array]:
    with np.load(file) as archive:
        return {name: archive[name] for name in archive.files}


class Stream:
    """Runs on ever new inputs, and the outputs of the last one. A decoder's inputs are tokens, a mask and a cache, its outputs logits and
    the cache."""

    def __init__(self, loaded: Loaded) -> None:
        self._serve = loaded.serve
        self._feeds: dict[str, Array] = {}
        self._outputs: list[Array] = []

    def run(self, feeds: dict[str, Array]) -> float:
        """Seconds."""
        if self._serve is None:
            raise TypeError("it runs on one set of inputs only")
        begin = time.perf_counter()
        outputs = self._serve(feeds)
        seconds = time.perf_counter() - begin
        self._feeds, self._outputs = feeds, outputs
        return seconds

    def outputs(self) -> list[Array]:
        """The outputs of the last run."""
        return self._outputs

    def chosen(self) -> int:
        return int(self._outputs[0][0, -1].argmax())

    def continued(self) -> dict[str, Array]:
        """The inputs of the next step, of one text."""
        ids, mask, *caches = self._feeds
        token = np.array([[self.chosen()]], np.int64)
        longer = np.concatenate([self._feeds[mask], np.ones_like(token)], axis=1)
        return {ids: token, mask: longer, **dict(zip(caches, self._outputs[1:], strict=True))}


def child(
    engine: str, model: str, feeds: str, outputs: str, cores: list[int], options: Mapping[str, Any], requests: IO[str], replies: IO[str]
) -> None:
    """Runs the engine's process until the request pipe closes."""

    def reply(**message: Any) -> None:
        replies.write(json.dumps(message) + "\n")
        replies.flush()

    try:
        os.sched_setaffinity(0, cores)
        arrays = read(feeds) if feeds else {}
        begin = time.perf_counter()
        loaded = LOADERS[engine].load(model, arrays, cores, **options)
        load = time.perf_counter() - begin
    except Exception as error:
        reply(error=f"{type(error).__name__}: {error}")
        return
    try:
        first = None
        if feeds:
            begin = time.perf_counter()
            results = loaded.run()
            first = time.perf_counter() - begin
            np.savez(outputs, *results)
        reply(settings=loaded.settings, load_s=load, first_s=first, version=LOADERS[engine].version)
        stream = Stream(loaded)
        for line in requests:
            order = json.loads(line)
            if "once" in order:
                reply(seconds=stream.run(read(order["once"])))
                continue
            if "answer" in order:
                seconds = stream.run(read(order["answer"]))
                np.savez(order["outputs"], *stream.outputs())
                reply(seconds=seconds)
                continue
            if "step" in order:
                reply(seconds=stream.run(read(order["step"]) if order["step"] else stream.continued()), token=stream.chosen())
                continue
            loaded.run()
            before = loaded.counters()
            times: list[float] = []
            end = time.perf_counter() + order["seconds"]
            while len(times) < order["runs"] or time.perf_counter() < end:
                begin = time.perf_counter()
                loaded.run()
                times.append(time.perf_counter() - begin)
            reply(times=times, counters={name: value - before[name] for name, value in loaded.counters().items()})
    except Exception as error:
        reply(error=f"{type(error).__name__}: {error}")
    finally:
        loaded.close()


def main() -> None:
    engine, model, feeds, outputs, cores, options, request, reply = sys.argv[1:]
    with os.fdopen(int(request)) as requests, os.fdopen(int(reply), "w") as replies:
        child(engine, model, feeds, outputs, [int(core) for core in cores.split(",")], json.loads(options), requests, replies)


if __name__ == "__main__":
    main()
