"""The plan cache on disk: models that have been loaded before start without being read, planned and packed again.

    models/<path>.mp       what a model file gave when it was last read: signature, digest of its contents, stamps of its files
    plans/<key>.aspen      a plan, in whose metadata `Note` says how it is to be used
    weights/<id>           a weight segment; workers map the file's own pages, so that all runtimes of a user share them

A weight file holds a digest of itself (SHA-256), which is looked at once in each boot: then its time of modification becomes one that only
its name, its identity and the boot tell, so nobody who finds it there reads a gigabyte to know that it is as it was written. Every
write changes that time.

Keys are digests of everything that the result depends on: the model's contents, options, shapes and values bound, speeds of cores,
rates of the cost model, and this build of the planner (`build`). A model file is known by its stamp (device, inode, size, times) as long as
nothing has touched it.

Files appear whole or not at all (written under a temporary name, then renamed), are never written again, and go by unlink: who has one open
keeps it. A power cut may leave less of one: its checksum tells. Nothing here can make loading fail: what is damaged, foreign or of another
build is removed with a warning, and the model is planned as if it had not been there. The folder belongs to one user, mode 0700; whoever
can write to it is that user.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import msgspec

from aspen_mp.control.memory.weight_files import DIGEST_AT, DIGEST_END, MARK
from aspen_mp.control.planning import shape_buckets
from aspen_mp.control.planning.shape_buckets import ServedBucket, WantedBucket
from aspen_mp.control.wire import file_stamp
from aspen_mp.control.wire.file_stamp import Stamp
from aspen_mp.control.wire.protocol import Bind, Capacity, Slot, ValueInfo
from aspen_mp.planner.plan import plan_head
from aspen_mp.shm.bindings import _tables
from aspen_mp.shm.errors import AspenError, PlanError
from aspen_mp.shm.scarcity import is_scarce
from aspen_mp.system import clock, descriptors, filesystem, processes, randomness

SETTLED_NS: Final = 100_000_000
"""A file that was touched less than this before it was read may change again without another time stamp: it is not remembered."""
_MAX_ENTRY: Final = 64 << 20
_MAX_PLAN: Final = 1 << 20
"""Bytes of a large plan. A disk that has fewer is full."""
_ADVICE: Final = "Set ASPEN_MP_CACHE to another folder, or to off"
_NO_ROOM: Final = "the disk is full"
_DIGEST: Final = hashlib.sha256().digest_size
_PIECE: Final = 1 << 20
_TEMPORARY: Final = ".tmp"
WRITER_S: Final = 300
"""Seconds within which a process writes one piece into the cache, or is ended."""
_ABANDONED_NS: Final = 2 * WRITER_S * 10**9
_KINDS: Final = ("models", "plans", "weights")


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
    rates: str
    workers: int
    searched: bool = True
    served_bucket: ServedBucket | None = None
    work_ns: float = 0.0


class Entry(msgspec.Struct, frozen=True):
    """A plan from the cache: its note and its segment's bytes, checked to be whole."""

    note: Note
    segment: memoryview


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
    with filesystem.scandir(root) as entries:
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
    rates: str,
    bucket: WantedBucket | None = None,
    within: WantedBucket | None = None,
) -> str:
    """The name of a plan."""
    if bucket is None:
        beside = () if within is None else (within.ranges, within.axes)
        return _name("plan", build, digest, list(options), stages, capacities, speeds, rates, *beside)
    largest = shape_buckets.nested(bucket.largest(shape_buckets.flat(stages), bucket.widest), stages)
    shapes = (largest, bucket.axes, bucket.widest)
    return _name("range", build, digest, list(options), shapes, capacities, speeds, rates)


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
        self._boot = _boot()
        self._trusted: set[Stamp] = set()
        self._warned = descriptors.mmap(-1, 1)
        self.say: Callable[[str], bool] = warn
        """Tells the user; False where nobody can be told."""
        self.build = build()
        filesystem.makedirs(path, mode=0o700, exist_ok=True)
        for kind in _KINDS:
            filesystem.makedirs(os.path.join(path, kind), mode=0o700, exist_ok=True)

    @classmethod
    def open(cls, path: str, limit: int) -> Cache | None:
        """None without a folder, and, with a warning, where the folder cannot be used."""
        if not path:
            return None
        try:
            cache = cls(path, limit)
        except OSError as error:
            warn(f"{path!r} cannot be used: {trouble(path) or error.strerror}. {_ADVICE}")
            return None
        info = filesystem.stat(path)
        if why := _distrust(info):
            warn(f"{path!r} cannot be used: {why}. {_ADVICE}")
            return None
        if why := trouble(path):  # it can be read all the same
            cache.warn_once(why)
        return cache

    def warn_once(self, why: str) -> None:
        """Say why nothing can be written, unless this runtime has said so: processes forked from this one share what has been said."""
        if not self._warned[0]:
            self._warned[0] = self.say(f"{self._path!r} cannot be written to: {why}. {_ADVICE}")

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
            if any(file_stamp.of_change(filesystem.stat(file.path)) != file.stamp for file in known.files[1:]):
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
            metadata, segment = plan_head.segment_of(memoryview(data))
            note = msgspec.msgpack.decode(metadata["cache"], type=Note)
            if note.key != key:
                raise PlanError("it is the plan of another model or of other shapes")
        except (AspenError, msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError, TypeError) as error:
            self._discard(name, str(error))
            return None
        _touch(name)
        return Entry(note, segment)

    def weights(self, file: WeightFile) -> int:
        """A descriptor of a weight segment's file; -1 if it is not there, or is not what was written. Marks it as used. It is read where
        nobody has done so in this boot (`doubtful`)."""
        name = self._at("weights", file.id)
        fd = self._open(file)
        if fd < 0:
            return -1
        info = descriptors.fstat(fd)
        why = ""
        if not stat.S_ISREG(info.st_mode) or info.st_size != file.nbytes:
            why = f"{info.st_size} bytes, mode {info.st_mode:#o}, in the place of {file.nbytes} bytes"
        elif not self._sealed(file, info):
            try:
                whole = _digest_of(fd, file.nbytes) == descriptors.pread(fd, DIGEST_END - DIGEST_AT, DIGEST_AT)
                why = "" if whole else "its checksum is another: it has been changed since it was written"
            except OSError as error:
                why = error.strerror or str(error)
        if why:
            descriptors.close(fd)
            self._discard(name, why)
            return -1
        self._seal(file, fd, info)
        _touch(name)
        return fd

    def path_of(self, file: WeightFile) -> str:
        """Where a weight segment's file is, or was."""
        return self._at("weights", file.id)

    def doubtful(self, file: WeightFile) -> bool:
        """Whether `weights` would have to read the file: at 1 to 2 GB/s, or as fast as the disk."""
        fd = self._open(file)
        if fd < 0:
            return False
        try:
            return not self._sealed(file, descriptors.fstat(fd))
        finally:
            descriptors.close(fd)

    def trust(self, file: WeightFile) -> None:
        """Another process has just read the file, and found it whole: where its times cannot be set, this one remembers it."""
        fd = self._open(file)
        if fd >= 0:
            info = descriptors.fstat(fd)
            if not self._sealed(file, info):
                self._trusted.add(file_stamp.of_contents(info))
            descriptors.close(fd)

    def _open(self, file: WeightFile) -> int:
        try:
            return descriptors.open(self._at("weights", file.id), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return -1

    def _sealed(self, file: WeightFile, info: os.stat_result) -> bool:
        return info.st_mtime_ns == self._seal_of(file, info) or file_stamp.of_contents(info) in self._trusted

    def _seal_of(self, file: WeightFile, info: os.stat_result) -> int:
        """A time in the past, in whole seconds, which every file system keeps."""
        name = _name(file.id, self._boot, info.st_dev, info.st_ino, info.st_size)
        return (1_000_000_000 + int(name[:8], 16) % 500_000_000) * 1_000_000_000

    def _seal(self, file: WeightFile, fd: int, read: os.stat_result) -> None:
        """It was whole when it was as `read` says. What has been written to since is not sealed."""
        if file_stamp.of_contents(descriptors.fstat(fd)) != file_stamp.of_contents(read) or self._sealed(file, read):
            return
        try:
            filesystem.utime(fd, ns=(clock.time_ns(), self._seal_of(file, read)))
        except OSError:
            self._trusted.add(file_stamp.of_contents(read))

    def _read(self, name: str) -> bytes | None:
        try:
            with filesystem.open(
                name, "rb", opener=lambda path, flags: descriptors.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            ) as file:
                info = descriptors.fstat(file.fileno())
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
        warn(f"{name!r} is ignored and removed: {why}")
        with contextlib.suppress(OSError):
            filesystem.unlink(name)

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
            descriptors.close(there)
            return

        def copy(out: int) -> None:
            done = 0
            while done < file.nbytes:
                done += descriptors.sendfile(out, fd, done, file.nbytes - done)
            descriptors.pwrite(out, MARK, file.nbytes - len(MARK))
            descriptors.pwrite(out, _digest_of(out, file.nbytes), DIGEST_AT)
            filesystem.utime(out, ns=(clock.time_ns(), self._seal_of(file, descriptors.fstat(out))))

        self._write(self._at("weights", file.id), copy)

    def _write(self, name: str, contents: bytes | Callable[[int], None]) -> None:
        """A file that appears whole, and is on the disk as soon as the disk has taken it. OSError as it comes."""
        temporary = f"{name}.{randomness.urandom(6).hex()}{_TEMPORARY}"
        fd = descriptors.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        there = temporary
        try:
            if isinstance(contents, bytes):
                view = memoryview(contents)
                while view:
                    view = view[descriptors.write(fd, view) :]
            else:
                contents(fd)
            filesystem.rename(temporary, name)
            there = name
            descriptors.fsync(fd)  # after the renaming: a disk takes seconds for large weights, and the next runtime may begin meanwhile
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                filesystem.unlink(there)
            raise
        finally:
            descriptors.close(fd)

    def room(self, nbytes: int) -> bool:
        """Whether so many bytes may come in: not over the limit, and at most a quarter of what the disk has free."""
        if nbytes > self._limit:
            return False
        there = _has_room(self._path, 4 * nbytes)
        if not there:
            self.warn_once(_NO_ROOM)
        return there

    def trim(self, coming: int = 0) -> None:
        """Removes what was used longest ago until there is room for `coming` bytes more, and what interrupted writers have left."""
        files = sorted(self.files(), key=lambda file: file[1].st_atime_ns)
        total = sum(info.st_size for _, info in files) + coming
        for name, info in files:
            # By the time of change, not of modification: that of a weight file lies in the past before it has its name.
            stale = name.endswith(_TEMPORARY) and clock.time_ns() - info.st_ctime_ns > _ABANDONED_NS
            if total <= self._limit and not stale:
                continue
            with contextlib.suppress(OSError):
                filesystem.unlink(name)
                total -= info.st_size

    def files(self) -> list[tuple[str, os.stat_result]]:
        """Everything in the cache."""
        found = []
        for kind in _KINDS:
            with contextlib.suppress(OSError), filesystem.scandir(os.path.join(self._path, kind)) as entries:
                for entry in entries:
                    with contextlib.suppress(OSError):
                        found.append((entry.path, entry.stat(follow_symlinks=False)))
        return found

    def _at(self, kind: str, name: str) -> str:
        return os.path.join(self._path, kind, name)


def trouble(path: str) -> str:
    """Why a folder cannot be the plan cache, or cannot be written to; empty if it can. Nothing is made or written."""
    try:
        info = filesystem.stat(path)
    except FileNotFoundError:
        parent = os.path.dirname(os.path.abspath(path))
        if filesystem.exists(parent):
            return "" if filesystem.isdir(parent) and filesystem.access(parent, os.W_OK | os.X_OK) else f"it cannot be made in {parent}"
        return trouble(parent)
    except OSError as error:
        return error.strerror or str(error)
    if why := _distrust(info):
        return why
    for folder in (path, *(os.path.join(path, kind) for kind in _KINDS)):
        if filesystem.exists(folder) and not (filesystem.isdir(folder) and filesystem.access(folder, os.R_OK | os.W_OK | os.X_OK)):
            return f"{folder} is not a folder that can be read and written"
    return "" if _has_room(path) else _NO_ROOM


def _distrust(info: os.stat_result) -> str:
    if not stat.S_ISDIR(info.st_mode):
        return "it is not a folder"
    if info.st_uid != processes.getuid():
        return f"it belongs to user {info.st_uid}"
    return "others can write to it" if info.st_mode & 0o022 else ""


def _has_room(path: str, nbytes: int = _MAX_PLAN) -> bool:
    try:
        disk = filesystem.statvfs(path)
    except OSError:
        return False
    return nbytes <= disk.f_bavail * disk.f_frsize


def _touch(name: str) -> None:
    """Sets the time of the last use; that of the last change stays."""
    with contextlib.suppress(OSError):
        filesystem.utime(name, ns=(clock.time_ns(), filesystem.stat(name).st_mtime_ns))


def _digest_of(fd: int, nbytes: int) -> bytes:
    """Of all of a weight file but the digest itself. It is read, not mapped: whoever cuts it short costs nobody a signal."""
    state, at = hashlib.sha256(descriptors.pread(fd, DIGEST_AT, 0)), DIGEST_END
    piece = memoryview(bytearray(_PIECE))
    while at < nbytes:
        n = descriptors.preadv(fd, [piece[: min(_PIECE, nbytes - at)]], at)
        if not n:
            break
        state.update(piece[:n])
        at += n
    return state.digest()


def _boot() -> str:
    """Names this boot; where the system does not tell, this process."""
    try:
        with filesystem.open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return randomness.urandom(16).hex()


def warn(text: str) -> bool:
    """Print a warning. Return False where nobody reads it any more."""
    try:
        print(f"aspen-mp: warning: plan cache: {text}", file=sys.stderr, flush=True)
    except (OSError, ValueError):
        return False
    return True
