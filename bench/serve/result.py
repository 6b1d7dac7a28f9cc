"""The result of `bench serve`."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

SATURATED = 4
"""Clients from which on a server has always a request that waits."""


def percentile(latencies_s: list[float], part: float) -> float:
    """A percentile in milliseconds; 0.0 without any."""
    found = sorted(latencies_s)
    return 1e3 * found[min(len(found) - 1, int(part * len(found)))] if found else 0.0


@dataclass(frozen=True, slots=True)
class Setting:
    """A server under a load. `connections`: requests in flight at most. `rate`: requests a second that begin; None: as fast as answers
    come."""

    engine: str
    transport: str
    connections: int
    rate: float | None = None

    @property
    def load(self) -> str:
        return f"{self.connections} at a time" if self.rate is None else f"{self.rate:g} a second"

    @property
    def is_one_of_ours(self) -> bool:
        """Whether it is one client of ours, which always waits: beside `Model.run`, it shows what the server adds."""
        return self.engine == "aspen-mp" and self.connections == 1 and self.rate is None


@dataclass(slots=True)
class Served:
    """Of one setting. Each list has a value for each round: answers a second, and percentiles of latency in milliseconds. `failed`: of all
    rounds, requests without an answer of status 200; `why`: the first of them. `direct_ms`: the median time of `Model.run` on the server's
    runtime, in slices of time between those of the setting; only where it `is_one_of_ours`."""

    setting: Setting
    per_s: list[float] = field(default_factory=list)
    p50_ms: list[float] = field(default_factory=list)
    p99_ms: list[float] = field(default_factory=list)
    p999_ms: list[float] = field(default_factory=list)
    failed: int = 0
    why: str = ""
    direct_ms: list[float] = field(default_factory=list)


@dataclass(slots=True)
class ServeResult:
    """`input_bytes`: of the tensors of a request. `map_per_s`: results a second of `Model.map` on the server's runtime, one value for each
    round. `pss_bytes`: memory of all processes of a server, by engine."""

    case: str
    cores: list[int]
    front_ends: int
    input_bytes: int
    served: list[Served] = field(default_factory=list)
    pss_bytes: dict[str, int] = field(default_factory=dict)
    map_per_s: list[float] = field(default_factory=list)

    def added_ms(self, served: Served) -> float | None:
        """The time that the server adds to a request: the median latency of one client less that of `Model.run`; the median of rounds."""
        if not served.setting.is_one_of_ours:
            return None
        return median(a - b for a, b in zip(served.p50_ms, served.direct_ms, strict=True))

    def of_map(self, served: Served) -> float | None:
        """Throughput in units of that of `Model.map`: the median of rounds. None where the server is not at work all the time."""
        own = served.setting
        if own.engine != "aspen-mp" or own.connections < SATURATED or own.rate is not None or not self.map_per_s:
            return None
        return median(a / b for a, b in zip(served.per_s, self.map_per_s, strict=True))

    def peers(self, served: Served) -> list[Served]:
        """Other engines under the same load."""
        own = served.setting
        return [
            each
            for each in self.served
            if each.setting.engine != own.engine
            and (each.setting.transport, each.setting.connections, each.setting.rate) == (own.transport, own.connections, own.rate)
        ]

    def best_peer(self, served: Served) -> Served | None:
        """The other engine with the highest throughput under the same load."""
        return max(self.peers(served), key=lambda each: median(each.per_s), default=None)

    def beside(self, served: Served) -> tuple[float, float] | None:
        """Throughput and 99th percentile in units of those of the best peer."""
        best = self.best_peer(served)
        if best is None:
            return None
        return (
            median(a / b for a, b in zip(served.per_s, best.per_s, strict=True)),
            median(a / b for a, b in zip(served.p99_ms, best.p99_ms, strict=True)),
        )

    @property
    def verdict(self) -> str:
        parts = []
        for served in self.served:
            added, beside, best = self.added_ms(served), self.beside(served), self.best_peer(served)
            where = f"{served.setting.transport}, {served.setting.load}"
            if served.setting.engine == "aspen-mp" and added is not None:
                parts.append(f"{where}: the server adds {added:.2f} ms to a request")
            elif served.setting.engine == "aspen-mp" and beside is not None and best is not None:
                parts.append(f"{where}: {beside[0]:.2f} of the throughput of {best.setting.engine}, and {beside[1]:.2f} of its p99")
            if (of_map := self.of_map(served)) is not None:
                parts.append(f"{where}: {of_map:.3f} of the throughput of Model.map")
        return f"{self.case}: " + "; ".join(parts)
