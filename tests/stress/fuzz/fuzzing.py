"""What the fuzzers share: cases by number, each reproducible alone, tried in child processes that may die, hang or take all memory.

A fuzzer is a function ``case(seed) -> str``: it makes one input from a seed, gives it to the code under test and returns a word for what
became of it ("refused", "right" …). It raises `Finding` where the code was wrong. Everything else that may happen - another exception, a
signal, a hang, more memory than `MEMORY` - is a finding too. A case that takes more than `PATIENCE` or `MOST` is reported as slow, with its
seed, and is no finding: how long a case takes depends on the machine. By hand, one case or many:

    python tests/stress/fuzz/fuzz.py models 4711          python tests/stress/fuzz/fuzz.py plans --seconds 60 --first 100000

What is not ours (onnx's C++ library, its reference) runs inside `others`. Its processor time is not held against us, and a case that dies
or hangs there has an outcome of its own and is no finding: unless our code might have damaged the memory that it died of. So a death counts
as the others' only where the case is the first of its process, and before `touched` was called; a case that dies behind others is tried
again alone.
"""

from __future__ import annotations

import mmap
import os
import resource
import signal
import struct
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import numpy as np

INSTRUMENTED = "libasan" in os.environ.get("LD_PRELOAD", "")
PATIENCE = 10.0 if INSTRUMENTED else 1.0
"""Seconds of processor time in which an input is to be refused, or accepted."""
MOST = 20 * PATIENCE
"""The same for a whole case: what was accepted may be large, and the reference is slow."""
MEMORY = 4 << 30
"""Bytes a child may take beyond what it begins with."""
WATCHDOG_S = 60
OTHERS_S = 20
"""The same for what is not ours; what takes longer is not waited for."""
OTHERS = ("onnx", "onnx.reference")
BATCH = 200
_STATE = struct.Struct("<qqqd")
"""What outlives a child: number of the case in its batch, 1 + number of the part of `OTHERS` that runs or 0, whether our native code has
run in this process, seconds of processor time that the case had taken of its own when that part began."""


class Finding(AssertionError):
    """The code under test did something that it must not do."""


@dataclass(slots=True)
class Report:
    """`outcomes`: how often each; `findings`: by seed, what was wrong; `seeds`: those of outcomes that somebody may want to look at."""

    outcomes: Counter[str] = field(default_factory=Counter)
    findings: dict[int, str] = field(default_factory=dict)
    seeds: dict[str, list[int]] = field(default_factory=dict)

    def note(self, word: str, seed: int) -> None:
        self.outcomes[word] += 1
        self.seeds.setdefault(word, []).append(seed)

    def __str__(self) -> str:
        said = ", ".join(
            f"{n} {word}" + (f" ({', '.join(map(str, self.seeds[word]))})" if word in self.seeds else "")
            for word, n in self.outcomes.most_common()
        )
        return f"{sum(self.outcomes.values())} cases: {said}" + "".join(f"\nseed {seed}: {text}" for seed, text in self.findings.items())


@dataclass(slots=True)
class _Clock:
    """Whose code a case is running, and for how long. `at`: where that is written down, in a child."""

    at: mmap.mmap | None = None
    case: int = 0
    part: int = 0
    touched: bool = False
    begun: float = 0.0
    spent: Counter[str] = field(default_factory=Counter)

    def start(self, case: int) -> None:
        self.case, self.part, self.begun = case, 0, time.process_time()
        self.spent.clear()
        self.write()

    def ours(self) -> float:
        return time.process_time() - self.begun - sum(self.spent.values())

    def write(self) -> None:
        if self.at is not None:
            _STATE.pack_into(self.at, 0, self.case, self.part, self.touched, self.ours())


_clock = _Clock()


def ours() -> float:
    """Seconds of processor time that the case has taken so far, without those of `others`."""
    return _clock.ours()


def touched() -> None:
    """From here on our native code may have damaged this process's memory: whatever it dies of is a finding."""
    _clock.touched = True
    _clock.write()


@contextmanager
def others(name: str) -> Iterator[None]:
    """What runs inside is not ours, but one of `OTHERS`."""
    if _clock.part:
        yield
        return
    begun = time.process_time()
    _clock.part = 1 + OTHERS.index(name)
    _clock.write()
    _patience(OTHERS_S)
    try:
        yield
    finally:
        _clock.part = 0
        _clock.spent[name] += time.process_time() - begun
        _clock.write()
        _patience(WATCHDOG_S)


def _patience(seconds: int) -> None:
    """The alarm that ends a child; by hand there is none."""
    if _clock.at is not None:
        signal.alarm(seconds)


def numbers(rng: np.random.Generator) -> int:
    """An integer that somebody has not thought of."""
    edges = (0, 1, -1, 2, 3, 7, 31, 32, 33, 63, 64, 127, 128, 255, 256, 1 << 15, 1 << 16, (1 << 31) - 1, 1 << 31, -(1 << 31), (1 << 32) - 1)
    kind = rng.random()
    if kind < 0.6:
        return int(rng.choice(edges))
    if kind < 0.8:
        return int(rng.integers(-10, 10))
    return int(rng.choice([1 << 32, 1 << 40, 1 << 53, 1 << 62, (1 << 63) - 1, -(1 << 63), -(1 << 62)]))


def explore(case: Callable[[int], str], seeds: Iterable[int], seconds: float = 1e9) -> Report:
    """Tries cases until the seeds or the time are used up."""
    report = Report()
    until = time.monotonic() + seconds
    todo = iter(seeds)
    while time.monotonic() < until:
        batch = [seed for seed, _ in zip(todo, range(BATCH), strict=False)]
        if not batch:
            break
        while batch:
            batch = _batch(case, batch, report, until)
    return report


def _batch(case: Callable[[int], str], seeds: list[int], report: Report, until: float) -> list[int]:
    """Tries cases in one child. Returns those that have not been tried, because an earlier one ended it."""
    sys.stdout.flush()
    sys.stderr.flush()
    read, write = os.pipe()
    at = mmap.mmap(-1, 4096)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(read)
            _child(case, seeds, write, at, until)
            code = 0
        finally:
            os._exit(code)
    os.close(write)
    told = b""
    with os.fdopen(read, "rb") as pipe:
        while piece := pipe.read(1 << 16):
            told += piece
    _, status = os.waitpid(pid, 0)
    tried, part, spoilt, own = _STATE.unpack_from(at)
    at.close()
    for line in told.decode("utf-8", "replace").split("\0")[:-1]:
        seed, word, text = line.split("\t", 2)
        if word == "slow" or word.startswith(OTHERS):
            report.note(word, int(seed))
        else:
            report.outcomes[word] += 1
        if text:
            report.findings[int(seed)] = text
    if not status:
        return []
    if os.WIFSIGNALED(status):
        _died(case, seeds[: tried + 1], os.WTERMSIG(status), OTHERS[part - 1] if part else "", bool(spoilt), own, report)
    else:
        report.findings[seeds[tried]] = f"it ends its process with status {os.waitstatus_to_exitcode(status)}"
    return seeds[tried + 1 :]


def _died(case: Callable[[int], str], seeds: list[int], number: int, name: str, spoilt: bool, own: float, report: Report) -> None:
    """The last of these cases, tried in one process, has ended it with a signal, in our own code or in that of `name`."""
    seed, hangs = seeds[-1], number == signal.SIGALRM
    why = "it hangs" if hangs else f"it dies of {signal.Signals(number).name}"
    if name and hangs and own <= MOST:
        report.note(f"{name} hangs", seed)
    elif name and not hangs and len(seeds) > 1:
        found = explore(case, [seed])
        report.outcomes += found.outcomes
        report.findings |= found.findings
        for word in found.seeds:
            report.seeds.setdefault(word, []).append(seed)
        if not found.findings and f"{name} dies" not in found.outcomes:
            report.findings[seed] = f"{why} in {name}, behind others that begin with {seeds[0]}, but not alone"
    elif name and not hangs and not spoilt:
        report.note(f"{name} dies", seed)
    else:
        report.outcomes["death"] += 1
        report.findings[seed] = why + (f" in {name}, after {own:.1f} s of our own" if name else "")


def _child(case: Callable[[int], str], seeds: list[int], write: int, at: mmap.mmap, until: float) -> None:
    if not INSTRUMENTED:  # else the sanitizer's own memory would count
        with open("/proc/self/statm") as file:
            held = int(file.read().split()[5]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_DATA, (held + MEMORY, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    _clock.at, _clock.touched = at, False
    for k, seed in enumerate(seeds):
        if time.monotonic() > until:
            return
        signal.alarm(WATCHDOG_S)
        word, text = attempt(case, seed, k)
        with suppress(BrokenPipeError):
            os.write(write, f"{seed}\t{word}\t{text}\0".encode("utf-8", "replace"))


def attempt(case: Callable[[int], str], seed: int, number: int = 0) -> tuple[str, str]:
    """(outcome, what was wrong or "") of one case, in this process. `number`: its place in the batch."""
    _clock.start(number)
    try:
        word = case(seed)
    except Finding as error:
        return "wrong", str(error)
    except BaseException as error:
        where = traceback.extract_tb(error.__traceback__)[-3:]
        places = " < ".join(f"{os.path.basename(f.filename)}:{f.lineno} {f.name}" for f in reversed(where))
        return "exception", f"{type(error).__name__}: {' '.join(str(error).split())[:300]} ({places})"
    most = PATIENCE if word == "refused" else MOST
    if (spent := ours()) > most:
        print(f"seed {seed}: {word} after {spent:.1f} s of processor time", file=sys.stderr)
        return "slow", ""
    slow = next((name for name, seconds in _clock.spent.items() if seconds > most), None)
    return (f"{slow} slow" if slow else word, "")
