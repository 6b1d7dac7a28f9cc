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

from .engines import ENGINES

QUIET_S = 0.005  # an engine rests when it used no CPU time for so long
REST_LIMIT_S = 2.0
CLOSE_S = 30.0


class SeatError(Exception):
    """The engine could not load or run the model; the message says which and why."""


@dataclass(slots=True)
class Turn:
    """Seconds of each run of one turn, how busy the cores were with anything else meanwhile (in cores), and by how much the engine's own
    counters rose in these runs."""

    seconds: list[float]
    foreign: float = 0.0
    counters: dict[str, float] = field(default_factory=dict)


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
        feeds: Path,
        outputs: Path,
        cores: list[int],
        options: Mapping[str, Any] | None = None,
        label: str = "",
    ) -> Seat:
        """Starts the process and waits until the model ran once; `outputs` is the .npz file it writes. `options`: for the engine's
        loader."""
        request_read, request_write = os.pipe()
        reply_read, reply_write = os.pipe()
        command = [sys.executable, "-m", __spec__.name if __spec__ else __name__, engine, str(model), str(feeds), str(outputs)]
        command += [",".join(map(str, cores)), str(request_read), str(reply_write), json.dumps(dict(options or {}))]
        try:
            process = subprocess.Popen(command, pass_fds=(request_read, reply_write), stdin=subprocess.DEVNULL)
        finally:
            os.close(request_read)
            os.close(reply_write)
        seat = cls(engine, label or engine, cores, process, os.fdopen(request_write, "w"), os.fdopen(reply_read))
        try:
            seat.info = seat._reply()
        except BaseException:
            seat.close()
            raise
        seat.rest()
        return seat

    def turn(self, seconds: float, runs: int, beside: Callable[[], float] = float) -> Turn:
        """Runs the model once to warm up, then at least `runs` times and `seconds` long. `beside`: CPU time so far of what runs beside it
        on purpose."""
        busy, own = busy_seconds(self.cores), self.cpu_seconds() + beside()
        begin = time.perf_counter()
        self.requests.write(json.dumps({"seconds": seconds, "runs": runs}) + "\n")
        self.requests.flush()
        reply = self._reply()
        wall = time.perf_counter() - begin
        foreign = (busy_seconds(self.cores) - busy) - (self.cpu_seconds() + beside() - own)
        self.rest()
        return Turn(reply["times"], max(0.0, foreign) / wall, reply["counters"])

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
        """CPU time of the engine's processes so far; `precise`: in nanoseconds per thread where the kernel has it, else in clock ticks."""
        total = 0.0
        for process in self._family():
            try:
                if precise:
                    total += thread_seconds(process.pid)
                else:
                    times = process.cpu_times()
                    total += times.user + times.system
            except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
                continue
        return total

    def _family(self) -> list[psutil.Process]:
        try:
            root = psutil.Process(self.process.pid)
            return [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

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


def child(
    engine: str, model: str, feeds: str, outputs: str, cores: list[int], options: Mapping[str, Any], requests: IO[str], replies: IO[str]
) -> None:
    """What the engine's process does until the request pipe closes."""

    def reply(**message: Any) -> None:
        replies.write(json.dumps(message) + "\n")
        replies.flush()

    try:
        os.sched_setaffinity(0, cores)
        with np.load(feeds) as archive:
            arrays = {name: archive[name] for name in archive.files}
        begin = time.perf_counter()
        loaded = ENGINES[engine].load(model, arrays, cores, **options)
        load = time.perf_counter() - begin
    except Exception as error:
        reply(error=f"{type(error).__name__}: {error}")
        return
    try:
        begin = time.perf_counter()
        results = loaded.run()
        first = time.perf_counter() - begin
        np.savez(outputs, *results)
        reply(settings=loaded.settings, load_s=load, first_s=first, version=ENGINES[engine].version)
        for line in requests:
            order = json.loads(line)
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
