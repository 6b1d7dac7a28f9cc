"""The result of `aspen-mp bench torch`. Reading it needs no PyTorch."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field

from aspen_mp.bench.peers.rounds import OURS


@dataclass(slots=True)
class EngineResult:
    """A network on one engine.

    `cold_s`: from the module to the first result, in a process that has imported PyTorch, with empty caches. `warm_s`: the same in a second
    process, with the caches that the first has left. `median`: milliseconds of a call, median over rounds; `min`: of the fastest call;
    `rounds_ms`: the median of each round. `ratio`: our time by this engine's, median of the rounds. `cosine`, `error`: beside float64, see
    `Verdict`; `eager_error`: of PyTorch's own result; `wrong`: what is wrong with the result, empty where it is right. `memory`: bytes of
    all processes that take part, by the number of processes that hold the network. `floor`: of as many with a small network of the same
    kind, which PyTorch has traced and runs itself: its libraries and Python objects. `calls_per_s`: of all processes together, one value
    for each round.
    """

    engine: str
    version: str
    settings: str
    cold_s: float
    warm_s: float
    median: float
    min: float
    rounds_ms: list[float]
    ratio: float | None = None
    cosine: float = 0.0
    error: float = 0.0
    eager_error: float = 0.0
    wrong: str = ""
    memory: dict[int, int] = field(default_factory=dict)
    floor: dict[int, int] = field(default_factory=dict)
    calls_per_s: dict[int, list[float]] = field(default_factory=dict)

    @property
    def together(self) -> str:
        """The memory and calls of the most processes in units of one process's: memory, memory above the floor, calls a second. Empty
        without them."""
        if len(self.memory) < 2 or self.memory.keys() != self.floor.keys():
            return ""
        least, most = min(self.memory), max(self.memory)
        above = {count: self.memory[count] - self.floor[count] for count in (least, most)}
        calls = statistics.median(b / a for a, b in zip(self.calls_per_s[least], self.calls_per_s[most], strict=True))
        memory = f"{self.memory[most] / self.memory[least]:.2f} of the memory"
        if above[least] > 0:
            memory += f", {above[most] / above[least]:.2f} of what lies above PyTorch's own"
        return f"{most} processes have {memory}, and {calls:.3f} of the calls a second of {least}"


@dataclass(slots=True)
class NetworkResult:
    """A network. `size`: `small` or `full`; `parameters`: how many numbers its weights are. `rounds`: that count; `rejected`: that do not;
    `disturbed`: that count although other processes ran. `failed`: why an engine is missing, by its name."""

    network: str
    family: str
    size: str
    parameters: int
    cores: list[int]
    rounds: int
    rejected: int
    disturbed: int
    engines: list[EngineResult]
    failed: dict[str, str]

    def of(self, engine: str) -> EngineResult | None:
        """Return an engine's result, None where it has none."""
        return next((result for result in self.engines if result.engine == engine), None)


@dataclass(slots=True)
class TorchResult:
    """All networks. `absent`: engines that are not installed; `missing`: networks whose package is not installed."""

    networks: list[NetworkResult] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    @property
    def engines(self) -> list[str]:
        """The engines that have results, ours first."""
        names = dict.fromkeys(result.engine for network in self.networks for result in network.engines)
        return sorted(names, key=lambda name: name != OURS)

    def ratios(self, engine: str) -> list[float]:
        """Return our time by an engine's, of each network that both have run right."""
        return [
            result.ratio
            for network in self.networks
            if (own := network.of(OURS)) is not None and not own.wrong
            if (result := network.of(engine)) is not None and not result.wrong and result.ratio is not None
        ]

    @property
    def verdict(self) -> str:
        """One sentence for each other engine, and what is wrong."""
        parts = []
        for engine in self.engines:
            ratios = self.ratios(engine)
            if engine == OURS or not ratios:
                continue
            slower = sum(ratio > 1 for ratio in ratios)
            parts.append(f"{geometric_mean(ratios):.3f} of {engine}'s time over {len(ratios)} networks, slower on {slower}")
        wrong = [network.network for network in self.networks if (own := network.of(OURS)) is not None and own.wrong]
        parts += [f"wrong: {', '.join(wrong)}"] if wrong else []
        return f"{OURS}: " + ("; ".join(parts) or "nothing to compare")


def geometric_mean(values: Iterable[float]) -> float:
    """Return the geometric mean of numbers above zero."""
    logarithms = [math.log(value) for value in values]
    return math.exp(sum(logarithms) / len(logarithms))
