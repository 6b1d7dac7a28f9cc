"""Cores that are truly slower for a while: unlike cores on a machine whose cores are alike.

    with slow_core(1, 0.5) as core:
        print(core.speed)        # what is really left of CPU 1, measured, here about 0.5

A process of our own is pinned to the core and takes a share of it, so that everything there is slower, whoever started it. The ways
(`METHODS`):

- `fifo`: the load runs under SCHED_FIFO, above all ordinary processes, for the same share of every period. A period is `PERIOD_US`, or
  longer where so short a one cannot be had. Switching takes its part of a period, too. So the share is tried and put right until the rest
  of the core is as wanted. Emulates well: a core with a lower clock. Whatever takes longer than some periods takes longer by the same
  factor, and nobody can win the time back. Emulates badly: anything shorter than a period, which meets either the whole core or none of
  it. Caches and memory bandwidth keep the speed of the fast core (a slower clock would leave more bandwidth for each cycle). Needs
  CAP_SYS_NICE; the kernel lets such processes have 95% of a core at most, unless /proc/sys/kernel/sched_rt_runtime_us says otherwise.
- `quota`: the load runs in a control group of its own, with the greatest weight. Its quota of CPU time for a period of `QUOTA_PERIOD_US`
  ends after its share. Emulates well: a core of which a hypervisor or a container gives only part. Emulates badly: a slower clock, because
  the core is away for milliseconds at a time. It is less exact than `fifo`, since whoever runs when a period begins may finish his slice
  first. Needs a `cpu` controller in which this user may make groups.
- `nice`: the load is an ordinary process whose weight (nice value) is to give it its share. Emulates well: a core that somebody else uses,
  too. Emulates badly: any steady speed. The scheduler hands out slices of milliseconds and favours who wakes up over who computes. So a
  process that sleeps often gets more than its share. Where sessions have groups of their own (sched_autogroup) weights of different
  sessions do not compare. A weight above the ordinary one needs CAP_SYS_NICE; without it several loads stand in for one.

Nothing is left behind. The load is a child of a keeper process, which ends it (and takes its control group away) when the context is left.
It also does so when the process that entered it is gone, however it ended. The load ends with its keeper (then an empty control group
stays).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final, Literal, NoReturn, cast

from aspen_mp.control.wire import python

Method = Literal["fifo", "quota", "nice"]
METHODS: Final[tuple[Method, ...]] = ("fifo", "quota", "nice")
"""Best first."""
PERIOD_US: Final = 100
MOST_PERIODS: Final = 8
"""The most periods of `PERIOD_US` in a period."""
CLOSE: Final = 0.03
"""The speed of a core is near enough to the wanted one when it differs by no more than this share of it."""
QUOTA_PERIOD_US: Final = 20_000
FIFO_PRIORITY: Final = 20
LEAST, MOST = 0.06, 0.98
"""Speeds that can be emulated."""
_SLICES, _TRIAL_SLICES, _SLICE_S = 15, 5, 0.02
_TRIALS: Final = 5
_LEAST_BUSY, _MOST_BUSY = 0.04, 0.94
_START_S: Final = 30.0
_LOOPS: Final = 500


class CannotSlow(Exception):
    """This process may not slow a core that way; the message says why."""


@dataclass(slots=True)
class SlowCore:
    """A core that is being slowed. `speed`: what was left of it when the load had begun, as a share, measured by a loop on that core;
    `wanted`: what was asked for; `pids`: of the loads."""

    cpu: int
    wanted: float
    method: Method
    speed: float
    keeper: int
    pids: list[int] = field(default_factory=list)

    def load_seconds(self) -> float:
        """CPU time that the load has taken so far."""
        return sum(_cpu_seconds(pid) for pid in self.pids)


@contextlib.contextmanager
def slow_core(
    cpu: int, speed: float = 0.5, method: Method | None = None, *, say: Callable[[str], object] = lambda _: None
) -> Iterator[SlowCore]:
    """Makes a core about `speed` times as fast as it is. `method`: None takes the best that this process may use; `say` is told why others
    were left out. ValueError for a speed, CPU or method that cannot be had, `CannotSlow` where no method is allowed."""
    if not LEAST <= speed <= MOST:
        raise ValueError(f"a core can be slowed to between {LEAST} and {MOST} of its speed, not {speed}")
    if cpu not in os.sched_getaffinity(0):
        raise ValueError(f"this process may not use CPU {cpu}. Give another one")
    if method is not None and method not in METHODS:
        raise ValueError(f"there is no method {method!r}. Give one of {', '.join(METHODS)}")
    why: list[str] = []
    for candidate in METHODS if method is None else (method,):
        keeper = _Keeper(cpu, speed, candidate)
        try:
            core = keeper.begin()
        except CannotSlow as error:
            keeper.end()
            why.append(str(error))
            say(str(error))
            continue
        except BaseException:
            keeper.end()
            raise
        try:
            yield core
        finally:
            keeper.end()
        return
    raise CannotSlow("; ".join(why))


class _Keeper:
    """The other side of the process that runs `keep`."""

    def __init__(self, cpu: int, speed: float, method: Method) -> None:
        self._cpu, self._speed, self._method = cpu, speed, method
        command = python.command("aspen_mp.bench.slow", str(os.getpid()), str(cpu), str(speed), method, function="keep")
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def begin(self) -> SlowCore:
        out = cast("IO[bytes]", self._process.stdout)
        if not select.select([out], [], [], _START_S)[0]:
            raise CannotSlow(f"{self._method}: its process said nothing for {_START_S:g} s")
        line = out.readline()
        if not line:
            raise CannotSlow(f"{self._method}: its process ended with status {self._process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise CannotSlow(f"{self._method}: {answer['error']}")
        return SlowCore(self._cpu, self._speed, self._method, answer["speed"], self._process.pid, answer["pids"])

    def end(self) -> None:
        """Returns when the core is free again."""
        cast("IO[bytes]", self._process.stdin).close()
        self._process.wait()
        cast("IO[bytes]", self._process.stdout).close()


# ----------------------------------------------------------------------------------------------------------------- the keeper's process


def keep() -> None:
    """The whole life of a keeper: it slows a core until its standard input closes or the process that wanted it is gone."""
    parent, cpu = int(sys.argv[1]), int(sys.argv[2])
    speed, method = float(sys.argv[3]), cast("Method", sys.argv[4])
    for number in (signal.SIGINT, signal.SIGHUP):  # a terminal sends these to all at once; the context's end is what counts
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    pids: list[int] = []
    try:
        watch = os.pidfd_open(parent)
    except OSError:
        return
    if os.getppid() != parent:
        return
    try:
        os.sched_setaffinity(0, {cpu})
        with _group(cpu, speed) if method == "quota" else contextlib.nullcontext() as group:
            try:
                _begin(speed, method, group, pids)
                speed_left = _left(pids, _SLICES)
                os.sched_setaffinity(0, os.sched_getaffinity(parent))
                _answer(speed=speed_left, pids=pids)
                select.select([0, watch], [], [])
            finally:
                _end(pids)
    except OSError as error:
        with suppress(OSError):
            _answer(error=str(error))


def _answer(**what: object) -> None:
    os.write(1, json.dumps(what).encode() + b"\n")


def _begin(speed: float, method: Method, group: Path | None, pids: list[int]) -> None:
    """Forks the loads on the CPU that this process is on, and notes them in `pids`. OSError where that is not allowed."""
    if method == "fifo":
        _begin_fifo(speed, pids)
        return
    if method == "quota":
        assert group is not None
        pids.append(_fork(lambda: _join(group), _burn))
        return
    weight = (1 - speed) / speed  # in ordinary processes
    nice = max(-20, min(19, round(-math.log(weight) / math.log(1.25))))
    try:
        pids.append(_fork(lambda: os.setpriority(os.PRIO_PROCESS, 0, nice), _burn))
    except PermissionError:
        if nice >= 0:
            raise
        pids += [_fork(lambda: None, _burn) for _ in range(max(1, round(weight)))]


def _begin_fifo(speed: float, pids: list[int]) -> None:
    """Tries how much of a period leaves `speed` of the core. The load is forked anew for each trial."""
    busy, period = 1 - speed, PERIOD_US * 1e-6
    for trial in range(_TRIALS):
        pids.append(_fork(lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(FIFO_PRIORITY)), lambda: _duty(busy, period)))  # noqa: B023
        if trial == _TRIALS - 1:
            return
        too_little = speed - _left(pids, _TRIAL_SLICES)
        if abs(too_little) <= CLOSE * speed:
            return
        if busy - too_little >= min(_LEAST_BUSY, (1 - speed) / 2):
            busy = min(busy - too_little, _MOST_BUSY)  # beyond, the kernel stops it for a while
        elif period < MOST_PERIODS * PERIOD_US * 1e-6:  # switching alone takes more than is to be taken
            busy, period = 1 - speed, 2 * period
        else:
            return
        _end(pids)


def _end(pids: list[int]) -> None:
    while pids:
        os.kill(pids[-1], signal.SIGKILL)
        os.waitpid(pids.pop(), 0)


def _fork(prepare: Callable[[], object], burn: Callable[[], NoReturn]) -> int:
    """A load that ends with this process. OSError if `prepare` fails in it."""
    keeper = os.getpid()
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            _die_with(keeper)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.close(0)
            os.close(1)
            try:
                prepare()
            except OSError as error:
                os.write(writer, str(error.errno or 1).encode())
                os._exit(1)
            os.close(writer)
            os.close(reader)
            burn()
        finally:
            os._exit(1)
    os.close(writer)
    with os.fdopen(reader, "rb") as told:
        number = told.read()
    if number:
        os.waitpid(pid, 0)
        raise OSError(int(number), os.strerror(int(number)))
    return pid


def _die_with(keeper: int) -> None:
    """SIGKILL for this process when the keeper ends."""
    if ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL, 0, 0, 0):  # PR_SET_PDEATHSIG
        raise OSError(ctypes.get_errno(), "prctl")
    if os.getppid() != keeper:
        os._exit(0)


def _duty(share: float, period: float) -> NoReturn:
    """Takes `share` of every period: from its beginning until that much of it is over, whatever the way there cost."""
    clock, sleep = time.monotonic, time.sleep
    busy = share * period
    begin = clock()
    while True:
        end = begin + busy
        while clock() < end:
            pass
        begin += period
        left = begin - clock()
        if left < 0:  # the machine, or this process, stood still: what was missed is not taken all at once
            begin += math.ceil(-left / period) * period
            left = begin - clock()
        sleep(max(left, 0.0))


def _burn() -> NoReturn:
    while True:
        pass


# --------------------------------------------------------------------------------------------------------------------------- what is left


def _loop() -> None:
    for _ in range(_LOOPS):
        pass


def _rate(seconds: float) -> float:
    """Loops a second, for `seconds`."""
    begin, n = time.perf_counter(), 0
    while (took := time.perf_counter() - begin) < seconds:
        _loop()
        n += 1
    return n / took


def _left(pids: list[int], slices: int) -> float:
    """The speed of this core with the loads as a share of that without. It is the median of pairs of slices that follow each other, because
    the machine's own speed changes, too."""
    pairs = []
    for _ in range(slices):
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        alone = _rate(_SLICE_S)
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        pairs.append(_rate(2 * _SLICE_S) / alone)
    return sorted(pairs)[slices // 2]


def _cpu_seconds(pid: int) -> float:
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
    except (OSError, IndexError):
        return 0.0


# ------------------------------------------------------------------------------------------------------------------------- control groups


@contextlib.contextmanager
def _group(cpu: int, speed: float) -> Iterator[Path]:
    """A control group that may use what is to be taken of the core. OSError where it cannot be made."""
    quota = round((1 - speed) * QUOTA_PERIOD_US)
    old = Path("/sys/fs/cgroup/cpu")
    above = old if old.is_dir() else _own_group()
    group = above / f"aspen-mp-slow-{cpu}-{os.getpid()}"
    group.mkdir()
    try:
        if above == old:
            (group / "cpu.shares").write_text("262144")
            (group / "cpu.cfs_period_us").write_text(str(QUOTA_PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(quota))
        else:
            (group / "cpu.max").write_text(f"{quota} {QUOTA_PERIOD_US}")
            (group / "cpu.weight").write_text("10000")
        yield group
    finally:
        deadline = time.monotonic() + 1
        while True:
            try:
                group.rmdir()  # its process has ended, but the kernel may still be counting it
                break
            except OSError:
                if time.monotonic() > deadline:
                    break
                time.sleep(0.001)


def _own_group() -> Path:
    """The folder of this process's group in the one hierarchy of today."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        if line.startswith("0::"):
            return Path("/sys/fs/cgroup") / line[3:].lstrip("/")
    raise OSError("this machine has no control groups")


def _join(group: Path) -> None:
    (group / "cgroup.procs").write_text(str(os.getpid()))
