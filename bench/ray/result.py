"""The result of `bench ray`."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median


@dataclass(slots=True)
class ActorsFound:
    """Of one engine with so many actors. `per_s`: rows a second, one value for each round. `cpu_ms_per_row`: CPU time of the actors and of
    the runtime for each row, in milliseconds, which other load on the machine hardly changes. `pss_bytes`: their memory.
    `weights_pss_bytes`: of the mappings of packed weights in them; 0 for engines that have no such mappings."""

    engine: str
    actors: int
    per_s: list[float] = field(default_factory=list)
    cpu_ms_per_row: list[float] = field(default_factory=list)
    pss_bytes: int = 0
    weights_pss_bytes: int = 0


@dataclass(slots=True)
class RayResult:
    """`rows`: of a batch. `direct_per_s`: rows a second of a client without Ray on the same runtime, one value for each round."""

    case: str
    cores: list[int]
    rows: int
    direct_per_s: list[float] = field(default_factory=list)
    found: list[ActorsFound] = field(default_factory=list)

    def ratio(self, found: ActorsFound) -> float:
        """Rows a second in units of the direct client's; the median of rounds in which both were measured."""
        return median(a / b for a, b in zip(found.per_s, self.direct_per_s, strict=True))

    def of(self, engine: str) -> list[ActorsFound]:
        """Those of an engine, by number of actors."""
        return sorted((found for found in self.found if found.engine == engine), key=lambda found: found.actors)

    @property
    def verdict(self) -> str:
        parts = []
        for engine in dict.fromkeys(found.engine for found in self.found):
            one, *_, most = [*self.of(engine), *self.of(engine)[-1:]]
            rates = f"{self.ratio(one):.3f} to {self.ratio(most):.3f} of the direct client's rows a second"
            memory = f"memory grows from {one.pss_bytes / 2**20:.0f} to {most.pss_bytes / 2**20:.0f} MiB"
            cpu = f"take {median(one.cpu_ms_per_row):.2f} to {median(most.cpu_ms_per_row):.2f} ms of CPU time for a row"
            parts.append(f"{engine}: {one.actors} to {most.actors} actors have {rates}, {cpu}, and {memory}")
            if one.weights_pss_bytes:
                weights = [found.weights_pss_bytes for found in self.of(engine)]
                parts.append(f"its packed weights take {min(weights) / 2**20:.1f} to {max(weights) / 2**20:.1f} MiB")
        return f"{self.case}: " + "; ".join(parts)
