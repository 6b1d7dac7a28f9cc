"""A process that holds an engine, and the parent's handle on it. Messages are JSON lines over two pipes of their own, so that an engine may
print what it likes."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, TypeVar

import psutil

from aspen_mp.control.wire import python

QUIET_S = 0.005  # an engine rests when it used no CPU time for this long
REST_LIMIT_S = 2.0
CLOSE_S = 30.0

Process = TypeVar("Process", bound="EngineProcess")


class SeatError(Exception):
    """The engine could not load or run the model; the message says which and why."""


@dataclass(slots=True)
class EngineProcess:
    """Parent's handle. `label`: what it is called among others of the same engine. `info`: what the process said when it had loaded."""

    engine: str
    label: str
    cores: list[int]
    process: subprocess.Popen[bytes]
    requests: IO[str]
    replies: IO[str]
    info: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def launch(cls: type[Process], module: str, engine: str, label: str, cores: list[int], arguments: Sequence[str]) -> Process:
        """Start a process that calls `main` of the module, and wait until it has said that it is ready. Its last two arguments are the
        numbers of its pipes, for requests and for replies."""
        request_read, request_write = os.pipe()
        reply_read, reply_write = os.pipe()
        command = python.command(module, *arguments, str(request_read), str(reply_write))
        try:
            # A group of its own: Ctrl-C is for us, and engines would print tracebacks.
            process = subprocess.Popen(command, pass_fds=(request_read, reply_write), stdin=subprocess.DEVNULL, process_group=0)
        finally:
            os.close(request_read)
            os.close(reply_write)
        seat = cls(engine, label, cores, process, os.fdopen(request_write, "w"), os.fdopen(reply_read))
        try:
            seat.info = seat.reply()
        except BaseException as error:
            if not isinstance(error, SeatError):
                process.kill()  # it may load for long
            seat.close()
            raise
        seat.rest()
        return seat

    def watched(self, beside: Callable[[], float] = float, **order: Any) -> tuple[dict[str, Any], float]:
        """Give an order and wait. Return the reply, and how busy the cores were with anything else meanwhile, in cores. `beside`: CPU time
        so far of what runs beside it on purpose."""
        busy, own = busy_seconds(self.cores), self.cpu_seconds() + beside()
        begin = time.perf_counter()
        self.ask(**order)
        reply = self.reply()
        wall = time.perf_counter() - begin
        foreign = (busy_seconds(self.cores) - busy) - (self.cpu_seconds() + beside() - own)
        self.rest()
        return reply, max(0.0, foreign) / wall

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
        """CPU time of the engine's processes so far, and of those that have ended. `precise`: only of those that are there, in nanoseconds
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

    def ask(self, **order: Any) -> None:
        """Give an order."""
        self.requests.write(json.dumps(order) + "\n")
        self.requests.flush()

    def reply(self) -> dict[str, Any]:
        """The next message of the process. SeatError where it has failed or ended."""
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
