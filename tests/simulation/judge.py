"""Rules that always hold, beside what users see: looked at whenever nobody can run and the clock is about to jump."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from simulation.world.processes import Process
    from simulation.world.world import World

LEAST_NS: Final = 20_000_000
"""A shorter jump says nothing: messages may be late by that much."""


class Judge:
    """Looks into the control tables of living runtimes."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._planners: dict[int, Any] = {}
        world.scheduler.on_jump = self._jump
        from aspen_mp.control.process import composition

        begin = composition.PlannerProcess.run

        def run(planner: Any) -> None:
            self._planners[world.here.pid] = planner
            begin(planner)

        composition.PlannerProcess.run = run  # type: ignore[method-assign]

    def _jump(self, ns: int) -> None:
        if ns < LEAST_NS:
            return
        for pid, planner in list(self._planners.items()):
            process = self._world.processes[pid]
            if not process.alive:
                del self._planners[pid]
            elif not process.stopped:
                self._look(process, planner._parts)

    @staticmethod
    def _submitted(parts: Any) -> int:
        """Requests that clients have submitted and no worker has begun."""
        from aspen_mp.shm.bindings import _control

        fds = [parts.memory.segments[client.segment].fd for client in parts.base.clients.values()]
        pending = [os.pread(fd, _control.SLOTS // 8, _control.CLIENT_PENDING) for fd in fds]
        return sum(int.from_bytes(bits, "little").bit_count() for bits in pending)

    def _look(self, process: Process, parts: Any) -> None:
        """Nobody is ready for a while. Then no request may be under way on workers that all sleep: nobody would wake them."""
        table = parts.workers.table
        status = table.status()
        under_way = status["instances"]["running"] + status["instances"]["claimed"] + self._submitted(parts)
        if status["epoch"] % 2 or not under_way or parts.care.recovery.going_on:
            return
        workers = [worker for worker in table.workers() if worker["state"] == "running"]
        processes = [self._world.processes.get(worker["pid"]) for worker in workers]
        if not workers or any(each is None or each.stopped or not each.alive for each in processes):
            return
        clients = [self._world.processes[client.connection.pid] for client in parts.base.clients.values()]
        if any(each.stopped or not each.alive for each in clients):
            return  # one in the middle of a submission, or whose end is about to be heard of
        if all(worker["idle"] == "parked" for worker in workers):
            self._world.violation(f"{under_way} requests of {process.name} are under way while all its {len(workers)} workers sleep")
