"""The cores that a plan is made for, whether they are at hand or not: how many, how fast, what they share.

A machine is written as a sum of groups: ``64``, ``8P+8E``, ``2@1.0+2@0.5``, ``4P+8E@0.6``. A group is a count, a letter for a class of
core, and a speed behind @ unless it is the class's. Classes are P (performance), E (efficiency) and L (low-power). Speeds are relative to
the calibrated core. Sums with / between them are NUMA nodes, each with a last-level cache of its own: ``32/32``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from itertools import groupby
from typing import Final

import numpy as np
import numpy.typing as npt

from aspen_mp.planner.cost.rates import BUILT_IN, Rates

SPEEDS: Final[Mapping[str, float]] = {"P": 1.0, "E": 0.5, "L": 0.35}
"""Speeds of a class beside a performance core's in fp32 kernels: an efficiency core has half the vector units and about the clock. A
profile, or a speed behind @, says otherwise."""
CLASS_GAP: Final = 0.88
"""Cores belong to one class when each is nearly as fast as the next faster one."""
MOST_CORES: Final = 1024
CORE_SHARE: Final = 5.0
"""Memory bandwidth a core, GB/s, that is assumed for machines with more cores than the calibrated one: that of servers."""

_GROUP = re.compile(r"(\d+)([PEL]?)(?:@(\d+(?:\.\d+)?|\.\d+))?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Core:
    """`speed`: of kernels and scheduling, 1.0 is the calibrated core. `class_`: 0 the fastest class. Thieves go first to cores of their own
    NUMA `node`, class and last-level `cache`, then to the rest of their node, then to all others. Among equals the next rows come first."""

    speed: float = 1.0
    class_: int = 0
    cache: int = 0
    node: int = 0


@dataclass(frozen=True, slots=True)
class Engine:
    """Times of the scheduling engine, in ns on a core of speed 1. `tile`: a tile with a kernel. `join`: one without. `push`, `pushed`: a
    batch of pushed tiles and each of them. `steal`: stealing. `look`: until a core that looks for work sees some. `wake`: until one that
    sleeps does. `spin`: how long it looks in vain before it sleeps. `claim`, `claimed`: starting a request, and each of its tiles.
    `submit`: from a client's call to where a worker can see the request; `end`: from the last tile until the client has its result;
    `copied`: a byte of inputs on the way there, of outputs on the way back."""

    tile: float = 200.0
    join: float = 80.0
    push: float = 40.0
    pushed: float = 10.0
    steal: float = 150.0
    look: float = 250.0
    wake: float = 30_000.0
    spin: float = 100_000.0
    claim: float = 1500.0
    claimed: float = 0.3
    submit: float = 10_000.0
    end: float = 50_000.0
    copied: float = 0.06


@dataclass(frozen=True, slots=True)
class Machine:
    """`cores` in the order of workers. `bytes_per_ns`: the rate of all of them together to and from memory behind the caches. The rate of
    one core is in the tiles' own times. At least one core."""

    cores: tuple[Core, ...]
    bytes_per_ns: float = math.inf
    engine: Engine = field(default_factory=Engine)

    def __post_init__(self) -> None:
        if not 1 <= len(self.cores) <= MOST_CORES:
            raise ValueError(f"{len(self.cores)} cores: plans are for 1 to {MOST_CORES}")
        if not all(0.001 <= core.speed <= 1000 for core in self.cores) or not self.bytes_per_ns > 0:
            raise ValueError("speeds must be from 0.001 to 1000, and the bandwidth above 0")

    @classmethod
    def uniform(cls, n: int, rates: Rates = BUILT_IN) -> Machine:
        """`n` cores like the calibrated one."""
        return cls.of([Core()] * n, rates)

    @classmethod
    def of(cls, cores: Sequence[Core], rates: Rates = BUILT_IN) -> Machine:
        """These cores, with the calibrated machine's memory; more cores than those that share it there have more of it."""
        return cls(tuple(cores), max(rates.together, CORE_SHARE * len(cores)))

    @classmethod
    def of_speeds(cls, speeds: Sequence[float], rates: Rates = BUILT_IN) -> Machine:
        """Cores of these speeds, in this order, that share a cache."""
        classes = speed_classes(speeds)
        return cls.of([Core(speed, classes[speed]) for speed in speeds], rates)

    @classmethod
    def parse(cls, text: str, rates: Rates = BUILT_IN, speeds: Mapping[str, float] = SPEEDS) -> Machine:
        """``64``, ``8P+8E``, ``2@1.0+2@0.5``, ``32/32``. `speeds`: of the letters P, E and L. ValueError says why.

        Classes follow from the speeds: cores that are nearly as fast as each other are of one class.
        """
        found: list[float] = []
        nodes: list[int] = []
        for node, group in enumerate(text.replace(" ", "").split("/")):
            for part in group.split("+"):
                match = _GROUP.fullmatch(part)
                if match is None:
                    raise ValueError(f"{text!r}: {part!r} is not a group of cores. Write it like 64, 8P+8E, 2@1.0+2@0.5 or 32/32")
                count, letter, speed = match.groups()
                if not 1 <= len(found) + int(count) <= MOST_CORES or count == "0":
                    raise ValueError(f"{text!r}: plans are for 1 to {MOST_CORES} cores")
                found += [float(speed) if speed else speeds[letter.upper() or "P"]] * int(count)
                nodes += [node] * int(count)
        if not all(0.001 <= speed <= 1000 for speed in found):
            raise ValueError(f"{text!r}: speeds must be from 0.001 to 1000")
        classes = speed_classes(found)
        return cls.of([Core(speed, classes[speed], node, node) for speed, node in zip(found, nodes, strict=True)], rates)

    def __len__(self) -> int:
        return len(self.cores)

    @property
    def power(self) -> float:
        """The sum of the speeds: how many calibrated cores it amounts to."""
        return sum(core.speed for core in self.cores)

    def fastest(self) -> Machine:
        """The fastest core alone."""
        return Machine((max(self.cores, key=lambda core: core.speed),), self.bytes_per_ns, self.engine)

    def memory_cores(self, cold: float) -> int:
        """How many cores that each move `cold` bytes per ns take all that one memory gives; 0: any number may. Memories are alike."""
        if math.isinf(self.bytes_per_ns):
            return 0
        return max(1, round(self.bytes_per_ns / len({core.node for core in self.cores}) / cold))

    def describe(self) -> str:
        """As `parse` reads it, speeds to three digits."""
        nodes = [list(cores) for _, cores in groupby(self.cores, key=lambda core: core.node)]
        return "/".join(_described([core.speed for core in cores]) for cores in nodes)

    def victims(self) -> npt.NDArray[np.uint16]:
        """[cores, cores - 1]: the other rows in the order in which each core steals from them, as `aspen_distance` sorts them."""
        n = len(self.cores)
        here = np.arange(n)
        class_, cache, node = (np.array([getattr(core, name) for core in self.cores]) for name in ("class_", "cache", "node"))

        def same(x: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
            return np.equal.outer(x, x)

        far = np.where(same(node), np.where(same(cache) & same(class_), 0, 1), 2) * n + (here[None, :] - here[:, None]) % n
        far[here, here] = -1
        return np.ascontiguousarray(np.argsort(far, axis=1, kind="stable")[:, 1:].astype(np.uint16))

    def timings(self, input_bytes: float = 0.0, output_bytes: float = 0.0) -> tuple[float, ...]:
        """Those of the engine for requests of such inputs and outputs, in the order of simulate.h."""
        *rest, submit, end, copied = astuple(self.engine)
        return (*rest, submit + copied * input_bytes, end + copied * output_bytes)


def _described(speeds: Sequence[float]) -> str:
    """The text of one node's cores."""
    groups = [(len(list(alike)), speed) for speed, alike in groupby(speeds)]
    if len(groups) == 1 and groups[0][1] == 1:
        return str(len(speeds))
    return "+".join(f"{n}@{_digits(speed)}" for n, speed in groups)


def _digits(speed: float) -> str:
    """Three of them where they are needed, never with an exponent: 0.0125, 0.5, 2.25, 1000."""
    return f"{speed:.{max(2 - math.floor(math.log10(speed)), 0)}f}".rstrip("0").rstrip(".") if speed < 100 else f"{speed:.0f}"


def speed_classes(speeds: Sequence[float]) -> dict[float, int]:
    """The class of each speed: 0 for the fastest, the next where a speed is well below the one before."""
    classes: dict[float, int] = {}
    before, class_ = 0.0, 0
    for speed in sorted(set(speeds), reverse=True):
        class_ += bool(classes) and speed < CLASS_GAP * before
        classes[speed] = class_
        before = speed
    return classes
