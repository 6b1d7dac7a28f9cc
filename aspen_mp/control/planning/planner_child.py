"""Reading and planning a model in a process of its own, forked from the planner process.

The fork is safe because the planner process has one thread, and quick because it has imported the planner already. A model file that
crashes the parser, runs out of memory or hangs costs its own load alone: the child is killed and the answer is a typed error. The child
stays for some seconds after a job, so that loading a model and planning its first shapes read the file once.
"""

from __future__ import annotations

import os
import signal
import socket
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from aspen_mp.control.planning.plan_cache import File, WeightFile, plan_key
from aspen_mp.control.planning.plan_checks import AT_ONCE, Check, check, copied
from aspen_mp.control.planning.shape_buckets import ServedBucket, WantedBucket
from aspen_mp.control.wire import protocol
from aspen_mp.control.wire.event_loop import PRIORITY_JOB, Loop, Timer
from aspen_mp.control.wire.forked import fork
from aspen_mp.control.wire.protocol import Bind, Capacity, Slot, ValueInfo, make_error
from aspen_mp.planner.job.options import Keeping
from aspen_mp.shm.errors import AspenError, PlanError, ResourceLimitError
from aspen_mp.shm.scarcity import is_scarce, reason
from aspen_mp.shm.segments import Segment, format_bytes, memory_available
from aspen_mp.system import clock, processes, sockets
from aspen_mp.workers import process

IDLE_S: Final = 5.0
SAID_S: Final = 0.1
"""A child says how far it is no sooner after the last time."""
MAX_FRAME: Final = 256 << 20
NO_MEMORY: Final = 127
"""Status of a child that had no memory left: the C library's own way out when there is none for its data, and ours after a fault."""
WeightDirectory = dict[str, tuple[int, int]]
"""Weight key → (number of the model's weight segment, byte offset in it)."""


class Inspect(protocol.Message):
    """Read the model and check it."""


class PlanStage(protocol.Message):
    stages: list[list[Bind]]
    capacities: list[Capacity]
    speeds: list[float]
    """Of the cores that it is for, relative to the fastest."""
    rates: str = ""
    """The name of the built-in rates that it is made with (`local_rates.planning`)."""
    search: bool = True
    """Whether its tiles are searched, as the model's options say."""
    recurs: bool = True
    """Whether requests are likely to have these shapes again, as a model's first ones. Then it has as many instances as the model."""
    keep: bool = True
    """Whether the plan cache keeps it."""
    spares: list[int] = msgspec.field(default_factory=list)
    """Bytes of arenas of plans that are gone, of which it may have one."""
    longest_ms: float = 0.0
    """How long its tiles are to be at most, where the model's options do not say; 0: as long as is best."""
    bucket: WantedBucket | None = None
    """The bucket that the plan is to be for, or for a part of it. If the stage has no such plan, it is for these shapes alone."""
    within: WantedBucket | None = None
    """The bucket whose plan serves these shapes until now: results keep their bits."""
    stream: Keeping = ""
    """The purpose of kept activations, see `protocol.MakePlan`."""
    stream_bytes: int = 0
    """The most memory for them, see there."""

    def key(self, build: str, digest: bytes, options: Sequence[Any]) -> str:
        """The name of the plan in the plan cache."""
        options = [*options, self.stream, self.stream_bytes] if self.stream else options
        return plan_key(build, digest, options, self.stages, self.capacities, self.speeds, self.rates, self.bucket, self.within)


class JobProgress(protocol.Message):
    step: str
    done: int
    total: int


class JobFailed(protocol.Message):
    error: str
    text: str


class JobSegment(protocol.Message):
    """A segment that belongs to the result; its descriptor comes along. Weight segments come in the order of their numbers."""

    role: str
    nbytes: int


class Inspected(protocol.Message):
    """`digest`: SHA-256 of the model's bytes where it did not come from a file, which tells equal models of several clients. `external`:
    the files of its external data."""

    name: str
    digest: bytes
    inputs: list[ValueInfo]
    outputs: list[ValueInfo]
    external: list[File]


class StagePlanned(protocol.Message):
    """`weights`: the numbers of the model's weight segments, for what the plan's operands call WEIGHTS + 0, 1, … `packed`:
    the keys that were packed for this plan. `spare`: which of the job's spare arenas is its own, instead of one among the segments; -1
    for none. `served_bucket`: of a plan for a shape bucket; its slots are those where it is largest; `no_bucket`: there is none for any
    bucket of the length; `why`: the plan does not serve the wanted bucket. `work_ns`: of all tiles, as expected. `digest`: of the
    model's contents, `files`: what new weight segments are called in the plan cache, by number; both only where there is a cache."""

    region: int
    inputs: list[Slot]
    outputs: list[Slot]
    needs_values: list[str]
    last: bool
    dynamic: bool
    weights: list[int]
    packed: list[tuple[str, int, int]]
    digest: bytes = b""
    files: list[tuple[int, WeightFile]] = msgspec.field(default_factory=list)
    spare: int = -1
    served_bucket: ServedBucket | None = None
    no_bucket: bool = False
    why: str = ""
    work_ns: float = 0.0


ToChild = Inspect | PlanStage
FromChild = JobProgress | JobFailed | JobSegment | Inspected | StagePlanned
_to_child = msgspec.msgpack.Decoder(ToChild)
_from_child = msgspec.msgpack.Decoder(FromChild)
Received = tuple[str, int, int]
"""Role, bytes and descriptor of a segment that a child made."""


@dataclass(slots=True)
class Job:
    """What to ask the child, and whom to tell. `on_done(result, segments)` owns the segments' descriptors, and `checked`: the plan among
    them, checked, in a segment of our own."""

    message: Inspect | PlanStage
    on_done: Callable[[Inspected | StagePlanned, list[Received]], None]
    on_error: Callable[[AspenError], None]
    on_progress: Callable[[JobProgress], None]
    checked: Segment | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """Of a planning child. `patience_s`: how long it may get no further while it has a job. `memory_bytes`: of memory of its own, besides
    what it shares with the planner process; 0: what is free when it begins. `nice`: how far it stands behind other processes."""

    patience_s: float = 120.0
    memory_bytes: int = 0
    nice: int = 0


def _nothing(sock: sockets.socket) -> None:
    """What a child of a model that has gone would do."""


class PlannerChild:
    """Runs the jobs of one model, one after the other. `serve(sock)` is what the child does with its end of the socket."""

    def __init__(
        self,
        loop: Loop,
        name: str,
        serve: Callable[[sockets.socket], None],
        keep: tuple[int, ...] = (),
        prepare: Callable[[], None] = lambda: None,
        limits: Limits = Limits(),
    ) -> None:
        """`keep`: descriptors that the child needs besides its socket. `prepare()` comes before each fork."""
        self._limits = limits
        self._overdue: Timer | None = None
        self._prepare = prepare
        self._loop = loop
        self._name = name
        self._serve = serve
        self._keep = keep
        self._waiting: deque[Job] = deque()
        self._current: Job | None = None
        self._segments: list[Received] = []
        self._sock: sockets.socket | None = None
        self._out = memoryview(b"")
        self._pid = 0
        self._idle: Timer | None = None
        self._check: Check | None = None
        self._checked: Segment | None = None
        self._refused: AspenError | None = None
        self.doing: JobProgress | None = None
        """What it last said of its job; None while it has none."""
        self._receiver: protocol.Receiver[FromChild] = protocol.Receiver(_from_child, MAX_FRAME)

    @property
    def busy(self) -> bool:
        return self._current is not None

    def renew(self) -> bool:
        """Lets an idle child go, because what it knows of the model is no longer all; the next job forks another. False: it is busy."""
        if self.busy:
            return False
        self._end(kill=False)
        return True

    def submit(self, job: Job) -> None:
        self._waiting.append(job)
        if self._current is None:
            self._next()

    def close(self, error: AspenError | None = None) -> None:
        """Kills the child; jobs that have not been answered fail with `error`."""
        self._end(kill=True)
        jobs = ([self._current] if self._current else []) + list(self._waiting)
        self._current = self.doing = None
        self._waiting.clear()
        for job in jobs:
            job.on_error(error or AspenError("loading was cancelled"))

    def retire(self) -> None:
        """`close` for good: nothing refers to the model any more that refers to this, or memory of models that come and go would grow until
        the garbage collector looks at everything, which in a process with little to do it does after hundreds of them."""
        self.close()
        self._serve = _nothing

    def _next(self) -> None:
        if not self._waiting:
            self._idle = self._loop.later(IDLE_S, lambda: self._end(kill=False))
            return
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        self._current, self.doing = self._waiting.popleft(), None
        try:
            if self._sock is None:
                self._start()
            self._out = memoryview(protocol.encode(self._current.message, limit=MAX_FRAME))
        except (OSError, MemoryError, ImportError) as error:
            self._died(f"could not start: {reason(error)}", ResourceLimitError if is_scarce(error) else PlanError)
            return
        self._heard()
        self._send()

    def _send(self) -> None:
        """As much of the job as the child's socket takes now: a child that reads nothing must not keep the planner process waiting."""
        assert self._sock is not None
        try:
            while self._out:
                self._out = self._out[self._sock.send(self._out, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL) :]
        except BlockingIOError:
            self._loop.watch_writable(self._sock.fileno(), self._send)
            return
        except ConnectionError:
            self._died("")  # it ended before it read the job: how, its status says
            return
        except OSError as error:
            self._died(reason(error), ResourceLimitError if is_scarce(error) else PlanError)
            return
        self._loop.watch_writable(self._sock.fileno(), None)

    def _start(self) -> None:
        self._prepare()
        ours, theirs = sockets.socketpair()
        process.flush_output()
        keep = {theirs.fileno(), *self._keep}
        try:
            self._pid = fork(lambda: _child(theirs, self._name, self._serve, self._limits), "aspen-plan", keep=keep, oom_score=900)
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        self._sock = ours
        self._loop.watch(ours.fileno(), PRIORITY_JOB, self._readable)

    def _readable(self) -> None:
        assert self._sock is not None
        try:
            if not self._receiver.read(self._sock):
                self._died("")
                return
            moved = []
            for message, fds in self._receiver.messages():
                moved.append(message != self.doing)  # who says the same again gets no further
                self._handle(message, fds)
            if not moved or any(moved):  # without any: a part of a long one
                self._heard()
        except ConnectionError:
            self._died("")
        except (AspenError, OSError, MemoryError) as error:
            lacking = isinstance(error, ResourceLimitError) or is_scarce(error)
            self._died(reason(error), ResourceLimitError if lacking else PlanError)

    def _heard(self) -> None:
        """The child has been given a job, or has got further: its time begins anew."""
        if self._overdue is not None:
            self._overdue.cancel()
        self._overdue = self._loop.later(self._limits.patience_s, self._stuck) if self._current is not None else None

    def _stuck(self) -> None:
        self._overdue = None
        self._died(
            f"it has been stuck for {self._limits.patience_s:g} s{_where(self.doing)} and was ended; "
            "if the model is merely large, raise patience_s in section [models] of the profile"
        )

    def _handle(self, message: FromChild, fds: list[int]) -> None:
        job = self._current
        if job is None or self._check is not None:
            protocol.close_all(fds)
            return
        match message:
            case JobProgress():
                self.doing = message
                job.on_progress(message)
            case JobSegment():
                first = message.role == "plan" and all(role != "plan" for role, _, _ in self._segments)
                self._segments += [(message.role, message.nbytes, fd) for fd in fds]
                if first and fds and message.nbytes <= AT_ONCE:
                    self._check_at_once(fds[0], message.nbytes)
            case JobFailed():
                self._failed(job, make_error(message.error, message.text))
            case Inspected() | StagePlanned():
                sent = next((item for item in self._segments if item[0] == "plan"), None)
                if self._refused is not None:
                    self._failed(job, self._refused)
                elif isinstance(message, StagePlanned) and sent is not None and sent[1] > AT_ONCE:
                    self._check_first(job, message, sent)
                else:
                    self._done(job, message)

    def _check_at_once(self, fd: int, nbytes: int) -> None:
        """While the child does what else there is to do. A plan that is refused is told of when the job has been done."""
        try:
            self._checked = copied(fd, nbytes)
            check(self._checked)
        except AspenError as error:
            self._refused = error

    def _failed(self, job: Job, error: AspenError) -> None:
        self._drop_segments()
        self._current = self.doing = None
        self._heard()
        job.on_error(error)
        self._next_after(job)

    def _check_first(self, job: Job, result: StagePlanned, sent: Received) -> None:
        """The job lasts until its plan has been checked: what the child does next builds on that."""

        def checked(error: AspenError | None) -> None:
            self._check = None
            if error is None:
                job.checked = segment
                self._done(job, result)
                return
            segment.close()
            self._failed(job, error)

        segment = copied(sent[2], sent[1])
        try:
            self._prepare()
            self._check = Check(self._loop, segment, checked)
        except BaseException:
            segment.close()
            raise
        self.doing = JobProgress("checking the plan", 0, 1)
        job.on_progress(self.doing)

    def _done(self, job: Job, result: Inspected | StagePlanned) -> None:
        segments, self._segments = self._segments, []
        if isinstance(result, StagePlanned) and self._checked is not None:
            job.checked, self._checked = self._checked, None
        self._drop_segments()
        self._current = self.doing = None
        self._heard()
        job.on_done(result, segments)
        self._next_after(job)

    def _next_after(self, job: Job) -> None:
        if self._current is None and self._idle is None:
            self._next()

    def _died(self, why: str, kind: type[AspenError] = PlanError) -> None:
        """`why` empty: its status says how the child ended. That is waited for, but not here: giving back a large model's memory takes
        time."""
        job = self._current
        if job is not None and not why:
            self._end(kill=False, then=lambda status: self._answer_death(job, _death(self._name, status)))
            self._heard()
            return
        self._end(kill=bool(why))
        self._answer_death(job, kind(f"model {self._name!r}: its planning process failed: {why}"))

    def _answer_death(self, job: Job | None, error: AspenError) -> None:
        if job is None or self._current is not job:
            return
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None
        self._current = self.doing = None
        job.on_error(error)
        self._next_after(job)

    def _end(self, *, kill: bool, then: Callable[[int], object] | None = None) -> None:
        """Closes the socket (at which an idle child leaves) and has the child reaped; `then(status)` follows."""
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None
        if self._check is not None:
            self._check.close()
            self._check = None
        self._drop_segments()
        self._receiver.close()
        self._out = memoryview(b"")
        if self._sock is None:
            return
        self._loop.unwatch(self._sock.fileno())
        self._sock.close()
        self._sock = None
        pid, self._pid = self._pid, 0
        if kill:
            with suppress(ProcessLookupError):
                processes.kill(pid, signal.SIGKILL)
        if pid:
            self._loop.reap(pid, then)
        elif then is not None:
            then(0)

    def _drop_segments(self) -> None:
        protocol.close_all([fd for _, _, fd in self._segments])
        self._segments, self._refused = [], None
        if self._checked is not None:
            self._checked.close()
            self._checked = None


def _where(doing: JobProgress | None) -> str:
    return "" if doing is None else f" at {doing.step!r}, {doing.done} of {doing.total} done,"


def _too_large(error: MemoryError) -> str:
    detail = f" ({error})" if str(error) else ""
    return (
        f"reading and planning the model takes more memory than its planning process may have, {format_bytes(process.memory_limit())}"
        f"{detail}; memory_mib in section [models] of the profile sets that limit, which is what is free unless it says otherwise"
    )


def _death(name: str, status: int) -> AspenError:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        text = f"model {name!r}: its planning process was ended by {signal.Signals(number).name}"
        if number == signal.SIGKILL:
            return ResourceLimitError(f"{text}, most likely because memory ran out")
        if number == signal.SIGBUS:
            return PlanError(f"{text}, most likely because a file of the model was cut short while it was being read; load it again")
        return PlanError(text)
    if os.waitstatus_to_exitcode(status) == NO_MEMORY:
        return ResourceLimitError(
            f"model {name!r}: its planning process had no more memory; see memory_mib in section [models] of the profile"
        )
    return PlanError(f"model {name!r}: its planning process ended with status {os.waitstatus_to_exitcode(status)}")


class ChildSide:
    """The child's end: receives jobs, sends progress, segments and results."""

    def __init__(self, sock: sockets.socket) -> None:
        self._sock = sock
        self._told = 0.0
        self._receiver: protocol.Receiver[ToChild] = protocol.Receiver(_to_child, MAX_FRAME)

    def run(self, do: Callable[[Inspect | PlanStage, ChildSide], Inspected | StagePlanned]) -> None:
        """Does jobs until the other end hangs up."""
        while self._receiver.read(self._sock):
            for message, _ in self._receiver.messages():
                try:
                    answer: protocol.Message = do(message, self)
                except AspenError as error:
                    answer = JobFailed(type(error).__name__, str(error))
                except MemoryError as error:
                    answer = JobFailed("ResourceLimitError", _too_large(error))
                except SystemError as error:
                    if "without setting an exception" not in str(error):
                        raise
                    answer = JobFailed("ResourceLimitError", _too_large(MemoryError()))  # C code that found no memory says no more
                except OSError as error:
                    if not is_scarce(error):
                        raise
                    answer = JobFailed("ResourceLimitError", f"the planning process lacks descriptors or memory: {reason(error)}")
                except RecursionError:
                    answer = JobFailed("ModelParseError", "the model's sub-graphs are nested too deeply")
                self.send(answer)

    def send(self, message: protocol.Message, fds: tuple[int, ...] = ()) -> None:
        data = memoryview(protocol.encode(message, len(fds), limit=MAX_FRAME))
        while data:
            data = data[protocol.send_part(self._sock, data, fds) :]
            fds = ()

    def progress(self, step: str, done: int, total: int) -> None:
        self._told = clock.monotonic()
        self.send(JobProgress(step, done, total))

    def further(self, step: str, done: int, total: int) -> None:
        """As `progress`, now and then: of what is said often, and quickly, nobody needs all."""
        if clock.monotonic() - self._told >= SAID_S:
            self.progress(step, done, total)


def _child(sock: sockets.socket, name: str, serve: Callable[[sockets.socket], None], limits: Limits) -> int:
    """In the forked process."""
    try:
        processes.nice(limits.nice)
        process.limit_memory(limits.memory_bytes or memory_available())
        process.faults_tell_scarcity(NO_MEMORY)
        serve(sock)
        return 0
    except BaseException as error:  # the last thing that can be said about it
        with suppress(BaseException):
            ChildSide(sock).send(JobFailed("PlanError", f"model {name!r}: internal error: {type(error).__name__}: {error}"))
            import traceback

            traceback.print_exc()
            process.flush_output()
        return 1
