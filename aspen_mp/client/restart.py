"""A planner process of one's own: started, ended, and, with ``retry=True``, started again when it was lost.

What is restarted is the planner process with its workers. Models are read again by their handles when they are next used
(`Model`), requests that were in flight are submitted again from their inputs, which this process still holds. What does the same for a
runtime that somebody else starts is in `reconnect.py`.
"""

from __future__ import annotations

import contextlib
import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import aspen_mp
from aspen_mp.control.wire.spawn import SCARCE
from aspen_mp.shm.errors import AspenError, ResourceLimitError, RuntimeLost
from aspen_mp.shm.greenlets import readable
from aspen_mp.shm.scarcity import is_scarce, start_thread, submit
from aspen_mp.system import clock, descriptors, processes, threads

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    from aspen_mp.client.session import Session

START_S = 60.0
"""How long a runtime of our own may take to start: it may have to compete for the machine."""
MOST_LOSSES: Final = 3
"""A request that workers had begun when its runtime was lost, so often, fails: it may well be the reason."""
MOST_RESTARTS: Final = 8
"""So many restarts without a pause of `STEADY_S` between two: then no more."""
STEADY_S: Final = 10.0
MOST_DELAY_S: Final = 1.0


class OwnServer:
    """`start`: of `server.start` with a configuration that is bound already, but for how many restarts there have been.
    `meanwhile`: what may be done while a planner process starts."""

    def __init__(self, start: Callable[[int], tuple[int, Any]], meanwhile: Callable[[], object]) -> None:
        self._start, self._meanwhile = start, meanwhile
        self.pid = 0
        self.total: int | None = None
        """As many workers as the user has asked for since it started."""
        self.restarts = 0
        self._quick = 0
        self._began = 0.0

    def session(self) -> Session:
        """Starts the planner process and connects."""
        self.pid, sock = self._start(self.restarts)
        self._began = clock.monotonic()
        try:
            from aspen_mp.client.session import Session

            self._meanwhile()

            return Session(sock, aspen_mp.__version__, START_S)
        except BaseException as error:
            status = self.end()
            if isinstance(error, RuntimeLost) and status == SCARCE:
                raise ResourceLimitError(
                    "the planner process has too few descriptors or too little memory to start. Raise `ulimit -n`, or free memory"
                ) from None
            if isinstance(error, RuntimeLost) and status:
                raise RuntimeLost(f"the runtime's planner process ended with status {status} while it started") from None
            raise

    def again(self, lost: Session) -> Session:
        """In place of a session whose planner process is gone: another one. RuntimeLost where that does not help."""
        why: AspenError = lost.error or RuntimeLost("the runtime is lost")
        while True:
            self._quick = self._quick + 1 if clock.monotonic() - self._began < STEADY_S else 1
            if self._quick > MOST_RESTARTS:
                raise RuntimeLost(
                    f"{why}. It was restarted {self.restarts} times, the last {MOST_RESTARTS} of them in quick succession, so it stays down"
                )
            if self._quick > 1:
                clock.sleep(min(MOST_DELAY_S, 0.01 * 2**self._quick))
            with contextlib.suppress(ProcessLookupError):
                if self.pid:
                    processes.kill(self.pid, signal.SIGKILL)  # or it may live, and only its socket be gone
            self.end()
            self.restarts += 1
            try:
                session = self.session()
            except (RuntimeLost, ResourceLimitError) as error:
                why = error
                continue
            if self.total is not None:
                with contextlib.suppress(RuntimeLost):  # it is seen by whoever uses the session next
                    session.resize(0, 0, self.total, [])
            # Its threads may be in callbacks of the user's, which wait for what this one is about to return.
            with contextlib.suppress(ResourceLimitError):  # then it goes when nobody refers to it any more
                start_thread(threads.Thread(target=lost.close, name="aspen-mp lost", daemon=True))
            return session

    def end(self) -> int:
        """Waits for a planner process that was told to end (its socket is closed); insists after a while. Its status as an exit code."""
        pid, self.pid = self.pid, 0
        if not pid:
            return 0
        pidfd = -1
        try:
            pidfd = processes.pidfd_open(pid)
            if not readable([pidfd], 10.0):
                processes.kill(pid, signal.SIGKILL)
            return os.waitstatus_to_exitcode(processes.waitpid(pid, 0)[1])
        except (ChildProcessError, ProcessLookupError):
            return 0
        except OSError as error:
            if pidfd >= 0 or not is_scarce(error):
                raise
            return os.waitstatus_to_exitcode(processes.waitpid(pid, 0)[1])  # no descriptor to wait with: without a limit
        finally:
            if pidfd >= 0:
                descriptors.close(pidfd)


class Reviver(ABC):
    """What a link needs to outlive its planner process: a way to another one, and a thread for what was in flight when the old one went."""

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None
        self._lock = threads.Lock()
        self.given_up = False

    @abstractmethod
    def again(self, lost: Session | None, until: float | None = None) -> Session:
        """In place of a session that is lost, or whose runtime is stopping, another one. `lost`: None where there was none in this process.
        `until`: of `time.monotonic`; None: as long as it takes. Raises RuntimeLost where there is none."""

    def forked(self) -> Reviver | None:
        """What takes its place in a forked child."""
        return None

    def travels(self) -> tuple[str, float] | None:
        """What a pickled handle needs to find another runtime in its turn: name, and seconds to wait for it."""
        return None

    def later(self, action: Callable[[], None]) -> bool:
        """Runs it on the thread, in order. False after `close`. ResourceLimitError where no thread can be had: then it never runs."""
        with self._lock:
            if self.given_up:
                return False
            if self._thread is None:
                from concurrent.futures import ThreadPoolExecutor

                self._thread = ThreadPoolExecutor(1, thread_name_prefix="aspen-mp retry")
            submit(self._thread, action)
            return True

    def close(self) -> None:
        """What waits on the thread still runs, and finds that the runtime is closed."""
        with self._lock:
            self.given_up = True
            if self._thread is not None:
                self._thread.shutdown(wait=False)


class Restarts(Reviver):
    """The runtime is this process's own: it starts another one."""

    def __init__(self, server: OwnServer) -> None:
        super().__init__()
        self._server = server
        self._awaited: Session | None = None  # which is stopping, and whose end is waited for

    def again(self, lost: Session | None, until: float | None = None) -> Session:
        """As `OwnServer.again`; after it has failed, there are no more attempts. A runtime that is stopping is left to end first."""
        assert lost is not None
        self._awaited = lost
        if not lost.lost and not lost.gone.wait(None if until is None else max(0.0, until - clock.monotonic())):
            raise lost.stopping or RuntimeLost("the runtime is stopping")
        if self.given_up:
            raise RuntimeLost("the runtime is closed. Open another one with Runtime")
        try:
            return self._server.again(lost)
        except AspenError:
            self.given_up = True
            raise

    def close(self) -> None:
        """As of every `Reviver`; a wait for the end of a runtime that is stopping ends."""
        super().close()
        if self._awaited is not None:
            self._awaited.gone.set()
