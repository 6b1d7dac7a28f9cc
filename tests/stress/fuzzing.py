"""What the fuzzers share: cases by number, each reproducible alone, tried in child processes that may die, hang or take all memory.

A fuzzer is a function ``case(seed) -> str``: it makes one input from a seed, gives it to the code under test and returns a word for what
became of it ("refused", "right" …). It raises `Finding` where the code was wrong. Everything else that may happen - another exception, a
signal, more than `MOST` of processor time, more memory than `MEMORY` - is a finding too. By hand, one case or many:

    python tests/stress/fuzz.py models 4711          python tests/stress/fuzz.py plans --seconds 60 --first 100000
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
from collections.abc import Callable, Iterable
from contextlib import suppress
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
BATCH = 200


class Finding(AssertionError):
    """The code under test did something that it must not do."""


@dataclass(slots=True)
class Report:
    """`outcomes`: how often each; `findings`: by seed, what was wrong."""

    outcomes: Counter[str] = field(default_factory=Counter)
    findings: dict[int, str] = field(default_factory=dict)

    def __str__(self) -> str:
        said = ", ".join(f"{n} {word}" for word, n in self.outcomes.most_common())
        return f"{sum(self.outcomes.values())} cases: {said}" + "".join(f"\nseed {seed}: {text}" for seed, text in self.findings.items())


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
    tried = struct.unpack_from("<q", at)[0]
    at.close()
    for line in told.decode("utf-8", "replace").split("\0")[:-1]:
        seed, word, text = line.split("\t", 2)
        report.outcomes[word] += 1
        if text:
            report.findings[int(seed)] = text
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        why = "it hangs" if number == signal.SIGALRM else f"it dies of {signal.Signals(number).name}"
        report.outcomes["death"] += 1
        report.findings[seeds[tried]] = why
        return seeds[tried + 1 :]
    if status:
        report.findings[seeds[tried]] = f"it ends its process with status {os.waitstatus_to_exitcode(status)}"
        return seeds[tried + 1 :]
    return []


def _child(case: Callable[[int], str], seeds: list[int], write: int, at: mmap.mmap, until: float) -> None:
    if not INSTRUMENTED:  # else the sanitizer's own memory would count
        with open("/proc/self/statm") as file:
            held = int(file.read().split()[5]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_DATA, (held + MEMORY, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    for k, seed in enumerate(seeds):
        if time.monotonic() > until:
            return
        struct.pack_into("<q", at, 0, k)
        signal.alarm(WATCHDOG_S)
        word, text = attempt(case, seed)
        with suppress(BrokenPipeError):
            os.write(write, f"{seed}\t{word}\t{text}\0".encode("utf-8", "replace"))


def attempt(case: Callable[[int], str], seed: int) -> tuple[str, str]:
    """(outcome, what was wrong or "") of one case, in this process."""
    begun = time.process_time()
    try:
        word = case(seed)
    except Finding as error:
        return "wrong", str(error)
    except BaseException as error:
        where = traceback.extract_tb(error.__traceback__)[-3:]
        places = " < ".join(f"{os.path.basename(f.filename)}:{f.lineno} {f.name}" for f in reversed(where))
        return "exception", f"{type(error).__name__}: {' '.join(str(error).split())[:300]} ({places})"
    spent = time.process_time() - begun
    slow = spent > (PATIENCE if word == "refused" else MOST)
    return ("slow", f"{word} after {spent:.1f} s of processor time") if slow else (word, "")
