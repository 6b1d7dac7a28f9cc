"""When plans are made again: when the cores have been others, and then the same, for some looks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from aspen_mp.control.pool.core_speeds import alike
from aspen_mp.control.process.machine import STEADY, MachineWatch
from aspen_mp.control.wire import protocol
from aspen_mp.control.wire.event_log import EventLog, ShortageLog
from aspen_mp.control.wire.event_loop import Loop


class Fake:
    """A watch over a machine and workers that do not exist: `speeds` are those of the workers' cores."""

    def __init__(self) -> None:
        self.speeds, self.planned_for, self.refreshed = [1.0], [1.0], 0
        nothing: Any = lambda *_: None  # noqa: E731
        pool: Any = type("Pool", (SimpleNamespace,), {"__len__": lambda pool: len(self.speeds)})
        cores: Any = SimpleNamespace(measure=nothing, plan_for=self._plan_for, preferred=list, topology=None, follows=False)
        loop, log = Loop(), EventLog("test", "off")
        self.watch = MachineWatch(
            *(loop, log, ShortageLog(log), SimpleNamespace(paces=list)),  # type: ignore[arg-type]
            cores=cores,
            pool=pool(cpus=nothing, settle=nothing, start=self._start, leave=self._leave),
            models=SimpleNamespace(refresh=self._refresh),  # type: ignore[arg-type]
            recovery=SimpleNamespace(going_on=False),  # type: ignore[arg-type]
            watchdog=SimpleNamespace(),  # type: ignore[arg-type]
            replan=True,
        )
        loop.close()

    def _plan_for(self, cpus: object) -> bool:
        before, self.planned_for = self.planned_for, self.speeds
        return not alike(before, self.planned_for)

    def _start(self, n: int, cores: object) -> None:
        self.speeds = [1.0] * (len(self.speeds) + n)

    def _leave(self, n: int, cores: object) -> None:
        self.speeds = [1.0] * (len(self.speeds) - n)

    def _refresh(self) -> None:
        self.refreshed += 1

    def look(self, n: int = 1) -> int:
        """How often plans would have been made again in these looks."""
        before = self.refreshed
        for _ in range(n):
            self.watch._replan()
        return self.refreshed - before


def resized(fake: Fake, n: int) -> None:
    fake.watch.resize(protocol.Resize(1, total=n))


def settled(fake: Fake, n: int) -> None:
    fake.speeds = [1.0] * n
    fake.watch._settle(n)


def slower(fake: Fake, n: int) -> None:
    """Nobody tells: the look finds it."""
    fake.speeds = [1.0, *[0.5] * n]


@pytest.mark.parametrize("change", [resized, settled, slower])
def test_some_looks_after_a_change(change: Any) -> None:
    fake = Fake()
    assert fake.look(10) > 0
    for n in (4, 2, 3):
        change(fake, n)
        assert fake.look(STEADY) == 0
    assert fake.look(1) == 1
    assert fake.look(1) == 1
    fake.speeds = [speed * 0.9 for speed in fake.speeds]  # about the same
    assert fake.look(1) == 1
