"""The room `aspen_mp.system.threads` of the simulated world."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from queue import Empty
from typing import Any

from simulation.world.scheduler import Task, Waiters
from simulation.world.world import World


def make(world: World) -> dict[str, Any]:
    """The names of the room."""
    scheduler = world.scheduler

    def deadline(timeout: float | None) -> int | None:
        return None if timeout is None or timeout < 0 else scheduler.now + int(timeout * 1e9) + 1

    class Lock:
        def __init__(self) -> None:
            self._owner: Task | None = None
            self._waiters = Waiters(scheduler)

        def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
            if scheduler.current is None:
                return True
            if self._owner is not None and not self._owner.process.alive:
                self._owner = None  # each process has its own in truth
            if world.choices.happens("preempt"):
                scheduler.pause()
            if self._owner is None:
                self._owner = scheduler.current
                return True
            if not blocking:
                return False
            self._waiters.wait_for(lambda: self._owner is None or not self._owner.process.alive, "a lock", deadline(timeout))
            if self._owner is None or not self._owner.process.alive:
                self._owner = scheduler.current
                return True
            return False

        def release(self) -> None:
            self._owner = None
            self._waiters.changed()

        def locked(self) -> bool:
            return self._owner is not None

        def __enter__(self) -> bool:
            return self.acquire()

        def __exit__(self, *_: object) -> None:
            self.release()

        def _at_fork_reinit(self) -> None:
            self._owner = None

    class RLock(Lock):
        def __init__(self) -> None:
            super().__init__()
            self._depth = 0

        def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
            if self._owner is not None and self._owner is scheduler.current:
                self._depth += 1
                return True
            if super().acquire(blocking, timeout):
                self._depth = 1
                return True
            return False

        def release(self) -> None:
            self._depth -= 1
            if self._depth <= 0:
                super().release()

    class Condition:
        def __init__(self, lock: Any = None) -> None:
            self._lock = RLock() if lock is None else lock
            self._waiting: deque[list[Any]] = deque()
            self.acquire, self.release = self._lock.acquire, self._lock.release

        def __enter__(self) -> bool:
            return bool(self._lock.__enter__())

        def __exit__(self, *args: object) -> None:
            self._lock.__exit__(*args)

        def wait(self, timeout: float | None = None) -> bool:
            task = scheduler.current
            assert task is not None
            entry = [task, False]
            self._waiting.append(entry)
            until = deadline(timeout)
            depth = getattr(self._lock, "_depth", 0)
            if depth:
                self._lock._depth = 1
            self._lock.release()
            while not entry[1]:
                if not scheduler.block("a condition", until) and not entry[1] and until is not None and scheduler.now >= until:
                    break
            if not entry[1]:
                self._waiting.remove(entry)
            self._lock.acquire()
            if depth:
                self._lock._depth = depth
            return bool(entry[1])

        def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
            until = deadline(timeout)
            while not (found := predicate()):
                if until is not None and scheduler.now >= until:
                    break
                self.wait(None if until is None else (until - scheduler.now) / 1e9)
            return found

        def notify(self, n: int = 1) -> None:
            for _ in range(min(n, len(self._waiting))):
                entry = self._waiting.popleft()
                entry[1] = True
                scheduler.wake(entry[0], world.choices.wake_delay_ns())

        def notify_all(self) -> None:
            self.notify(len(self._waiting))

    class Semaphore:
        def __init__(self, value: int = 1) -> None:
            self._value = value
            self._waiters = Waiters(scheduler)

        def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
            if not self._value and blocking:
                self._waiters.wait_for(lambda: self._value > 0, "a semaphore", deadline(timeout))
            if not self._value:
                return False
            self._value -= 1
            return True

        def release(self, n: int = 1) -> None:
            self._value += n
            self._waiters.changed()

        def __enter__(self) -> bool:
            return self.acquire()

        def __exit__(self, *_: object) -> None:
            self.release()

    class Event:
        def __init__(self) -> None:
            self._set = False
            self._waiters = Waiters(scheduler)

        def is_set(self) -> bool:
            return self._set

        def set(self) -> None:
            self._set = True
            self._waiters.changed()

        def clear(self) -> None:
            self._set = False

        def wait(self, timeout: float | None = None) -> bool:
            if scheduler.current is None:
                return self._set
            return bool(self._waiters.wait_for(lambda: self._set, "an event", deadline(timeout)))

    class Thread:
        def __init__(
            self,
            group: None = None,
            target: Callable[..., object] | None = None,
            name: str | None = None,
            args: tuple[Any, ...] = (),
            kwargs: Mapping[str, Any] | None = None,
            *,
            daemon: bool | None = None,
        ) -> None:
            self._target, self._args, self._kwargs = target, args, dict(kwargs or {})
            self.name = name or "thread"
            self.daemon = bool(daemon)
            self._task: Task | None = None
            self._done = False
            self._ends = Waiters(scheduler)

        def start(self) -> None:
            if world.choices.happens("scarce") or world.choices.happens("no-threads"):
                raise RuntimeError("can't start new thread")
            process = world.here
            self._task = scheduler.start(self.name, process, lambda: self._live(process))
            self._task.thread = self

        def run(self) -> None:
            if self._target is not None:
                self._target(*self._args, **self._kwargs)

        def _live(self, process: Any) -> None:
            try:
                self.run()
            except SystemExit:
                pass
            except BaseException as error:
                world.crashed(process, f"thread {self.name!r}", error)
            self._done = True
            if self._task is not None:
                process.tasks.pop(self._task.number, None)
            self._ends.changed()

        def is_alive(self) -> bool:
            return self._task is not None and not self._done and self._task.process.alive

        def join(self, timeout: float | None = None) -> None:
            if self._task is None:
                raise RuntimeError("cannot join thread before it is started")
            if self._task is scheduler.current:
                raise RuntimeError("cannot join current thread")
            self._ends.wait_for(lambda: not self.is_alive(), f"thread {self.name}", deadline(timeout))

        @property
        def ident(self) -> int | None:
            return None if self._task is None else self._task.number

        native_id = ident

    def current_thread() -> Any:
        task = scheduler.current
        if task is None:
            return threading.main_thread()
        if task.thread is None:
            task.thread = Thread(name="MainThread")
            task.thread._task = task
        return task.thread

    class SimpleQueue:
        def __init__(self) -> None:
            self._items: deque[Any] = deque()
            self._waiters = Waiters(scheduler)

        def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
            self._items.append(item)
            self._waiters.changed()

        put_nowait = put

        def get(self, block: bool = True, timeout: float | None = None) -> Any:
            if block:
                self._waiters.wait_for(lambda: bool(self._items), "a queue", deadline(timeout))
            if not self._items:
                raise Empty
            return self._items.popleft()

        def get_nowait(self) -> Any:
            return self.get(block=False)

        def empty(self) -> bool:
            return not self._items

        def qsize(self) -> int:
            return len(self._items)

    return {
        "Condition": Condition,
        "Event": Event,
        "Lock": Lock,
        "RLock": RLock,
        "Semaphore": Semaphore,
        "SimpleQueue": SimpleQueue,
        "Thread": Thread,
        "current_thread": current_thread,
        "get_ident": lambda: 0 if scheduler.current is None else scheduler.current.number,
    }
