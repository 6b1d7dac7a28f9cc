"""One engine in a process of its own, and the parent's handle on it.

The child is pinned, loads the engine, then does nothing until told: engines take turns and never run at the same time. Messages are
JSON lines over two pipes of their own, so that an engine may print what it likes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import psutil

from .engines import LOADERS, Array, Loaded

QUIET_S = 0.005  # an engine rests when it used no CPU time for so long
REST_LIMIT_S = 2.0
CLOSE_S = 30.0


class SeatError(Exception):
    """The engine could not load or run the model; the message says which and why."""


@dataclass(slots=True)
class Turn:
    """Seconds of each run of one turn, how busy the cores were with anything else meanwhile (in cores), and by how much the engine's own
    counters rose in these runs. `probes`: what was measured of the machine before it and after."""

    seconds: list[float]
    foreign: float = 0.0
    counters: dict[str, float] = field(default_factory=dict)
    probes: tuple[float, ...] = ()


@dataclass(slots=True)
class Seat:
    """Parent's handle on an engine's process. `label`: what it is called among others of the same engine."""

    engine: str
    label: str
    cores: list[int]
    process: subprocess.Popen[bytes]
    requests: IO[str]
    replies: IO[str]
    info: dict[str, Any] = field(default_factory=dict)

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
        request_read, request_write = os.pipe()
        reply_read, reply_write = os.pipe()
        command = [sys.executable, "-m", __spec__.name if __spec__ else __name__, engine, str(model), str(feeds or ""), str(outputs or "")]
        command += [",".join(map(str, cores)), str(request_read), str(reply_write), json.dumps(dict(options or {}))]
        try:
            # A group of its own: Ctrl-C is for us, and engines would print tracebacks.
            process = subprocess.Popen(command, pass_fds=(request_read, reply_write), stdin=subprocess.DEVNULL, process_group=0)
        finally:
            os.close(request_read)
            os.close(reply_write)
        seat = cls(engine, label or engine, cores, process, os.fdopen(request_write, "w"), os.fdopen(reply_read))
        try:
            seat.info = seat._reply()
        except BaseException as error:
            if not isinstance(error, SeatError):
                process.kill()  # it may load for long
            seat.close()
            raise
        seat.rest()
        return seat

    def turn(self, seconds: float, runs: int, beside: Callable[[], float] = float) -> Turn:
        """Runs the model once to warm up, then at least `runs` times and `seconds` long. `beside`: CPU time so far of what runs beside it
        on purpose."""
        busy, own = busy_seconds(self.cores), self.cpu_seconds() + beside()
        begin = time.perf_counter()
        self._ask(seconds=seconds, runs=runs)
        reply = self._reply()
        wall = time.perf_counter() - begin
        foreign = (busy_seconds(self.cores) - busy) - (self.cpu_seconds() + beside() - own)
        self.rest()
        return Turn(reply["times"], max(0.0, foreign) / wall, reply["counters"])

    def once(self, feeds: Path) -> float:
        """Runs the model once, on inputs of an .npz file; seconds."""
        self._ask(once=str(feeds))
        return float(self._reply()["seconds"])

    def step(self, prompt: Path | None = None) -> tuple[float, int]:
        """Runs a decoder once, on a prompt (an .npz file) or on what it has chosen and the cache that it has left; seconds, and the token
        that it chooses now (the largest logit of the last place)."""
        self._ask(step=None if prompt is None else str(prompt))
        reply = self._reply()
        return float(reply["seconds"]), int(reply["token"])

    def rest(self) -> None:
        """Waits until the engine's threads have stopped spinning, so that they take nothing from the engine after it."""
        limit = time.monotonic() + REST_LIMIT_S
        before = self.cpu_seconds(precise=True)
        while time.monotonic() < limit:
            time.sleep(QUIET_S)
            now = self.cpu_seconds(precise=True)
            if now - before < QUIET_S / 50:
                return
            before = now

    def cpu_seconds(self, *, precise: bool = False) -> float:
        """CPU time of the engine's processes so far, and of those that have ended; `precise`: of those that are there alone, in nanoseconds
        per thread where the kernel has it, else in clock ticks."""
        total = 0.0
        for process in self._family():
            try:
                if precise:
                    total += thread_seconds(process.pid)
                else:
                    times = process.cpu_times()
                    total += times.user + times.system + times.children_user + times.children_system
            except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
                continue
        return total

    def _family(self) -> list[psutil.Process]:
        try:
            root = psutil.Process(self.process.pid)
            return [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def _ask(self, **order: Any) -> None:
        self.requests.write(json.dumps(order) + "\n")
        self.requests.flush()

    def _reply(self) -> dict[str, Any]:
        line = self.replies.readline()
        if not line:
            raise SeatError(f"{self.engine}: its process ended unexpectedly (status {self.process.wait()})")
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise SeatError(f"{self.engine}: {reply['error']}")
        return reply

    def close(self) -> None:
        """Ends the process: it leaves when its request pipe closes."""
        self.requests.close()
        try:
            self.process.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.replies.close()


def busy_seconds(cores: list[int]) -> float:
    """Seconds that the cores were busy, or taken away by a hypervisor, since the machine started (resolution: one clock tick)."""
    times = psutil.cpu_times(percpu=True)
    return float(sum(t.user + t.nice + t.system + t.irq + t.softirq + t.steal for t in (times[core] for core in cores)))


def thread_seconds(pid: int) -> float:
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def read(file: str) -> dict[str, Array]:
    with np.load(file) as archive:
        return {name: archive[name] for name in archive.files}


class Stream:
    """Runs on ever new inputs, and what the last one of them left: a decoder's inputs are tokens, a mask and a cache, its outputs logits
    and the cache."""

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
    """What the engine's process does until the request pipe closes."""

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
    engine, model, feeds, outputs, cores, request, reply, options = sys.argv[1:]
    with os.fdopen(int(request)) as requests, os.fdopen(int(reply), "w") as replies:
        child(engine, model, feeds, outputs, [int(core) for core in cores.split(",")], json.loads(options), requests, replies)


if __name__ == "__main__":
    main()
