"""Networks that run together, described as data: who starts when, and who waits for whom (HaX-CoNN, section 5.2 and table 6).

A workload is a graph of *entries*. `jobs` unrolls it into runs of networks, which `Problem` takes. Nothing here runs anything.
"""

from __future__ import annotations

from dataclasses import dataclass

from aspen_mp.planner.coschedule.problem import MOST_JOBS, Job, ProfiledNetwork


@dataclass(frozen=True, slots=True)
class Entry:
    """A network of a workload, `times` times.

    `after`: numbers of the entries that must have ended in the same round; all are below its own. An entry without any is a source, and
    starts a round every `every_ns` ns, or all at once where that is 0. `in_order`: each run waits for the one before it, as steps of a
    decoder do; otherwise runs of several rounds may overlap. Entries that do not wait for each other run beside each other.
    """

    network: ProfiledNetwork
    times: int = 1
    every_ns: float = 0.0
    after: tuple[int, ...] = ()
    in_order: bool = False


@dataclass(frozen=True, slots=True)
class Workload:
    """Entries that run together. ValueError: an entry waits for itself, a later one, or one with other rounds; its period or rounds are out
    of range."""

    entries: tuple[Entry, ...]

    def __post_init__(self) -> None:
        if not self.entries:
            raise ValueError("a workload needs a network")
        for k, entry in enumerate(self.entries):
            if entry.times < 1 or not entry.every_ns >= 0:
                raise ValueError(f"entry {k} ({entry.network.name!r}): it runs at least once, with a period of 0 ns or more")
            if any(not 0 <= other < k for other in entry.after):
                raise ValueError(f"entry {k} ({entry.network.name!r}) waits for {entry.after}: it can wait for those before it")
            if entry.after and entry.every_ns:
                raise ValueError(f"entry {k} ({entry.network.name!r}): only sources have a period, not what waits for others")
            if any(self.entries[other].times != entry.times for other in entry.after):
                raise ValueError(f"entry {k} ({entry.network.name!r}) runs as often as those that it waits for")

    def jobs(self) -> tuple[Job, ...]:
        """The runs of all entries, those that wait behind those they wait for. A run that waits is released together with its predecessors,
        so that its latency is that of the whole chain. ValueError: there are more runs than a search takes (`MOST_JOBS`)."""
        total = sum(entry.times for entry in self.entries)
        if total > MOST_JOBS:
            raise ValueError(f"the workload has {total} runs, and plans are for {MOST_JOBS} at most: plan fewer rounds at a time")
        made: list[Job] = []
        number: dict[tuple[int, int], int] = {}
        for k, entry in enumerate(self.entries):
            for turn in range(entry.times):
                after = [number[other, turn] for other in entry.after]
                release = max((made[other].release for other in after), default=turn * entry.every_ns)
                if entry.in_order and turn:
                    after.append(number[k, turn - 1])
                number[k, turn] = len(made)
                made.append(Job(entry.network, release, tuple(after)))
        return tuple(made)
