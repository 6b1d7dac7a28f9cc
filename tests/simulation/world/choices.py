"""Everything that chance decides in a history comes from here, by one seed.

The kinds of trouble of a history are drawn first (swarm testing). A seed with everything at once would never get far with any of it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field


@dataclass(slots=True)
class Trouble:
    """The kinds of a history, and how often each comes, as a share of the moments at which it could."""

    rates: dict[str, float] = field(default_factory=dict)

    def rate(self, kind: str) -> float:
        return self.rates.get(kind, 0.0)


class Choices:
    """One source of chance. `quiet` ends all trouble: what is left must come to rest."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._random = random.Random(seed)
        self.trouble = Trouble()
        self.quiet = False
        self.slice_ns = (300, 3000)

    def uniform(self) -> float:
        return self._random.random()

    def below(self, n: int) -> int:
        return int(self._random.random() * n)

    def between(self, low: int, high: int) -> int:
        """A whole number from `low` to `high`."""
        return low + int(self._random.random() * (high - low + 1))

    def pick(self, of: list | tuple):  # type: ignore[type-arg,no-untyped-def]
        return of[int(self._random.random() * len(of))]

    def happens(self, kind: str) -> bool:
        """Whether a trouble of this kind comes now."""
        rate = self.trouble.rates.get(kind)
        return rate is not None and not self.quiet and self._random.random() < rate

    def chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def cost_ns(self) -> int:
        low, high = self.slice_ns
        return low + int(self._random.random() * (high - low))

    def wake_delay_ns(self) -> int:
        if not self.happens("delays"):
            return 0
        return int(10 ** (3 + 4 * self._random.random()))  # 1 us … 10 ms

    def bytes(self, n: int) -> bytes:
        return bytes(int(self._random.random() * 256) for _ in range(n))
