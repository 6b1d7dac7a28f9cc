"""Texts of ever new lengths: what does it cost that each is another shape? `aspen-mp bench lengths`.

A stream has texts of random lengths, or the steps of a decoder whose cache is one longer at each. It runs from the first request of a
runtime that has no plan yet. Engines take turns request by request, in alternating order. The next one waits until the last one rests, so
that an engine's work behind its requests takes nothing from the others. That is not part of its times: `Found.behind_s` says what it was.
"""

from __future__ import annotations

import inspect
import statistics
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from aspen_mp.bench import models
from aspen_mp.bench.figures.seats import OURS
from aspen_mp.bench.models.text import TextOptions
from aspen_mp.bench.models.zoo import entry_of, structure
from aspen_mp.bench.peers.cases import Case
from aspen_mp.bench.peers.seat import Seat, SeatError

ENGINES = (OURS, "onnxruntime", "openvino")
"""Those that take any length without being set up for it."""
PROMPT = 10
"""Tokens before the first step of a decoder."""
NEIGHBOURS = 8
"""Requests on each side of one that say how long it should take."""
SLOW = 5.0
"""A request is slow when it takes this many times as long as its neighbours: it waited for a plan."""

Say = Callable[[str, int, int], None]


@dataclass(slots=True)
class Found:
    """Of an engine. `seconds`: of each request; the first of a decoder is its prompt. `tokens`: what a decoder chose at each. `behind_s`:
    CPU time while it was not asked for anything."""

    engine: str
    version: str
    settings: str
    load_s: float
    seconds: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    behind_s: float = 0.0

    @property
    def decodes(self) -> bool:
        return bool(self.tokens)

    @property
    def total_s(self) -> float:
        """Seconds of all requests, but not of a prompt."""
        return sum(self.seconds[self.decodes :])

    @property
    def settled(self) -> list[float]:
        """Milliseconds of the second half of a stream, or of all steps of a decoder."""
        return [1e3 * s for s in self.seconds[1 if self.decodes else len(self.seconds) // 2 :]]

    @property
    def slow(self) -> int:
        """How many requests took far longer than their neighbours."""
        return slow_ones(self.seconds[self.decodes :])

    def document(self) -> dict[str, Any]:
        return {
            "engine": self.engine,
            "version": self.version,
            "settings": self.settings,
            "load_s": self.load_s,
            "total_s": self.total_s,
            "median_ms": statistics.median(self.settled),
            "min_ms": min(self.settled),
            "longest_ms": 1e3 * max(self.seconds[self.decodes :]),
            "slow": self.slow,
            "behind_s": self.behind_s,
            "prompt_ms": 1e3 * self.seconds[0] if self.decodes else None,
            "tokens": self.tokens,
            "requests_ms": [1e3 * s for s in self.seconds],
        }


@dataclass(slots=True)
class LengthsResult:
    """`lengths`: tokens of each request; of a decoder, how many there are after it."""

    case: str
    cores: list[int]
    lengths: list[int]
    found: list[Found] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    absent: list[str] = field(default_factory=list)

    def ratios(self) -> dict[str, tuple[float, float]]:
        """Our time by that of each of the others: of all requests, and of `Found.settled` by medians."""
        ours = next((found for found in self.found if found.engine == OURS), None)
        if ours is None:
            return {}
        median = statistics.median(ours.settled)
        return {f.engine: (ours.total_s / f.total_s, median / statistics.median(f.settled)) for f in self.found if f is not ours}

    @property
    def same_tokens(self) -> int | None:
        """At how many steps of a decoder, its prompt among them, all engines chose the same."""
        if not self.found or not self.found[0].decodes:
            return None
        return sum(len(set(tokens)) == 1 for tokens in zip(*(found.tokens for found in self.found), strict=True))

    @property
    def verdict(self) -> str:
        """The result in one line."""
        if not self.found:
            return f"{self.case}: nothing was measured"
        same = self.same_tokens
        of = "all steps'" if same is not None else "the second half's"
        parts = [f"{f.engine} {f.total_s:.2f} s in all, {f.slow} slow" for f in self.found]
        parts += [f"{OURS} by {name} {total:.3f} in all, {median:.3f} by {of} median" for name, (total, median) in self.ratios().items()]
        if same is not None:
            parts.append(f"the same token at {same} of {len(self.lengths)}")
        return f"{self.case}: {'; '.join(parts)}"


def reads(case: Case) -> bool:
    return entry_of(case.network).options is TextOptions


def decodes(case: Case) -> bool:
    """Whether the network can have a cache."""
    return "cache" in inspect.signature(entry_of(case.network).make).parameters


def slow_ones(seconds: Sequence[float]) -> int:
    """How many took more than `SLOW` times the median of their neighbours'."""
    count = 0
    for k, own in enumerate(seconds):
        others = [*seconds[max(k - NEIGHBOURS, 0) : k], *seconds[k + 1 : k + 1 + NEIGHBOURS]]
        count += bool(others) and own > SLOW * statistics.median(others)
    return count


def stream(
    case: Case, engines: Sequence[str], cores: Sequence[int], requests: int, least: int, most: int, seed: int, say: Say
) -> LengthsResult:
    """`requests` texts of `least` to `most` tokens, uniformly at random; `case.seq` says nothing."""
    lengths = [int(n) for n in np.random.default_rng(seed).integers(least, most, requests, endpoint=True)]
    result = LengthsResult(f"{label(case)}, {least} to {most} tokens", list(cores), lengths)
    signature, model = structure(case.network, symbolic=True, **case.options), models.build(case.network, symbolic=True, **case.options)
    with Turns(model, engines, result, say) as turns:
        for k, length in enumerate(lengths):
            feeds = models.inputs(signature, seed=seed + k, batch=case.batch, seq=length)
            np.savez(turns.feeds, allow_pickle=False, **feeds)
            say(f"{result.case}: request", k, requests)
            turns.take(lambda seat: (seat.once(turns.feeds), None))
    return result


def decode(case: Case, engines: Sequence[str], cores: Sequence[int], steps: int, seed: int, say: Say) -> LengthsResult:
    """A prompt and `steps` tokens after it, each engine with what it chose itself and its own cache."""
    name = f"{label(case)}, {steps} steps"
    case = Case(case.network, 1, case.seq, {**case.options, "cache": True})
    signature = structure(case.network, symbolic=True, **case.options)
    feeds = models.inputs(signature, seed=seed, seq=PROMPT)
    feeds["attention_mask"][...] = 1
    result = LengthsResult(name, list(cores), [PROMPT + k for k in range(steps + 1)])
    with Turns(models.build(case.network, symbolic=True, **case.options), engines, result, say) as turns:
        np.savez(turns.feeds, allow_pickle=False, **feeds)
        for k in range(steps + 1):
            say(f"{result.case}: step", k, steps + 1)
            prompt = None if k else turns.feeds
            turns.take(lambda seat: seat.step(prompt))  # noqa: B023
    return result


def label(case: Case) -> str:
    options = [f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in case.options.items()]
    sizes = [*([f"batch={case.batch}"] if case.batch != 1 else []), *options]
    return f"{case.network}@{','.join(sizes)}" if sizes else case.network


class Turns:
    """Engines that have loaded a network of unknown shapes, in processes of their own, and their files, as a context manager. Their
    results go to `result`; one that fails leaves."""

    def __init__(self, model: onnx.ModelProto, engines: Sequence[str], result: LengthsResult, say: Say) -> None:
        self._model, self._engines, self._result, self._say = model, engines, result, say
        self._stack = ExitStack()
        self._seats: list[tuple[Seat, Found]] = []
        self._rested: dict[str, float] = {}
        self._turned = False

    def __enter__(self) -> Turns:
        with ExitStack() as stack:
            here = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="aspen-mp-lengths-")))
            self.feeds = here / "feeds.npz"
            onnx.save(self._model, here / "model.onnx")
            for engine in self._engines:
                self._say(f"{self._result.case}: loading {engine}", 0, 0)
                own: dict[str, dict[str, Any]] = {OURS: {"cache": str(here / "plans")}, "onnxruntime": {"spinning": False}}
                try:
                    seat = Seat.start(engine, here / "model.onnx", None, None, self._result.cores, own.get(engine))
                except SeatError as error:
                    self._result.failed[engine] = str(error)
                    continue
                stack.callback(seat.close)
                found = Found(engine, seat.info["version"], seat.info["settings"], seat.info["load_s"])
                self._seats.append((seat, found))
                self._rested[engine] = seat.cpu_seconds()
            self._stack = stack.pop_all()
        return self

    def take(self, ask: Callable[[Seat], tuple[float, int | None]]) -> None:
        """One request to each, in the order opposite to the last."""
        self._turned = not self._turned
        for seat, found in list(self._seats if self._turned else reversed(self._seats)):
            try:
                found.behind_s += max(0.0, seat.cpu_seconds() - self._rested[seat.engine])
                seconds, token = ask(seat)
            except SeatError as error:
                self._result.failed[seat.engine] = str(error)
                self._seats.remove((seat, found))
                continue
            self._rested[seat.engine] = seat.cpu_seconds()
            seat.rest()
            found.seconds.append(seconds)
            if token is not None:
                found.tokens.append(token)

    def __exit__(self, *_: object) -> None:
        self._result.found = [found for _, found in self._seats if found.seconds]
        self._stack.close()


def plot(results: Sequence[LengthsResult], file: Path) -> None:
    """Time of each request by its place in the stream, as a PNG."""
    from aspen_mp.bench.figures.picture import colour, pyplot, save

    plt = pyplot()
    figure, panes = plt.subplots(1, len(results), figsize=(2 + 6 * len(results), 4), layout="constrained", squeeze=False)
    for axes, result in zip(panes[0], results, strict=True):
        for found in result.found:
            axes.semilogy([1e3 * s for s in found.seconds], ".", label=found.engine, color=colour(found.engine), markersize=4)
        axes.set(title=result.case, xlabel="request", ylabel="ms")
        axes.legend(loc="upper right")
    save(figure, file)
