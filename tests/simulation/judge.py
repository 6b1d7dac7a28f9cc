"""Rules that always hold, beside what users see: looked at whenever nobody can run and the clock is about to jump."""

from __future__ import annotations

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

    def _look(self, process: Process, parts: Any) -> None:
        """Nobody is ready for a while. Then no request may be under way on workers that all sleep: nobody would wake them."""
        table = parts.workers.table
        status = table.status()
        under_way = status["instances"]["running"] + status["instances"]["claimed"]
        if status["epoch"] % 2 or not under_way or parts.care.recovery.going_on:
            return
        workers = [worker for worker in table.workers() if worker["state"] == "running"]
        processes = [self._world.processes.get(worker["pid"]) for worker in workers]
        if not workers or any(each is None or each.stopped or not each.alive for each in processes):
            return
        if all(worker["idle"] == "parked" for worker in workers):
            self._world.violation(f"{under_way} requests of {process.name} are under way while all its {len(workers)} workers sleep")
