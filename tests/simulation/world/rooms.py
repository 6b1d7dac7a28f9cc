"""The other rooms of `aspen_mp.system` in the simulated world: clock, descriptors, filesystem, processes, signals, randomness."""

from __future__ import annotations

import builtins
import errno
import fcntl as real_fcntl
import importlib
import io
import os
import signal as real_signal
import stat as real_stat
import time as real_time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, NoReturn

from simulation.world.descriptions import EventFd, PidFd, RealFile, Stream, Watch, real_number
from simulation.world.processes import Process
from simulation.world.world import World, never

PAGE = 4096


def clock(world: World) -> dict[str, Any]:
    scheduler = world.scheduler

    def monotonic() -> float:
        return scheduler.now / 1e9

    def time_ns() -> int:
        return scheduler.now + world.wall_offset_ns

    def sleep(seconds: float) -> None:
        world.enter("sleep")
        scheduler.pause(max(1, int(seconds * 1e9)))

    def clock_gettime(which: int) -> float:
        if which < 0:  # a process's CPU time
            pid = ~(which >> 3)
            found = world.processes.get(pid)
            if found is None or found.reaped:
                raise OSError(errno.ESRCH, "No such process")
            return found.cpu_ns / 1e9
        return monotonic()

    return {
        "clock_gettime": clock_gettime,
        "gmtime": lambda seconds=None: real_time.gmtime(time_ns() / 1e9 if seconds is None else seconds),
        "monotonic": monotonic,
        "monotonic_ns": lambda: scheduler.now,
        "perf_counter": monotonic,
        "sleep": sleep,
        "time": lambda: time_ns() / 1e9,
        "time_ns": time_ns,
    }


def descriptors(world: World) -> dict[str, Any]:

    def opened(number: int) -> int:
        """A number that the real system has just given."""
        process = world.here
        if len(process.table) >= process.most_descriptors:
            os.close(number)
            raise OSError(errno.EMFILE, "Too many open files")
        return process.add(RealFile(world), number)

    def real(number: int) -> int:
        """The number, if it is this process's and one of the real system's."""
        world.here.get(number)
        if not real_number(number):
            raise OSError(errno.EINVAL, "Invalid argument")
        return number

    def open(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        world.enter("open")
        world.scarce("a descriptor", errno.EMFILE, errno.ENFILE)
        if dir_fd is not None:
            real(dir_fd)
        return opened(os.open(path, flags, mode, dir_fd=dir_fd))

    def close(number: int) -> None:
        world.enter("close").close(number)

    def dup(number: int) -> int:
        process = world.enter("dup")
        if number <= 2 and number not in process.table:
            number_there = os.open(os.devnull, os.O_RDWR)
            return opened(number_there)
        description = process.get(number)
        world.scarce("a descriptor", errno.EMFILE, errno.ENFILE)
        if len(process.table) >= process.most_descriptors:
            raise OSError(errno.EMFILE, "Too many open files")
        return process.add(description, os.dup(number) if real_number(number) and number > 15 else -1)

    def dup2(number: int, onto: int, inheritable: bool = True) -> int:
        world.enter("dup2")
        return onto  # standard streams only

    def closerange(low: int, high: int) -> None:
        process = world.here
        for number in [number for number in process.table if low <= number < high]:
            process.close(number)

    def eventfd(value: int, flags: int = 0) -> int:
        process = world.enter("eventfd")
        world.scarce("a descriptor", errno.EMFILE, errno.ENFILE)
        return process.add(EventFd(world, value))

    def eventfd_read(number: int) -> int:
        world.enter("eventfd_read")
        event = world.event(number)
        if not event.value:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        return event.take()

    def eventfd_write(number: int, value: int) -> None:
        world.enter("eventfd_write")
        world.event(number).add(value)

    def memfd_create(name: str, flags: int = 0) -> int:
        world.enter("memfd_create")
        world.scarce("a descriptor", errno.EMFILE, errno.ENFILE)
        return opened(os.memfd_create(name, flags))

    def pipe2(flags: int = 0) -> tuple[int, int]:
        process = world.enter("pipe")
        world.scarce("a pipe", errno.EMFILE, errno.ENFILE)
        reader, writer = Stream(world, packets=False, owner=process), Stream(world, packets=False, owner=process)
        reader.connect(writer)
        reader.blocking = writer.blocking = not flags & os.O_NONBLOCK
        return process.add(reader), process.add(writer)

    def read(number: int, n: int) -> bytes:
        process = world.enter("read")
        description = process.get(number)
        if isinstance(description, EventFd):
            if not description.value:
                raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
            return description.take().to_bytes(8, "little")
        if isinstance(description, Stream):
            while (found := description.receive(n, world.partial, rights=False)) is None:
                if not description.blocking:
                    raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
                description.waiters.wait("data of a pipe")
            return found[0]
        if description.kind == "inotify":
            events = description.events
            while not events:
                if not description.blocking:
                    raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
                description.waiters.wait("events of a folder")
            data = b"".join(events)
            events.clear()
            return data
        return os.read(number, n)

    def write(number: int, data: Any) -> int:
        process = world.enter("write")
        if number in {1, 2}:
            return len(data)
        description = process.get(number)
        if isinstance(description, EventFd):
            description.add(int.from_bytes(bytes(data), "little"))
            return 8
        if isinstance(description, Stream):
            while (sent := description.send(bytes(data), [], world.partial)) < 0:
                if not description.blocking:
                    raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
                description.waiters.wait("room in a pipe")
            return sent
        space()
        return os.write(number, data)

    def space() -> None:
        world.scarce("space", errno.ENOSPC)

    def fcntl(number: int, command: int, argument: Any = 0) -> Any:
        process = world.enter("fcntl")
        number = number if isinstance(number, int) else number.fileno()
        description = process.get(number)
        if command in {real_fcntl.F_DUPFD_CLOEXEC, real_fcntl.F_DUPFD}:
            return dup(number)
        if not real_number(number):
            return 0
        found = real_fcntl.fcntl(number, command, argument)
        if command == getattr(real_fcntl, "F_OFD_SETLK", -1):
            description.changed()
        return found

    def flock(number: int, kind: int) -> None:
        world.enter("flock")
        real(number)
        if kind & real_fcntl.LOCK_NB or kind == real_fcntl.LOCK_UN:
            real_fcntl.flock(number, kind)
            if kind == real_fcntl.LOCK_UN:
                world.unlocked()
            return
        while True:
            try:
                return real_fcntl.flock(number, kind | real_fcntl.LOCK_NB)
            except BlockingIOError:
                world.locks.wait("a lock of a file")

    def fstat(number: int) -> Any:
        description = world.enter("fstat").get(number)
        if real_number(number) and isinstance(description, RealFile):
            return os.fstat(number)
        mode = (real_stat.S_IFSOCK if isinstance(description, Stream) else 0) | 0o600
        return os.stat_result((mode, number, 0, 1, 1000, 1000, 0, 0, 0, 0))

    def posix_fallocate(number: int, offset: int, nbytes: int) -> None:
        world.enter("posix_fallocate")
        space()
        os.posix_fallocate(real(number), offset, nbytes)

    def real_call(name: str) -> Callable[..., Any]:
        function = getattr(os, name)

        def call(number: int, *arguments: Any, **named: Any) -> Any:
            world.enter(name)
            if name == "pwrite":
                space()
            return function(real(number), *arguments, **named)

        return call

    def sendfile(out: int, source: int, offset: int, n: int) -> int:
        world.enter("sendfile")
        space()
        return os.sendfile(real(out), real(source), offset, n)

    def set_blocking(number: int, flag: bool) -> None:
        world.here.get(number).blocking = flag

    return {
        "close": close,
        "closerange": closerange,
        "dup": dup,
        "dup2": dup2,
        "eventfd": eventfd,
        "eventfd_read": eventfd_read,
        "eventfd_write": eventfd_write,
        "fcntl": fcntl,
        "flock": flock,
        "fstat": fstat,
        "get_inheritable": lambda number: number <= 2,
        "ioctl": lambda number, command, argument=0: argument,
        "memfd_create": memfd_create,
        "open": open,
        "pipe": lambda: pipe2(),
        "pipe2": pipe2,
        "posix_fallocate": posix_fallocate,
        "read": read,
        "sendfile": sendfile,
        "set_blocking": set_blocking,
        "set_inheritable": lambda number, flag: None,
        "write": write,
        **{name: real_call(name) for name in ("fsync", "ftruncate", "pread", "preadv", "pwrite", "readv")},
    }


def filesystem(world: World) -> dict[str, Any]:
    scheduler = world.scheduler

    def proc(path: str) -> str:
        """What a file below /proc says."""
        parts = path.split("/")
        if path == "/proc/meminfo":
            return f"MemTotal: {world.memory_bytes >> 10} kB\nMemAvailable: {world.memory_available() >> 10} kB\n"
        if path == "/proc/sys/kernel/random/boot_id":
            return "simulated-boot\n"
        if path == "/proc/self/statm":
            return "1000 1000 500 1 0 500 0\n"
        if path == "/proc/self/maps":
            return ""
        if len(parts) == 4 and parts[3] == "stat" and parts[2].isdigit():
            found = world.processes.get(int(parts[2]))
            if found is None or found.reaped:
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
            state = "T" if found.stopped else "Z" if not found.alive else "S"
            fields = [state, *["0"] * 18, str(found.started), *["0"] * 20]
            return f"{found.pid} (python) {' '.join(fields)}\n"
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)

    class File(io.FileIO):
        """A file whose descriptor is one of the world's."""

        def close(self) -> None:
            number = -1 if self.closed else self.fileno()
            super().close()
            if number >= 0 and scheduler.current is not None and number in world.here.table:
                world.here.close(number)

    def open(path: Any, mode: str = "r", *arguments: Any, **named: Any) -> Any:
        world.enter("open")
        if isinstance(path, int):
            world.here.get(path)
            return builtins.open(path, mode, *arguments, **named)
        text = os.fspath(path)
        world.scarce("a descriptor", errno.EMFILE, errno.ENFILE)
        if isinstance(text, str) and text.startswith(("/proc/", "/sys/")):
            if "w" in mode:
                return io.StringIO()
            return io.BytesIO(proc(text).encode()) if "b" in mode else io.StringIO(proc(text))
        if opener := named.get("opener"):
            number = opener(path, os.O_RDONLY | os.O_CLOEXEC)
            raw = File(number, mode.replace("b", ""), closefd=False)
            return raw if named.get("buffering", -1) == 0 else io.BufferedReader(raw)
        return builtins.open(path, mode, *arguments, **named)

    def plain(name: str, *, changes: bool = False) -> Callable[..., Any]:
        function = getattr(os, name)

        def call(path: Any, *arguments: Any, **named: Any) -> Any:
            world.enter(name)
            found = function(path, *arguments, **named)
            if changes:
                world.folder_changed(path, arguments, named)
            return found

        return call

    def listdir(path: Any = ".") -> list[str]:
        process = world.enter("listdir")
        world.scarce("a descriptor", errno.EMFILE, errno.ENFILE)
        if path == "/proc/self/fd":
            return [str(number) for number in sorted(process.table)]
        return sorted(os.listdir(path))

    class Entries:
        """What `os.scandir` gives, in one order on all machines."""

        def __init__(self, path: Any) -> None:
            world.enter("scandir")
            world.scarce("a descriptor", errno.EMFILE, errno.ENFILE)
            with os.scandir(path) as entries:
                self._entries = sorted(entries, key=lambda entry: entry.name)

        def __iter__(self) -> Any:
            return iter(self._entries)

        def __enter__(self) -> Entries:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def close(self) -> None:
            pass

    def statvfs(path: Any) -> Any:
        world.enter("statvfs")
        blocks = world.memory_bytes // PAGE
        return SimpleNamespace(f_bavail=blocks, f_bfree=blocks, f_frsize=PAGE, f_bsize=PAGE, f_blocks=blocks)

    masks: dict[int, int] = {}

    def umask(mask: int) -> int:
        process = world.here
        before, masks[process.pid] = masks.get(process.pid, 0o022), mask
        return before

    return {
        "access": plain("access"),
        "chmod": plain("chmod"),
        "listdir": listdir,
        "makedirs": plain("makedirs"),
        "mkdir": plain("mkdir"),
        "open": open,
        "rename": plain("rename", changes=True),
        "scandir": Entries,
        "stat": plain("stat"),
        "statvfs": statvfs,
        "truncate": plain("truncate"),
        "umask": umask,
        "unlink": plain("unlink", changes=True),
        "utime": plain("utime"),
    }


def processes(world: World) -> dict[str, Any]:
    scheduler = world.scheduler

    def alive(pid: int) -> Process:
        found = world.processes.get(pid)
        if found is None or found.reaped:
            raise ProcessLookupError(errno.ESRCH, "No such process")
        return found

    def fork(child: Callable[[], NoReturn], kind: str = "") -> int:
        parent = world.enter("fork")
        world.scarce("a process", errno.EAGAIN, errno.ENOMEM)
        return begin(parent, parent, kind or world.kind_of(child), child)

    def begin(parent: Process, forker: Process, kind: str, body: Callable[[], Any]) -> int:
        made = world.process(kind, parent)
        made.affinity = set(forker.affinity)
        made.handlers = dict(forker.handlers)
        made.uid = forker.uid
        made.most_descriptors = forker.most_descriptors
        forker.inherit(made)
        if world.globals is not None:
            world.globals.fork(forker, made)
        world.begin(made, body)
        return made.pid

    def posix_spawn(path: str, argv: Sequence[str], env: Any, *, file_actions: Sequence[Any] = (), **_: Any) -> int:
        parent = world.enter("posix_spawn")
        world.scarce("a process", errno.EAGAIN, errno.ENOMEM)
        k = list(argv).index("-c")
        module, arguments = argv[k + 2], list(argv[k + 3 :])
        made = world.process(world.kind_of_module(module), parent)
        made.uid, made.most_descriptors = parent.uid, parent.most_descriptors
        for action in file_actions:
            if action[0] == os.POSIX_SPAWN_DUP2:
                made.add(parent.get(action[1]), action[2])

        def body() -> None:
            importlib.import_module(module).main(arguments)

        world.begin(made, body)
        return made.pid

    def _exit(status: int) -> NoReturn:
        world.here.exit((status & 0xFF) << 8)
        never()

    def kill(pid: int, number: int) -> None:
        world.enter("kill")
        alive(pid).deliver(number)

    def child(pid: int) -> Process:
        found = world.here.children.get(pid)
        if found is None:
            raise ChildProcessError(errno.ECHILD, "No child processes")
        return found

    def reap(process: Process) -> tuple[int, int]:
        process.reaped = True
        world.here.children.pop(process.pid, None)
        return process.pid, process.status

    def waitpid(pid: int, options: int) -> tuple[int, int]:
        process = world.enter("waitpid")
        found = child(pid)
        while found.alive:
            if options & os.WNOHANG:
                return 0, 0
            process.ends.wait(f"the end of {found.name}")
        return reap(found)

    def waitid(kind: int, number: int, options: int) -> Any:
        world.enter("waitid")
        if kind == os.P_PIDFD:
            description = world.here.get(number)
            assert isinstance(description, PidFd)
            found = description.process
        else:
            found = child(number)
        if options & os.WSTOPPED and found.alive and found.stopped and not found.reported_stop:
            found.reported_stop = not options & os.WNOWAIT
            return SimpleNamespace(si_pid=found.pid, si_status=real_signal.SIGSTOP, si_code=os.CLD_STOPPED)
        if options & os.WEXITED and not found.alive:
            if not options & os.WNOWAIT:
                reap(found)
            return SimpleNamespace(si_pid=found.pid, si_status=found.status, si_code=os.CLD_EXITED)
        return None

    def pidfd_open(pid: int, flags: int = 0) -> int:
        process = world.enter("pidfd_open")
        found = alive(pid)
        world.scarce("a descriptor", errno.EMFILE, errno.ENFILE)
        return process.add(PidFd(world, found))

    def sched_setaffinity(pid: int, cpus: Any) -> None:
        found = world.enter("sched_setaffinity") if pid == 0 else alive(pid)
        allowed = set(cpus) & world.online
        if not allowed:
            raise OSError(errno.EINVAL, "Invalid argument")
        found.affinity = allowed

    return {
        "_exit": _exit,
        "fork": fork,
        "getegid": lambda: world.here.uid,
        "geteuid": lambda: world.here.uid,
        "getpid": lambda: world.here.pid if scheduler.current is not None else 1,
        "getppid": lambda: 1 if world.here.parent is None else world.here.parent.pid,
        "getrlimit": lambda which: (world.here.most_descriptors,) * 2,
        "getuid": lambda: world.here.uid,
        "kill": kill,
        "nice": lambda by: by,
        "pidfd_open": pidfd_open,
        "posix_spawn": posix_spawn,
        "register_at_fork": lambda **_: None,
        "sched_getaffinity": lambda pid: set((world.here if pid == 0 else alive(pid)).affinity & world.online),
        "sched_setaffinity": sched_setaffinity,
        "sched_setscheduler": lambda *_: None,
        "setrlimit": lambda which, limits: None,
        "waitid": waitid,
        "waitpid": waitpid,
        "_begin": begin,
    }


def signals(world: World) -> dict[str, Any]:
    def alarm(seconds: int) -> int:
        process = world.here
        if process.alarm is not None:
            process.alarm.cancel()
            process.alarm = None
        if seconds:
            process.alarm = world.scheduler.later(seconds * 1_000_000_000, lambda: process.deliver(real_signal.SIGALRM))
        return 0

    def set_wakeup_fd(number: int, *, warn_on_full_buffer: bool = True) -> int:
        process = world.here
        before, process.wakeup = process.wakeup, number
        return before

    def signal(number: int, handler: Any) -> Any:
        process = world.here
        before = process.handlers.get(number, real_signal.SIG_DFL)
        process.handlers[number] = handler
        return before

    return {"alarm": alarm, "set_wakeup_fd": set_wakeup_fd, "signal": signal}


def watches(world: World) -> dict[str, Any]:
    def init() -> int:
        process = world.enter("inotify_init")
        world.scarce("a descriptor", errno.EMFILE, errno.ENFILE)
        return process.add(Watch(world))

    def add_watch(number: int, folder: Any, events: int) -> None:
        process = world.enter("inotify_add_watch")
        watch = process.get(number)
        assert isinstance(watch, Watch)
        about = os.stat(folder)
        watch.folders[(about.st_dev, about.st_ino)] = len(watch.folders) + 1
        world.watches.add(watch)

    return {"init": init, "add_watch": add_watch}


def randomness(world: World) -> dict[str, Any]:
    return {"urandom": lambda n: world.choices.bytes(n)}


def worker_process(world: World) -> dict[str, Any]:
    """The functions of `aspen_mp.workers.process` that ask the kernel."""

    def die_with(parent: int) -> None:
        process = world.here
        process.dies_with_parent = True
        if process.parent is None or process.parent.pid != parent:
            process.exit(0)
            never()

    def fork_sibling(child: Callable[[], NoReturn]) -> int:
        process = world.enter("fork")
        world.scarce("a process", errno.EAGAIN, errno.ENOMEM)
        parent = process.parent
        if parent is None:
            raise OSError(errno.EINVAL, "Invalid argument")
        begin = processes(world)["_begin"]
        return begin(parent, process, "worker", child)  # type: ignore[no-any-return]

    return {
        "die_with": die_with,
        "fork_sibling": fork_sibling,
        "set_name": lambda name: None,
        "set_oom_score": lambda score: None,
        "one_thread": lambda: None,
        "faults_tell_scarcity": lambda status: None,
        "limit_memory": lambda nbytes: None,
    }
