"""The plan cache on disk: models that have been loaded before start without being read, planned and packed again.

    models/<path>.mp       what a model file gave when it was last read: signature, digest of its contents, stamps of its files
    plans/<key>.aspen      a plan, in whose metadata `Note` says how it is to be used
    weights/<id>           a weight segment; workers map the file itself, so that all runtimes of a user share its pages

Keys are digests of everything that the result depends on: the model's contents, options, shapes and values bound, speeds of cores,
calibration, and this build of the planner (`build`). A model file is known by its stamp (device, inode, size, times) as long as
nothing has touched it.

Files appear whole or not at all (written under a temporary name, then renamed), are never written again, and go by unlink: who has one open
keeps it. Nothing here can make loading fail: what is damaged, foreign or of another build is removed with a warning, and
the model is planned as if it had not been there. The folder belongs to one user, mode 0700; whoever can write to it is that user.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import msgspec

from aspen_mp.control.protocol import Bind, Capacity, Slot, ValueInfo
from aspen_mp.control.ranges import Stretch, Stretched
from aspen_mp.planner import planhead
from aspen_mp.shm import _tables
from aspen_mp.shm.errors import AspenError, PlanError
from aspen_mp.shm.scarcity import is_scarce

SETTLED_NS: Final = 100_000_000
"""A file that was touched less than this before it was read may change again without another time stamp: it is not remembered."""
_MAX_ENTRY: Final = 64 << 20
_DIGEST: Final = hashlib.sha256().digest_size
_TEMPORARY: Final = ".tmp"
_ABANDONED_NS: Final = 3600 * 10**9
_KINDS: Final = ("models", "plans", "weights")

Stamp = tuple[int, ...]


class File(msgspec.Struct, frozen=True, array_like=True):
    """A file that a model was read from, and its stamp."""

    path: str
    stamp: Stamp


class Known(msgspec.Struct, frozen=True, array_like=True):
    """A model file that has been read: `files` are all that it consists of, itself first; `digest` is that of their contents."""

    build: str
    files: list[File]
    digest: bytes
    name: str
    inputs: list[ValueInfo]
    outputs: list[ValueInfo]


class WeightFile(msgspec.Struct, frozen=True, array_like=True):
    """A weight segment on disk: its name, size, and where each weight is."""

    id: str
    nbytes: int
    places: list[tuple[str, int]]


class Note(msgspec.Struct, frozen=True, array_like=True):
    """How a cached plan is used: the name that it is looked up by, the planning child's answer, the weight segments that its operands call
    WEIGHTS + 0, 1, …, and how it was made: with what, for people, whether its tiles were searched, and what they are expected to take."""

    key: str
    region: int
    inputs: list[Slot]
    outputs: list[Slot]
    last: bool
    dynamic: bool
    arena_bytes: int
    weights: list[WeightFile]
    model: bytes
    calibration: str
    workers: int
    searched: bool = True
    stretched: Stretched | None = None
    work_ns: float = 0.0


class Entry(msgspec.Struct, frozen=True):
    """A plan from the cache: its note and its segment's bytes, checked to be whole."""

    note: Note
    segment: memoryview


def stamp_of(info: os.stat_result) -> Stamp:
    """What changes when a file's contents do."""
    return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns


def build() -> str:
    """Names this build of whatever decides how a plan looks: version, layout, and the stamps of the planner's and the kernels' files."""
    import aspen_mp
    from aspen_mp import planner, workers

    state = hashlib.sha256(f"{aspen_mp.__version__} {_tables.LAYOUT_HASH:x}".encode())
    for root in (*planner.__path__, *workers.__path__):
        for path, info in sorted(_sources(root)):
            state.update(f"{path} {info.st_size} {info.st_mtime_ns}\n".encode())
    return state.hexdigest()[:32]


def _sources(root: str) -> Iterator[tuple[str, os.stat_result]]:
    with os.scandir(root) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False) and entry.name != "__pycache__":
                yield from _sources(entry.path)
            elif entry.name.endswith((".py", ".so")):
                yield entry.path, entry.stat()


def plan_key(
    build: str,
    digest: bytes,
    options: Sequence[Any],
    stages: Sequence[Sequence[Bind]],
    capacities: Sequence[Capacity],
    speeds: Sequence[float],
    calibration: str,
    stretch: Stretch | None = None,
) -> str:
    """The name of a plan."""
    if stretch is None:
        return _name("plan", build, digest, list(options), stages, capacities, speeds, calibration)
    shapes = (stretch.at(stages[0], stretch.most), stretch.mask, stretch.least)
    return _name("range", build, digest, list(options), shapes, capacities, speeds, calibration)


def weights_id(build: str, digest: bytes, options: Sequence[Any], places: Sequence[tuple[str, int]]) -> str:
    """The name of a weight segment that holds these weights at these places."""
    return _name("weights", build, digest, list(options), places)


def digest_of(parts: Sequence[bytes]) -> bytes:
    """One digest of several."""
    return hashlib.sha256(msgspec.msgpack.encode(list(parts))).digest()


def _name(*parts: Any) -> str:
    return hashlib.sha256(msgspec.msgpack.encode(parts)).hexdigest()[:40]


class Cache:
    """The cache in one folder. `limit`: bytes that it may take. Every method is safe beside other processes that use the same folder."""

    def __init__(self, path: str, limit: int) -> None:
        self._path = path
        self._limit = limit
        self.build = build()
        os.makedirs(path, mode=0o700, exist_ok=True)
        for kind in _KINDS:
            os.makedirs(os.path.join(path, kind), mode=0o700, exist_ok=True)

    @classmethod
    def open(cls, path: str, limit: int) -> Cache | None:
        """None without a folder, and, with a warning, where the folder cannot be used."""
        if not path:
            return None
        try:
            cache = cls(path, limit)
            info = os.stat(path)
            if info.st_uid != os.getuid() or info.st_mode & 0o022:
                raise PermissionError(0, "others can write to it")
        except OSError as error:
            _warn(f"{path!r} cannot be used: {error.strerror}")
            return None
        return cache

    # ---- reading

    def model(self, path: str, stamp: Stamp) -> Known | None:
        """What is known of a model file, if nothing of the model has been touched since."""
        name = self._at("models", _name(path) + ".mp")
        data = self._read(name)
        if data is None:
            return None
        digest, body = data[:_DIGEST], data[_DIGEST:]
        try:
            if hashlib.sha256(body).digest() != digest:
                raise msgspec.DecodeError("its checksum is another")
            known = msgspec.msgpack.decode(body, type=Known)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self._discard(name, str(error))
            return None
        if known.build != self.build or known.files[:1] != [File(path, stamp)]:
            return None
        try:
            if any(stamp_of(os.stat(file.path)) != file.stamp for file in known.files[1:]):
                return None
        except OSError:
            return None
        return known

    def plan(self, key: str) -> Entry | None:
        """A plan, if it is there and whole. Marks it as used."""
        name = self._at("plans", key + ".aspen")
        data = self._read(name)
        if data is None:
            return None
        try:
            metadata, segment = planhead.segment_of(memoryview(data))
            note = msgspec.msgpack.decode(metadata["cache"], type=Note)
            if note.key != key:
                raise PlanError("it is the plan of another model or of other shapes")
        except (AspenError, msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError, TypeError) as error:
            self._discard(name, str(error))
            return None
        _touch(name)
        return Entry(note, segment)

    def weights(self, file: WeightFile) -> int:
        """A descriptor of a weight segment's file; -1 if it is not there, or is not what was written. Marks it as used."""
        name = self._at("weights", file.id)
        try:
            fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return -1
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode) or info.st_size != file.nbytes or info.st_mtime_ns != _seal(file.id):
            os.close(fd)
            self._discard(name, "it has been changed since it was written")
            return -1
        _touch(name)
        return fd

    def _read(self, name: str) -> bytes | None:
        try:
            with open(name, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)) as file:
                info = os.fstat(file.fileno())
                if stat.S_ISREG(info.st_mode) and info.st_size <= _MAX_ENTRY:
                    return file.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            if not is_scarce(error):  # else the file is as good as ever
                self._discard(name, error.strerror or str(error))
            return None
        self._discard(name, f"{info.st_size} bytes, mode {info.st_mode:#o}")
        return None

    def _discard(self, name: str, why: str) -> None:
        _warn(f"{name!r} is ignored and removed: {why}")
        with contextlib.suppress(OSError):
            os.unlink(name)

    # ---- writing

    def put_model(self, known: Known) -> None:
        """Remembers a model file; replaces what was known of it."""
        body = msgspec.msgpack.encode(known)
        self._write(self._at("models", _name(known.files[0].path) + ".mp"), hashlib.sha256(body).digest() + body)

    def put_plan(self, key: str, data: bytes) -> None:
        """Keeps an `.aspen` file whose metadata holds a `Note` under "cache"."""
        if len(data) <= _MAX_ENTRY:
            self._write(self._at("plans", key + ".aspen"), data)

    def put_weights(self, file: WeightFile, fd: int) -> None:
        """Keeps a weight segment; `fd`: its descriptor. What lies there under this name already is the same, and stays."""
        there = self.weights(file)
        if there >= 0:
            os.close(there)
            return

        def copy(out: int) -> None:
            done = 0
            while done < file.nbytes:
                done += os.sendfile(out, fd, done, file.nbytes - done)
            os.utime(out, ns=(time.time_ns(), _seal(file.id)))

        self._write(self._at("weights", file.id), copy)

    def _write(self, name: str, contents: bytes | Callable[[int], None]) -> None:
        """A file that appears whole, with its bytes on the disk. OSError as it comes."""
        temporary = f"{name}.{os.urandom(6).hex()}{_TEMPORARY}"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            try:
                if isinstance(contents, bytes):
                    view = memoryview(contents)
                    while view:
                        view = view[os.write(fd, view) :]
                else:
                    contents(fd)
                os.fsync(fd)  # after a power cut a name must not stand for less than it did
            finally:
                os.close(fd)
            os.rename(temporary, name)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            raise

    def room(self, nbytes: int) -> bool:
        """Whether so many bytes may come in: not over the limit, and at most a quarter of what the disk has free."""
        try:
            disk = os.statvfs(self._path)
        except OSError:
            return False
        return nbytes <= self._limit and nbytes <= disk.f_bavail * disk.f_frsize // 4

    def trim(self, coming: int = 0) -> None:
        """Removes what was used longest ago until there is room for `coming` bytes more, and what interrupted writers have left."""
        files = sorted(self.files(), key=lambda file: file[1].st_atime_ns)
        total = sum(info.st_size for _, info in files) + coming
        for name, info in files:
            # By the time of change, not of modification: that of a weight file lies in the past before it has its name.
            stale = name.endswith(_TEMPORARY) and time.time_ns() - info.st_ctime_ns > _ABANDONED_NS
            if total <= self._limit and not stale:
                continue
            with contextlib.suppress(OSError):
                os.unlink(name)
                total -= info.st_size

    def files(self) -> list[tuple[str, os.stat_result]]:
        """Everything in the cache."""
        found = []
        for kind in _KINDS:
            with contextlib.suppress(OSError), os.scandir(os.path.join(self._path, kind)) as entries:
                for entry in entries:
                    with contextlib.suppress(OSError):
                        found.append((entry.path, entry.stat(follow_symlinks=False)))
        return found

    def _at(self, kind: str, name: str) -> str:
        return os.path.join(self._path, kind, name)


def _touch(name: str) -> None:
    """Sets the time of the last use; that of the last change stays."""
    with contextlib.suppress(OSError):
        os.utime(name, ns=(time.time_ns(), os.stat(name).st_mtime_ns))


def _seal(identity: str) -> int:
    """The modification time that a weight file is given: one in the past that only its name tells. Every later write would change it, so
    that a file of a gigabyte need not be read to know that it is as it was written."""
    return (1_000_000_000 + int(identity[:8], 16) % 500_000_000) * 1_000_000_000


def _warn(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # nobody may read it any more
        print(f"aspen-mp: warning: plan cache: {text}", file=sys.stderr, flush=True)
