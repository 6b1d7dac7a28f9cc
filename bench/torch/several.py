"""Several processes with a network each: what they have in memory, and how many calls a second they make."""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from aspen_mp.bench.clients import family, pss, settle
from aspen_mp.bench.peers.rounds import OURS
from aspen_mp.bench.torch.engines import EAGER, FLOOR
from aspen_mp.bench.torch.result import EngineResult
from aspen_mp.bench.torch.seat import TorchSeat

if TYPE_CHECKING:
    from aspen_mp.bench.torch.networks.network import Size, TorchNetwork

Say = Callable[[str], None]
ROUNDS: Final = 3
_MAPPING: Final = re.compile(r"[0-9a-f]+-[0-9a-f]+ \S+ \S+ (\S+) (\d+) ")


def several(
    network: TorchNetwork, size: Size, result: EngineResult, counts: Sequence[int], cores: list[int], seconds: float, say: Say
) -> None:
    """Fill in what a result says of several processes. `counts`: of processes; `seconds`: of each number of them in each round."""
    with _Seats(network, result.engine, size, cores, say) as seats:
        pids = []
        if result.engine == OURS:
            import aspen_mp

            seats.runtime = f"bench-torch-{os.getpid()}-{time.monotonic_ns() & 0xFFFFFF:x}"
            runtime = seats.stack.enter_context(aspen_mp.Runtime(name=seats.runtime, workers=len(cores), cores=cores))
            pids = [runtime.pid]
        for count in sorted(counts):
            seats.grow(count)
            if pids:
                settle(pids[0], len(cores))
            result.memory[count] = pss(seats.pids + pids)[0] + unmapped(seats.pids + pids)
        for _ in range(ROUNDS):
            for count in sorted(counts):
                result.calls_per_s.setdefault(count, []).append(_calls(seats.taken[:count], seconds))
    with _Seats(network, EAGER if result.engine == EAGER else FLOOR, "small", cores, say) as floors:
        for count in sorted(counts):
            floors.grow(count)
            result.floor[count] = pss(floors.pids)[0]


@dataclass(slots=True)
class _Seats:
    """Processes of one engine with a network each. `runtime`: the runtime of aspen-mp that they share; None: each has its own."""

    network: TorchNetwork
    engine: str
    size: Size
    cores: list[int]
    say: Say
    runtime: str | None = None
    stack: ExitStack = field(default_factory=ExitStack)
    taken: list[TorchSeat] = field(default_factory=list)

    def __enter__(self) -> _Seats:
        return self

    def __exit__(self, *raised: object) -> None:
        self.stack.close()

    def grow(self, count: int) -> None:
        """Starts the processes that are missing."""
        folder = Path(self.stack.enter_context(tempfile.TemporaryDirectory(prefix="aspen-mp-torch-")))
        while len(self.taken) < count:
            self.say(f"{self.network.name}: {self.engine}, process {len(self.taken) + 1} of {count}")
            self.taken.append(TorchSeat.start(self.engine, self.network.name, self.size, folder, self.cores, self.runtime))
            self.stack.callback(self.taken[-1].close)

    @property
    def pids(self) -> list[int]:
        return [seat.process.pid for seat in self.taken]


def _calls(seats: Sequence[TorchSeat], seconds: float) -> float:
    """Calls a second of all these processes at the same time."""
    with ThreadPoolExecutor(len(seats)) as pool:
        turns = list(pool.map(lambda seat: seat.turn(seconds, 1), seats))
    return float(sum(len(turn.seconds) / sum(turn.seconds) for turn in turns))


def unmapped(roots: Sequence[int]) -> int:
    """Bytes of files in memory that these processes and their children hold open, beyond what they have mapped. PSS does not count them."""
    held: dict[tuple[int, int], int] = {}
    mapped: Counter[tuple[int, int]] = Counter()
    for process in family(roots):
        held |= _held(process.pid)
        place: tuple[int, int] | None = None
        for line in Path(f"/proc/{process.pid}/smaps").read_text().splitlines():
            found = _MAPPING.match(line)
            if found:
                major, minor = (int(part, 16) for part in found[1].split(":"))
                place = os.makedev(major, minor), int(found[2])
            elif place is not None and line.startswith("Pss:"):
                mapped[place] += int(line.split()[1]) << 10
    return sum(max(0, nbytes - mapped[place]) for place, nbytes in held.items())


def _held(pid: int) -> dict[tuple[int, int], int]:
    """Files in memory that a process has open: bytes of each."""
    held: dict[tuple[int, int], int] = {}
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            if os.readlink(link).startswith(("/memfd:", "/dev/shm/")):
                about = os.stat(link)
                held[about.st_dev, about.st_ino] = about.st_blocks * 512
        except FileNotFoundError:
            continue
    return held
