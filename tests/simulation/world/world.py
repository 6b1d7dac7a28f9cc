"""The simulated world: one seed, one clock, its processes, and what they share."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from simulation.world import descriptions
from simulation.world.choices import Choices
from simulation.world.descriptions import Description, EventFd, Listener, Stream, Watch, real_number
from simulation.world.history import History
from simulation.world.processes import Process
from simulation.world.scheduler import Scheduler, Task, Waiters

START_NS = {"planner": (20_000_000, 300_000_000), "host": (1, 1_000), "client": (1, 1_000_000_000)}
"""How long a process takes to begin, by its kind."""
CALL_NS = 200
"""How long a call of the system takes."""
LEAST = 16
"""Files of the real system have numbers above this one."""


class World:
    """Attributes:
    real: How many tables hold each number of the real system.
    """

    def __init__(self, choices: Choices, history: History, clock: Callable[[int], object] = lambda now: None, cpus: int = 4) -> None:
        self.choices = choices
        self.history = history
        self.scheduler = Scheduler(choices, clock)
        self.scheduler.on_switch = self._switched
        history.clock = lambda: self.scheduler.now
        self.cpus = cpus
        self.processes: dict[int, Process] = {}
        self.real: dict[int, int] = {}
        self.most_descriptors = 4096
        self.slowness: dict[str, int] = {}
        self.folder = Path(tempfile.mkdtemp(prefix="aspen-sim-"))
        history.hidden = str(self.folder)
        self.violations: list[str] = []
        self.memory_bytes = 8 << 30
        self.missing: set[int] = set()
        """Cores that no process may use now."""
        self.watches: set[Watch] = set()
        self.locks = Waiters(self.scheduler)
        self.names: dict[object, Listener] = {}
        self.wall_offset_ns = 1_600_000_000_000_000_000
        self.on_violation: Callable[[str], object] = lambda text: None
        self.globals: Any = None
        self.native: Any = None
        self._counts: Counter[str] = Counter()
        self.at_call: Callable[[Process, str], None] | None = None
        """Called at each call of the system, with its name, where events come at certain calls."""
        self.renamed: dict[str, int] = {}
        """Names that files have got, in their order: names themselves may tell of versions, folders and stamps of this machine."""
        self._pid = 1000
        self._last: Process | None = None
        while os.open(os.devnull, os.O_RDWR) < LEAST:  # low numbers are those of children's sockets
            pass

    # ---- processes

    def count(self, kind: str) -> int:
        self._counts[kind] += 1
        return self._counts[kind]

    def process(self, kind: str, parent: Process | None = None) -> Process:
        self._pid += 1
        made = Process(self, self._pid, parent, kind)
        self.processes[made.pid] = made
        if parent is not None:
            parent.children[made.pid] = made
        return made

    def start(self, kind: str, body: Callable[[], object], parent: Process | None = None) -> Process:
        """A process that runs `body` and ends with it."""
        made = self.process(kind, parent)
        self.begin(made, body)
        return made

    def begin(self, process: Process, body: Callable[[], object]) -> None:
        self.history.note(f"{process.name} begins")
        low, high = START_NS.get(process.kind, (50_000, 3_000_000))
        process.main = self.scheduler.start("main", process, lambda: self._live(process, body), self.choices.between(low, high))

    def _live(self, process: Process, body: Callable[[], object]) -> None:
        status = 0
        try:
            body()
        except SystemExit as error:
            status = (error.code if isinstance(error.code, int) else 1) << 8
        except BaseException as error:
            self.crashed(process, "its main thread", error)
            status = 1 << 8
        process.exit(status)

    def crashed(self, process: Process, where: str, error: BaseException) -> None:
        """An error has left a thread."""
        import traceback

        text = "".join(traceback.format_exception(error))
        self.violation(f"{process.name}: {where} ended with {type(error).__name__}: {error}\n{text}")

    @property
    def here(self) -> Process:
        """The process that runs."""
        task = self.scheduler.current
        assert task is not None, "no simulated process runs"
        return task.process

    @property
    def task(self) -> Task:
        assert self.scheduler.current is not None
        return self.scheduler.current

    def ended(self, process: Process) -> None:
        """Called by a process at its end."""
        if self.native is not None:
            self.native.ended(process)

    def alive(self, kind: str) -> list[Process]:
        return [process for process in self.processes.values() if process.alive and process.kind == kind]

    def _switched(self, task: Task) -> None:
        if task.process is not self._last:
            if self.globals is not None:
                self.globals.swap(self._last, task.process)
            self._last = task.process

    # ---- a call of the system

    def enter(self, name: str) -> Process:
        """Every call of a simulated process passes here: it may lose its turn, be stopped or killed."""
        process = self.here
        choices = self.choices
        self.scheduler.advance(CALL_NS)
        if self.at_call is not None and not choices.quiet:
            self.at_call(process, name)
        if not choices.quiet and choices.trouble.rates:
            if choices.happens(f"kill-{process.kind}"):
                self.history.note(f"{process.name} is killed at {name}")
                process.exit(signal.SIGKILL)
            if choices.happens("stop-process") and process.kind != "client":
                self.history.note(f"{process.name} is stopped at {name}")
                self.stop_for_a_while(process)
                self.scheduler.pause()
            if choices.happens("preempt"):
                self.scheduler.pause()
        return process

    def stop_for_a_while(self, process: Process) -> None:
        """Stop a process. A worker may be stopped for ever: the runtime has to end it."""
        process.stop()
        if process.kind != "worker" or self.choices.chance(0.7):
            self.scheduler.later(self.choices.between(1_000_000, 4_000_000_000), process.go_on)

    def scarce(self, what: str, *numbers: int) -> None:
        """Raise one of these errors now and then."""
        if self.choices.happens("scarce"):
            number = self.choices.pick(numbers)
            self.history.note(f"{self.here.name} lacks {what}", os.strerror(number))
            raise OSError(number, os.strerror(number))

    def partial(self, n: int) -> int:
        """How many of `n` bytes go at once."""
        if n > 1 and self.choices.happens("partial"):
            return 1 + self.choices.below(n)
        return n

    def buffer_bytes(self) -> int:
        return self.choices.between(512, 8192) if self.choices.happens("small-buffers") else 212_992

    def write_signal(self, description: Description, number: int) -> None:
        """What a handler of Python does: a byte into its wake-up descriptor."""
        if isinstance(description, Stream):
            with contextlib.suppress(OSError):
                description.send(bytes([number]), [], lambda n: n)

    # ---- what is shared

    def discard(self, rights: list[tuple[int, Description]]) -> None:
        """Descriptions that came along and are not wanted."""
        for number, description in rights:
            if real_number(number):
                descriptions.close_real(number)
            description.drop()

    def closed(self, stream: Stream) -> None:
        """The last descriptor of a socket is gone."""

    def unlisten(self, listener: Listener) -> None:
        for name in [name for name, each in self.names.items() if each is listener]:
            del self.names[name]

    def unlocked(self) -> None:
        """A file was closed or unlocked: who waits for a lock looks again."""
        self.locks.changed()

    def event(self, number: int) -> EventFd:
        found = self.here.get(number)
        assert isinstance(found, EventFd)
        return found

    def memory_available(self) -> int:
        return self.memory_bytes

    @property
    def online(self) -> set[int]:
        return set(range(self.cpus)) - self.missing

    def folder_changed(self, path: Any, arguments: Any, named: dict[str, Any]) -> None:
        """A name has come or gone: rename and unlink tell of it."""
        old = ("src_dir_fd", "dir_fd")
        self._tell_watches(path, next((named[name] for name in old if name in named), None), 0x40 if arguments else 0x200)
        if arguments:
            self.renamed[os.path.basename(arguments[0])] = len(self.renamed)
            self._tell_watches(arguments[0], named.get("dst_dir_fd"), 0x80)

    def folder_goes(self, folder: Path) -> None:
        """A folder is about to be removed: who watches it hears that, and nothing more of it. Another one may get its number."""
        if folder.exists():
            about = folder.stat()
            for watch in sorted(self.watches, key=lambda watch: watch.number):
                watch.tell((about.st_dev, about.st_ino), 0x400, "")
                watch.folders.pop((about.st_dev, about.st_ino), None)

    def _tell_watches(self, path: Any, folder: int | None, mask: int) -> None:
        head, name = os.path.split(os.fspath(path))
        about = os.fstat(folder) if folder is not None and not head else os.stat(head or ".")
        for watch in sorted(self.watches, key=lambda watch: watch.number):
            watch.tell((about.st_dev, about.st_ino), mask, name)

    def kind_of(self, child: Callable[[], object]) -> str:
        """What a forked process is, by the function that it runs."""
        names = {cell.cell_contents for cell in child.__closure__ or () if isinstance(cell.cell_contents, str)}
        known = [name.removeprefix("aspen-") for name in names if name.startswith("aspen-")]
        return known[0] if known else "child"

    def kind_of_module(self, module: str) -> str:
        return {"aspen_mp.control.boot": "planner", "aspen_mp.workers.main": "worker", "aspen_mp.workers.zygote": "zygote"}.get(
            module, module.rpartition(".")[2]
        )

    # ---- judgement

    def violation(self, text: str) -> None:
        self.violations.append(text)
        self.history.note("VIOLATION", text.splitlines()[0])
        self.on_violation(text)

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def never() -> NoReturn:
    raise AssertionError("a process went on after its end")
