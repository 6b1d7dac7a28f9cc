"""Starts simulated servers as `aspen-mp serve` does, and notes what they served when."""

from __future__ import annotations

import bisect
import mmap
import os
import signal
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from simulation.serving.http import ADDRESS
from simulation.world.isolation import Ordered

if TYPE_CHECKING:
    from pathlib import Path

    from simulation.serving.story import ServeStory

Version = tuple[str, int]
FOREVER: Final = 1 << 62


@dataclass(slots=True)
class Told:
    """A catalogue that front ends were told. `served`: {(model, version): stamp}."""

    at: int
    number: int
    served: dict[Version, str]
    absent: bool
    unserved: set[str]


@dataclass(slots=True)
class Life:
    """A server from its start to its end. Times are in virtual nanoseconds.

    Attributes:
        listens: When clients could connect.
        ready: When it said that it serves.
        term: When it was told to end.
        refused: When nobody could connect any more.
        ended: When its supervisor had ended.
        lost: Whether the supervisor was killed.
        fails: When an error began to end it.
        reached: (time, number): the least catalogue that a front end may have served since then.
        deaths: When front ends were killed or failed.
        counts: {version: (succeeded, failed, pending)} of the ledger at the end.
    """

    listens: int
    ready: int = 0
    term: int = FOREVER
    refused: int = FOREVER
    ended: int = FOREVER
    lost: bool = False
    fails: int = FOREVER
    told: list[Told] = field(default_factory=list)
    reached: list[tuple[int, int]] = field(default_factory=list)
    deaths: list[int] = field(default_factory=list)
    scanned: dict[tuple[str, int, str], int] = field(default_factory=dict)
    counts: dict[Version, tuple[int, int, int]] | None = None
    failed_loads: set[str] = field(default_factory=set)

    def window(self, since: int, until: int) -> list[Told]:
        """Catalogues that some front end may have served in this time."""
        k = bisect.bisect_right(self.reached, (since, FOREVER)) - 1
        least = self.reached[k][1] if k >= 0 else 0
        return [told for told in self.told if told.at <= until and told.number >= least]


@dataclass(frozen=True, slots=True)
class Settings:
    """How the servers of a history are started."""

    front_ends: int
    workers: int
    watch: bool
    repository: bool
    access_log: bool
    grace_s: float
    drain_s: float
    queued: int


class Servers:
    """The supervisors of a history, one after the other."""

    def __init__(self, story: ServeStory, root: Path, settings: Settings) -> None:
        self.story = story
        self.root = root
        self.settings = settings
        self.lives: list[Life] = []
        self.process: Any = None

    @property
    def life(self) -> Life:
        return self.lives[-1]

    def start(self) -> None:
        """Start the next one."""
        world = self.story.world
        self.process = world.start("supervisor", lambda: self.story.alive(world.here, self._live))
        life = Life(FOREVER)
        self.lives.append(life)
        self.process.at_end.append(lambda process: self._ended(life, process))

    def _ended(self, life: Life, process: Any) -> None:
        life.ended = self.story.world.scheduler.now
        life.lost = bool(process.status)
        self.story.server_ended(life)

    def term(self) -> None:
        """Ask the present one to end."""
        if not self.process.alive:
            return
        self.life.term = min(self.life.term, self.story.world.scheduler.now)
        self.story.history.note(f"{self.process.name} is told to end")
        self.process.deliver(signal.SIGTERM)

    def _live(self) -> None:
        import aspen_mp
        from aspen_mp.serving.limits import Limits
        from aspen_mp.serving.supervisor import ServeOptions
        from aspen_mp.system import sockets
        from simulation.world import loops

        life, settings, now = self.life, self.settings, self.story.world.scheduler
        listener = sockets.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            listener.bind(ADDRESS)
            listener.listen(2048)
            life.listens = now.now
            runtime = aspen_mp.Runtime(settings.workers, name=f"serve-{self.process.pid}", retry=True, log="off")
            try:
                keeper = observed_keeper(self.story, life)(runtime, [self.root], [])
                options = ServeOptions(
                    front_ends=settings.front_ends,
                    limits=Limits(queued=settings.queued),
                    watch=settings.watch,
                    allow_repository=settings.repository,
                    access_log=settings.access_log,
                    grace_s=settings.grace_s,
                    drain_s=settings.drain_s,
                )
                supervisor = observed_supervisor(self.story, life)(runtime, keeper, options, [listener], [self.root])

                def ready() -> None:
                    life.ready = now.now
                    self.story.history.note(f"{self.process.name} serves")

                loops.runner(self.story.world)(supervisor.run(ready, lambda: None))
            except BaseException:
                life.fails = min(life.fails, now.now)
                raise
            finally:
                runtime.close()
        finally:
            listener.close()


def observed_keeper(story: ServeStory, life: Life) -> Any:
    """A keeper that tells when it looked at the disk."""
    from aspen_mp.serving.keeper import Keeper

    class Observed(Keeper):
        async def settle(self) -> Any:
            return sorted(await super().settle(), key=lambda model: str(model.name))

        def _contents(self) -> Any:
            at = story.world.scheduler.now
            found = super()._contents()
            for versions in found.versions.values():
                for each in versions:
                    life.scanned.setdefault((each.name, each.version, each.stamp), at)
            return found

    return Observed


def observe_shelves(story: ServeStory) -> None:
    """Note what front ends cannot load, when they find out."""
    from aspen_mp.serving.shelf import Shelf

    apply = Shelf.apply

    async def applied(self: Any, catalogue: Any) -> dict[str, str]:
        failed = await apply(self, catalogue)
        story.servers.life.failed_loads |= set(failed)
        return failed

    Shelf.apply = applied  # type: ignore[method-assign]


def observed_supervisor(story: ServeStory, life: Life) -> Any:
    """A supervisor that tells what front ends are told, and what they have reached."""
    from aspen_mp.serving.supervisor import Supervisor

    class Observed(Supervisor):
        observed_ledger = -1

        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            self._front_ends, self._tasks = Ordered(), Ordered()  # type: ignore[assignment]

        def _tell_all(self) -> None:
            super()._tell_all()
            self._note()

        def _note(self) -> None:
            catalogue = self._catalogue()
            served = {(each.name, each.version): each.stamp for each in catalogue.served}
            unserved = {each.name for each in catalogue.unserved}
            life.told.append(Told(story.world.scheduler.now, catalogue.number, served, bool(catalogue.absent), unserved))

        def _over(self, task: Any) -> None:
            super()._over(task)
            if self._failure is not None:
                life.fails = min(life.fails, story.world.scheduler.now)

        async def _start(self, ledger: int, part: int) -> Any:
            self.observed_ledger = ledger
            if not life.told:
                self._note()
            made = await super()._start(ledger, part)
            made.seen = 0
            story.world.processes[made.process.pid].at_end.append(self._died)
            return made

        def _died(self, process: Any) -> None:
            if process.status:
                story.history.sometimes("a front end died")
                life.deaths.append(story.world.scheduler.now)

        async def _notify(self) -> None:
            numbers = []
            for each in self._front_ends:
                if each.applied < each.seen or each.applied > self._number:
                    story.wrong(f"a front end went from catalogue {each.seen} to {each.applied}, and {self._number} is the last")
                each.seen = each.applied
                life.failed_loads |= set(each.failed)
                if each.applied:
                    numbers.append(each.applied)
            if numbers:
                life.reached.append((story.world.scheduler.now, min(numbers)))
            await super()._notify()

        async def _end(self) -> None:
            from aspen_mp.serving import supervisor as module

            refuse = module.refuse

            def refused(sock: Any) -> None:
                life.refused = story.world.scheduler.now
                refuse(sock)

            module.refuse = refused
            try:
                await super()._end()
            finally:
                module.refuse = refuse
            if self.observed_ledger >= 0:
                life.counts = read_ledger(self.observed_ledger)

    return Observed


def read_ledger(fd: int) -> dict[Version, tuple[int, int, int]]:
    """The ledger's counts of all front ends together."""
    from aspen_mp.serving.telemetry import ledger
    from aspen_mp.serving.telemetry.ledger import Field

    found: dict[Version, tuple[int, int, int]] = {}
    nbytes = os.fstat(fd).st_size
    row_bytes = ledger._PART_BYTES // ledger.MOST_ROWS
    with mmap.mmap(fd, nbytes, prot=mmap.PROT_READ) as memory:
        for part in range(0, nbytes, ledger._PART_BYTES):
            for at in range(part, part + ledger._PART_BYTES, row_bytes):
                length = int.from_bytes(memory[at : at + 8], "little")
                if not length:
                    break
                name, _, version = memory[at + 8 : at + 8 + length].decode().rpartition("/")
                numbers = at + 8 * ledger._NAME_WORDS

                def count(field: int, numbers: int = numbers) -> int:
                    return int.from_bytes(memory[numbers + 8 * field : numbers + 8 * field + 8], "little")

                before = found.get((name, int(version)), (0, 0, 0))
                failed = sum(count(each) for each in ledger.FAILURES)
                here = count(Field.SUCCESS), failed, count(Field.PENDING)
                found[name, int(version)] = tuple(a + b for a, b in zip(before, here, strict=True))  # type: ignore[assignment]
    return found
