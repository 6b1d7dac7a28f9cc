"""Orders for a crew, as data that travels to its process, and their execution."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence

import msgspec

from aspen_mp.bench.coexecution.crew import Call, Outcome, Presence, Terms

LEAD_S = 0.003
"""All threads of an act are there before it begins."""


class Loop(msgspec.Struct, tag=True, kw_only=True):
    """Requests to a network one after the other, by each of `threads` clients, from `begin_s` of the act on. `count`: of all clients; None:
    as many as begin before `end_s`."""

    network: int
    count: int | None = None
    threads: int = 1
    begin_s: float = 0.0
    end_s: float | None = None
    priority: str = "normal"


class Arrivals(msgspec.Struct, tag=True, kw_only=True):
    """Requests that come at certain times, whatever becomes of those before them. `calls`: when each is due, in seconds of the act, and its
    network, in their order. `threads`: how many may be under way. `deadlines_ms`: by network, from when a request is due; None: the
    engine knows of none."""

    calls: list[tuple[float, int]]
    threads: int = 1
    priority: str = "normal"
    deadlines_ms: list[float] | None = None


Source = Loop | Arrivals


class Answer(msgspec.Struct, array_like=True):
    """A request. `source`: of those of its act, by number. Seconds from the act's beginning; those of a loop are due when they begin."""

    source: int
    network: int
    due: float
    begun: float
    ended: float
    outcome: int

    @property
    def ms(self) -> float:
        """Milliseconds from the call until it came back."""
        return 1e3 * (self.ended - self.begun)


class Order(msgspec.Struct, kw_only=True):
    """Acts one after the other, in each of which all sources are there at the same time: at least `runs` times, and `seconds` long. `warm`:
    once before that, which does not count."""

    acts: list[list[Source]]
    runs: int = 1
    seconds: float = 0.0
    warm: bool = True


Act = list[Answer]
Run = list[Act]


def play(call: Call, order: Order, presence: Presence = lambda network, there: None) -> list[Run]:
    """Carry out an order. `presence`: told when a client of a network comes and goes."""
    if order.warm:
        _once(call, order, presence)
    runs: list[Run] = []
    end = time.perf_counter() + order.seconds
    while len(runs) < order.runs or time.perf_counter() < end:
        runs.append(_once(call, order, presence))
    return runs


def _once(call: Call, order: Order, presence: Presence) -> Run:
    return [_act(call, sources, presence) for sources in order.acts]


def makespan_ms(run: Run) -> float:
    """From the first call of each act to its last end, all acts together."""
    return 1e3 * sum(max(answer.ended for answer in act) - min(answer.begun for answer in act) for act in run)


class _Stage:
    """An act under way: what its threads share."""

    def __init__(self, call: Call, presence: Presence) -> None:
        self.presence = presence
        self.answers: list[Answer] = []
        self.failed: list[BaseException] = []
        self._call = call
        self._start = time.perf_counter() + LEAD_S

    def now(self) -> float:
        """Seconds of the act."""
        return time.perf_counter() - self._start

    def wait(self, until: float) -> None:
        """Sleep until then, unless it is over."""
        left = until - self.now()
        if left > 0:
            time.sleep(left)

    def ask(self, source: int, network: int, terms: Terms, due: float | None = None) -> None:
        """One request."""
        begun = self.now()
        outcome = self._call(network, terms)
        self.answers.append(Answer(source, network, begun if due is None else due, begun, self.now(), outcome))

    def guarded(self, body: Callable[[], None]) -> None:
        """Keep what a thread fails with, and let the others end."""
        try:
            body()
        except BaseException as error:
            self.failed.append(error)


def _act(call: Call, sources: Sequence[Source], presence: Presence) -> Act:
    stage = _Stage(call, presence)
    threads = []
    for number, source in enumerate(sources):
        body = _looping(stage, number, source) if isinstance(source, Loop) else _arriving(stage, number, source)
        threads += [threading.Thread(target=stage.guarded, args=(body,)) for _ in range(source.threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if stage.failed:
        raise stage.failed[0]
    return sorted(stage.answers, key=lambda answer: answer.ended)


def _looping(stage: _Stage, number: int, source: Loop) -> Callable[[], None]:
    """The life of one client of a loop."""
    turns = itertools.count()
    terms = Terms(source.priority)

    def body() -> None:
        stage.wait(source.begin_s)
        stage.presence(source.network, True)
        try:
            while not stage.failed and (source.count is None or next(turns) < source.count):
                if source.end_s is not None and stage.now() >= source.end_s:
                    return
                stage.ask(number, source.network, terms)
        finally:
            stage.presence(source.network, False)

    return body


def _arriving(stage: _Stage, number: int, source: Arrivals) -> Callable[[], None]:
    """The life of one thread that takes the next request that comes."""
    turns = itertools.count()

    def body() -> None:
        while not stage.failed:
            turn = next(turns)
            if turn >= len(source.calls):
                return
            due, network = source.calls[turn]
            stage.wait(due)
            left = _left_ms(source.deadlines_ms, network, stage.now() - due)
            if left is not None and left <= 0:
                now = stage.now()
                stage.answers.append(Answer(number, network, due, now, now, Outcome.LATE))
                continue
            stage.ask(number, network, Terms(source.priority, left), due)

    return body


def _left_ms(deadlines_ms: Sequence[float] | None, network: int, waited_s: float) -> float | None:
    """The rest of a request's time; None where it has no deadline."""
    return None if deadlines_ms is None else deadlines_ms[network] - 1e3 * waited_s
