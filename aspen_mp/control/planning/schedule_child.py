"""A child of the planner process that searches for schedules of networks that run together.

It is forked for one set of networks, runs where a core has nothing else to do, and tells of each better schedule as it finds it.
Nobody waits for it.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from aspen_mp.control.wire.event_loop import PRIORITY_JOB, Loop
from aspen_mp.control.wire.forked import end, forked
from aspen_mp.planner.job.options import Objective
from aspen_mp.system import descriptors, processes
from aspen_mp.workers import process

if TYPE_CHECKING:
    from aspen_mp.planner.coschedule.anytime import Step

SECONDS: Final = 60
"""A child that takes longer is ended: it gets what running networks leave, and that may be nothing."""
MOST_BYTES: Final = 1 << 20
"""Of what a child may say."""


class Network(msgspec.Struct, frozen=True):
    """A network to be scheduled. `fd`, `nbytes`: its plan segment; `times`: how often it runs in a round."""

    name: str
    fd: int
    nbytes: int
    times: int = 1


class Core(msgspec.Struct, frozen=True):
    """A worker's core, as of `planner.cost.machine.Core`."""

    speed: float
    class_: int
    cache: int
    node: int


class Candidate(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A schedule. `value` and `bound` of its objective: ns, or runs per ns; `naive`: the best value of a naive schedule. `makespan_ns`: of
    a round, as predicted. `hints`: by network and depth, as of `ControlTable.set_hints`; `domains`: of each core."""

    value: float
    bound: float
    proven: bool
    origin: str
    naive: float
    makespan_ns: float
    seconds: float
    hints: list[list[tuple[Annotated[int, msgspec.Meta(ge=0, le=0xFFFF)], Annotated[int, msgspec.Meta(ge=0, le=0xFF)], bool]]]
    domains: list[int]


_decode = msgspec.json.Decoder(Candidate).decode


class ScheduleChild:
    """`found(candidate)` is called with each better schedule, `ended(why)` once: empty where the search has come to its end."""

    def __init__(
        self,
        loop: Loop,
        networks: Sequence[Network],
        cores: Sequence[Core],
        objective: Objective,
        cache: str,
        found: Callable[[Candidate], object],
        ended: Callable[[str], object],
    ) -> None:
        """`cache`: the folder of the plan cache, which keeps measured rates. OSError: there is no process to be had."""
        self._loop, self._found, self._ended = loop, found, ended
        self._said = b""
        self._over = False
        self._heard, told = descriptors.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            work = lambda: _run(networks, cores, objective, cache, told)  # noqa: E731
            keep = {told, *(network.fd for network in networks)}
            self._pid = forked(loop, work, self._gone, "aspen-schedule", keep=keep, oom_score=900, seconds=SECONDS)
        except OSError:
            descriptors.close(self._heard)
            raise
        finally:
            descriptors.close(told)
        loop.watch(self._heard, PRIORITY_JOB, self._read)

    def _read(self) -> None:
        data = b""
        with suppress(BlockingIOError):
            data = descriptors.read(self._heard, 1 << 16)
        self._said += data
        if not data or len(self._said) > MOST_BYTES:
            self._loop.unwatch(self._heard)
        *lines, self._said = self._said.split(b"\n")
        for line in lines:
            if self._over:
                return
            try:
                candidate = _decode(line)
            except msgspec.MsgspecError:
                continue  # it was ended amid a word, or memory failed it
            self._found(candidate)

    def _gone(self, status: int) -> None:
        if not self._over and self._heard in self._loop:
            self._read()
        self._loop.unwatch(self._heard)
        descriptors.close(self._heard)
        if self._over:
            return
        self._over = True
        if os.WIFSIGNALED(status):
            self._ended(f"ended by signal {os.WTERMSIG(status)}")
        else:
            code = os.WEXITSTATUS(status)
            self._ended("" if code == 0 else f"it failed with status {code}")

    def close(self) -> None:
        """Nobody wants its schedules any more."""
        if not self._over:
            self._over = True
            end(self._pid)


def _run(networks: Sequence[Network], cores: Sequence[Core], objective: Objective, cache: str, told: int) -> int:
    """In the forked process."""
    try:
        _stand_behind()
        descriptors.set_blocking(told, True)
        _solve(networks, cores, objective, cache, told)
    except Exception:
        traceback.print_exc()
        process.flush_output()
        return 1
    return 0


def _stand_behind() -> None:
    """At nice 19 alone a worker that wakes may wait until the search has used up its slice; this class makes way at once."""
    processes.nice(19)
    with suppress(OSError):
        processes.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def _solve(networks: Sequence[Network], cores: Sequence[Core], objective: Objective, cache: str, told: int) -> None:
    from aspen_mp.control.planning import local_rates
    from aspen_mp.planner.coschedule import units
    from aspen_mp.planner.coschedule.anytime import improve
    from aspen_mp.planner.coschedule.together import Run
    from aspen_mp.planner.cost import machine
    from aspen_mp.planner.plan import plan_file

    rates = local_rates.predicting(cache)
    whole = machine.Machine.of([machine.Core(core.speed, core.class_, core.cache, core.node) for core in cores], rates)
    domains = units.domain_of(whole)
    runs = [Run(each.name, plan_file.in_segment(descriptors.pread(each.fd, each.nbytes, 0)), each.times) for each in networks]
    for step in improve(runs, whole, rates, objective):
        descriptors.write(told, msgspec.json.encode(_candidate(step, domains)) + b"\n")


def _candidate(step: Step, domains: list[int]) -> Candidate:
    found = step.incumbent
    hints = [[(hint.domains, hint.most, hint.yields) for hint in each] for each in step.hints]
    return Candidate(found.value, found.bound, found.proven, found.origin, step.naive, step.makespan, step.seconds, hints, domains)
