"""Requests that are always in flight, from threads of this process and of others, every answer compared bit for bit. Benchmarks load a
runtime with them while they do something to it."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, cast

import numpy as np

import aspen_mp
from aspen_mp.bench import models
from aspen_mp.bench.peers.cases import Case
from aspen_mp.control.wire import python

if TYPE_CHECKING:
    from aspen_mp.client.model import Model

WATCHDOG_S = 60.0
"""A request that takes longer than this is lost."""
LOOK_S = 0.001
"""How often a change's effect is looked for."""

INSTANCES = 4


@dataclass(slots=True)
class Subject:
    """A network under load; `expected`: the bytes of each output when nothing disturbs the runtime."""

    label: str
    model: Model
    feeds: dict[str, Any]
    expected: dict[str, bytes]


@dataclass(slots=True)
class Answer:
    """A request that came back. Times in seconds of CLOCK_MONOTONIC. `wrong`: its bits are not the expected ones; `lost`: why it failed."""

    subject: int
    began: float
    done: float
    wrong: bool = False
    lost: str = ""


def subject(runtime: aspen_mp.Runtime, case: Case, instances: int = INSTANCES) -> Subject:
    """Loads a network of the zoo and runs it once."""
    graph = models.build(case.network, batch=case.batch, seq=case.seq, **case.options)
    feeds = models.inputs(graph, batch=case.batch, seq=case.seq)
    return Subject(case.label, *_first(runtime.load(graph, instances=instances), feeds))


def subjects(runtime: aspen_mp.Runtime, cases: Sequence[Case], say: Callable[[str], None]) -> list[Subject]:
    """Several of them; `say` is told of each."""
    found = []
    for case in cases:
        say(f"loading {case.label}")
        found.append(subject(runtime, case))
    return found


def _first(model: Model, feeds: dict[str, Any]) -> tuple[Model, dict[str, Any], dict[str, bytes]]:
    return model, feeds, {name: np.asarray(value).tobytes() for name, value in model.run(feeds).items()}


class Load:
    """`threads` threads, here and in each of `processes` other client processes, have a request in flight until `stop`; they take the
    subjects in turn. Half of them wait in `run`, half on a future."""

    def __init__(self, subjects: Sequence[Subject], threads: int, processes: int = 0) -> None:
        self.answers: list[Answer] = []
        self.since = time.monotonic()
        self._subjects = subjects
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._drive, args=(i,), name=f"load {i}", daemon=True) for i in range(threads)]
        self._flying: dict[int, Answer] = {}
        self._others = [_Other(subjects, threads) for _ in range(processes)]
        for other in self._others:
            other.hear()  # it is about to begin
        for thread in self._threads:
            thread.start()

    def sleep(self, seconds: float) -> None:
        """Sleeps for `seconds`, or until `stop`."""
        self._ended.wait(seconds)

    def _drive(self, number: int) -> None:
        turn = number
        while not self._ended.is_set():
            index = turn % len(self._subjects)
            it = self._subjects[index]
            answer = self._flying[number] = Answer(index, time.monotonic(), 0.0)
            try:
                future = it.model.submit(it.feeds) if number % 2 else None
                outputs = future.result(WATCHDOG_S) if future else it.model.run(it.feeds, timeout=WATCHDOG_S)
                answer.done = time.monotonic()
                answer.wrong = any(it.expected[name] != value.tobytes() for name, value in outputs.items())
            except Exception as error:
                answer.done = time.monotonic()
                answer.lost = f"{type(error).__name__}: {error}"
            del self._flying[number]
            self.answers.append(answer)
            if answer.lost:
                self.sleep(0.05)  # a runtime that is gone refuses at once
            turn += 1

    def stop(self) -> list[Answer]:
        """Lets what is in flight end; all answers, in the order in which they came. Requests that do not come back are lost."""
        self._ended.set()
        deadline = time.monotonic() + WATCHDOG_S
        for other in self._others:
            other.finish()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, deadline - time.monotonic()))
        answers = self.answers + [Answer(a.subject, a.began, time.monotonic(), lost="never came back") for a in self._flying.values()]
        for other in self._others:
            answers += other.hear() or [Answer(0, 0.0, time.monotonic(), lost="a client process ended")]
            other.close()
        return sorted(answers, key=lambda answer: answer.done)


class _Other:
    """Another client process. Its handles connect when they are first used."""

    def __init__(self, subjects: Sequence[Subject], threads: int) -> None:
        command = python.command("aspen_mp.bench.load", function="client")
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0)
        pickle.dump((list(subjects), threads), self._stdin)
        self._stdin.flush()

    @property
    def _stdin(self) -> IO[bytes]:
        return cast("IO[bytes]", self._process.stdin)

    def hear(self) -> Any:
        """Its next message; None if it has ended."""
        try:
            return pickle.load(cast("IO[bytes]", self._process.stdout))
        except (EOFError, pickle.UnpicklingError):
            return None

    def finish(self) -> None:
        """Its load is to stop; `hear` then gives the answers."""
        self._stdin.close()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        cast("IO[bytes]", self._process.stdout).close()


def client() -> None:
    """The whole life of another client process: its load comes on standard input, which closes when it is to stop."""
    subjects, threads = pickle.load(sys.stdin.buffer)
    for it in subjects:
        it.model.run(it.feeds)
    _say(None)
    load = Load(subjects, threads)
    sys.stdin.buffer.read()
    _say(load.stop())


def _say(what: object) -> None:
    pickle.dump(what, sys.stdout.buffer)
    sys.stdout.buffer.flush()


def resize(runtime: aspen_mp.Runtime, workers: int, wait: Callable[[float], object] = time.sleep) -> float:
    """Seconds until the runtime has so many workers: those that join have executed a tile, those that leave have ended."""
    before = {w["pid"] for w in runtime.workers}
    began = time.monotonic()
    runtime.scale(workers)
    while True:
        now = runtime.workers
        took = time.monotonic() - began
        if len(now) == workers and all(w["pid"] in before or w["tiles"] for w in now):
            return took
        if workers and took > WATCHDOG_S:
            raise TimeoutError(f"{workers} workers were asked for; after {WATCHDOG_S:g} s there are {now}")
        wait(LOOK_S)


@dataclass(frozen=True, slots=True)
class Spread:
    """Of some times: how many, and the middle, the 99th percentile (the next value that occurred) and the largest, in milliseconds."""

    number: int
    p50_ms: float
    p99_ms: float
    worst_ms: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Spread:
        values = sorted(seconds)
        if not values:
            return cls(0, 0.0, 0.0, 0.0)
        p50, p99 = (values[min(len(values) - 1, int(len(values) * share))] for share in (0.5, 0.99))
        return cls(len(values), p50 * 1e3, p99 * 1e3, values[-1] * 1e3)

    def __str__(self) -> str:
        return f"p50 {self.p50_ms:.1f}, p99 {self.p99_ms:.1f}, worst {self.worst_ms:.1f} ms" if self.number else "none"
