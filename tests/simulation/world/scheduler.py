"""Tasks of simulated processes, run one at a time by one seed under a virtual clock.

A task is a greenlet, so it can be left in the middle of Python or C code. It runs until it blocks, yields or ends. The scheduler then draws
the next one among those that are ready. Time moves only here: by what a slice costs, or to the next timer when nobody is ready.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import greenlet

if TYPE_CHECKING:
    from simulation.world.choices import Choices
    from simulation.world.processes import Process

READY: Final = "ready"
RUNNING: Final = "running"
BLOCKED: Final = "blocked"
DEAD: Final = "dead"

START_NS: Final = 1_000_000_000_000
"""The virtual monotonic clock at the beginning of a history."""


class Task:
    """A thread of a simulated process.

    Attributes:
        name: What it is called in histories.
        process: The process that it belongs to.
        state: One of the constants above.
        woken: Whether its last wait ended because somebody woke it. False: its time was over.
        cpu_ns: Virtual CPU time that it has used.
        waits: What it waits for, in words, while it is blocked.
    """

    def __init__(self, number: int, name: str, process: Process, body: Callable[[], object], parent: greenlet.greenlet) -> None:
        self.number = number
        self.name = name
        self.process = process
        self.state = READY
        self.woken = False
        self.cpu_ns = 0
        self.waits = ""
        self.wait = 0
        self.thread: Any = None
        self.greenlet = greenlet.greenlet(body, parent)

    def __repr__(self) -> str:
        return f"{self.process.name}/{self.name}"


class Timer:
    """Calls `action` at a moment of virtual time, unless it was cancelled."""

    __slots__ = ("action",)

    def __init__(self, action: Callable[[], object]) -> None:
        self.action: Callable[[], object] | None = action

    def cancel(self) -> None:
        self.action = None


class Scheduler:
    """Runs tasks.

    Attributes:
        now: Virtual monotonic nanoseconds.
        steps: Slices that have been run.
        current: The task that runs; None outside of tasks.
    """

    def __init__(self, choices: Choices, clock: Callable[[int], object] = lambda now: None) -> None:
        """`clock` is told of each new time."""
        self.choices = choices
        self.now = START_NS
        self.steps = 0
        self.current: Task | None = None
        self.on_switch: Callable[[Task], object] = lambda task: None
        self.on_slice: Callable[[Task], object] = lambda task: None
        self.on_jump: Callable[[int], object] = lambda ns: None
        self.before: Callable[[], object] = lambda: None
        self.after: Callable[[], object] = lambda: None
        self._clock = clock
        self._ready: list[Task] = []
        self._timers: list[tuple[int, int, Timer]] = []
        self._numbers = itertools.count(1)
        self._order = itertools.count(1)
        self._main = greenlet.getcurrent()
        self._graveyard: list[Task] = []
        self._stopped = False
        clock(self.now)

    # ---- for tasks

    def start(self, name: str, process: Process, body: Callable[[], object], delay_ns: int = 0) -> Task:
        """Make a task, which is ready, or will be."""
        task = Task(next(self._numbers), name, process, body, self._main)
        process.tasks[task.number] = task
        if delay_ns:
            task.state, task.waits = BLOCKED, "its start"
            self.at(self.now + delay_ns, lambda: self._expire(task, 0))
        else:
            self._ready.append(task)
        return task

    def block(self, waits: str, until: int | None = None) -> bool:
        """Let others run until somebody wakes this task, or until a moment. Return whether it was woken."""
        task = self._running()
        task.state, task.waits, task.woken = BLOCKED, waits, False
        task.wait += 1
        timer = None
        if until is not None:
            wait = task.wait
            timer = self.at(max(until, self.now), lambda: self._expire(task, wait))
        self._main.switch()
        if timer is not None:
            timer.cancel()
        return task.woken

    def pause(self, ns: int = 0) -> None:
        """Let others run; go on `ns` later, or when it is this task's turn."""
        task = self._running()
        if ns:
            self.block("time to pass", self.now + ns)
            return
        task.state = READY
        self._ready.append(task)
        self._main.switch()

    def wake(self, task: Task, delay_ns: int = 0) -> None:
        """End the wait of a task, now or later."""
        if task.state is not BLOCKED:
            return
        if delay_ns:
            wait = task.wait
            self.at(self.now + delay_ns, lambda: self._rouse(task, wait))
            return
        task.state, task.woken = READY, True
        self._ready.append(task)

    def end(self) -> None:
        """End the current task. Does not return."""
        task = self._running()
        self.bury(task)
        self._main.switch()
        raise AssertionError(f"{task} went on after its end")

    def bury(self, task: Task) -> None:
        """Never run a task again. Its frames stay, because to unwind them would run code of a process that is gone."""
        task.state = DEAD
        self._graveyard.append(task)

    # ---- time

    def at(self, moment: int, action: Callable[[], object]) -> Timer:
        timer = Timer(action)
        heapq.heappush(self._timers, (moment, next(self._order), timer))
        return timer

    def later(self, ns: int, action: Callable[[], object]) -> Timer:
        return self.at(self.now + ns, action)

    def advance(self, ns: int) -> None:
        self.now += ns
        self._clock(self.now)

    # ---- the loop

    def run(self, steps: int, until: Callable[[], bool] = lambda: False, horizon: int | None = None) -> bool:
        """Run `steps` slices at most. Return whether `until` came true; False: no task can ever run again, the slices are used up, or the
        time is past `horizon`."""
        assert greenlet.getcurrent() is self._main
        last = self.steps + steps
        while self.steps < last:
            if until():
                return True
            self._fire()
            task = self._draw()
            if task is None:
                if not self._skip(horizon):
                    return until()
                continue
            self._slice(task)
        return until()

    def idle(self) -> bool:
        """Whether nobody is ready and no timer is left."""
        return not self._ready and not any(timer.action for _, _, timer in self._timers)

    def _draw(self) -> Task | None:
        ready = self._ready
        while ready:
            k = self.choices.below(len(ready)) if len(ready) > 1 else 0
            task = ready[k]
            ready[k] = ready[-1]
            ready.pop()
            if task.state is not READY:
                continue
            if task.process.stopped:
                task.process.held.append(task)
                continue
            return task
        return None

    def _slice(self, task: Task) -> None:
        self.steps += 1
        task.state = RUNNING
        self.current = task
        self.on_slice(task)
        self.on_switch(task)
        self.before()
        task.greenlet.switch()
        self.after()
        self.current = None
        cost = self.choices.cost_ns() * task.process.slow
        task.cpu_ns += cost
        task.process.cpu_ns += cost
        self.advance(cost)
        if task.greenlet.dead and task.state is not DEAD:
            self.bury(task)

    def release(self, tasks: list[Task]) -> None:
        """Tasks of a stopped process go on."""
        self._ready += tasks
        tasks.clear()

    def _fire(self) -> None:
        timers = self._timers
        while timers and timers[0][0] <= self.now:
            timer = heapq.heappop(timers)[2]
            if timer.action is not None:
                action, timer.action = timer.action, None
                action()

    def _skip(self, horizon: int | None) -> bool:
        """Move the clock to the next timer. Return False where there is none before `horizon`."""
        while self._timers and self._timers[0][2].action is None:
            heapq.heappop(self._timers)
        if not self._timers or (horizon is not None and self._timers[0][0] > horizon):
            return False
        if self._timers[0][0] > self.now:
            self.on_jump(self._timers[0][0] - self.now)
            self.advance(self._timers[0][0] - self.now)
        return True

    def _expire(self, task: Task, wait: int) -> None:
        if task.state is BLOCKED and task.wait == wait:
            task.state = READY
            self._ready.append(task)

    def _rouse(self, task: Task, wait: int) -> None:
        if task.wait == wait:
            self.wake(task)

    def _running(self) -> Task:
        assert self.current is not None, "no task runs"
        return self.current


class Waiters:
    """Tasks that wait for a change of something."""

    __slots__ = ("_scheduler", "_tasks")

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._tasks: dict[int, Task] = {}

    def add(self, task: Task) -> None:
        self._tasks[task.number] = task

    def remove(self, task: Task) -> None:
        self._tasks.pop(task.number, None)

    def changed(self) -> None:
        """Wake all: each looks whether what it waits for has come."""
        if self._tasks:
            for task in list(self._tasks.values()):
                self._scheduler.wake(task, self._scheduler.choices.wake_delay_ns())

    def wait(self, waits: str, until: int | None = None) -> bool:
        """Sleep until the next change. Return False where the time is over before it."""
        task = self._scheduler.current
        assert task is not None
        self.add(task)
        try:
            return self._scheduler.block(waits, until)
        finally:
            self.remove(task)

    def wait_for(self, ready: Callable[[], Any], waits: str, until: int | None = None) -> Any:
        """Sleep until `ready()` is true, and return that; or what it is at the end of the time."""
        while True:
            found = ready()
            if found:
                return found
            if until is not None and self._scheduler.now >= until:
                return found
            self.wait(waits, until)
