"""Shared-memory segments: created, reserved, stamped, handed on by descriptor, mapped.

A segment never has a name: it is a file of /dev/shm without one (O_TMPFILE). So nothing can leak or be guessed, whatever is killed and
when. It is a descriptor, passed by inheritance or SCM_RIGHTS. Where /dev/shm is not a tmpfs and cannot do that, the segment is created
exclusively under a random name, by shm_open, and unlinked at once. `aspen-mp doctor` finds the remains of a process that was killed in
between. Space is reserved when the segment is made, in huge pages where there are any. A full tmpfs would otherwise answer with SIGBUS at
some later store. Where /dev/shm is too small (Docker gives it 64 MiB), a sealed memfd takes its place: it lives in memory that no mount
limits.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import stat
import sys
from collections.abc import Sequence
from types import TracebackType

import posix_ipc

from aspen_mp.shm.bindings import _control
from aspen_mp.shm.bindings._mapping import Mapping, reserve
from aspen_mp.shm.errors import ProtocolError, ResourceLimitError
from aspen_mp.system import descriptors, filesystem, processes, randomness

__all__ = ["CLIENTS_WRITE", "Segment", "format_bytes", "memory_available", "reserve_for", "shm_free", "spacious"]

CLIENTS_WRITE = frozenset({"doorbell", "client", "data", "trace"})
"""Roles of the segments that clients have mapped too. For workers nothing in them is true, their first line included (I11): how long they
are the kernel and the control table say. Nor is it in the doorbell page for other clients."""
PRIVATE_BYTES = 64 << 20
"""This much of a control group's limit is not counted as available, or a 16th of it where that is less. Processes need memory of their own
while shared memory is reserved, and where there is none the kernel ends one of them."""
_SHM_DIR = "/dev/shm"
_NAME_ATTEMPTS = 16


def format_bytes(n: int) -> str:
    """`n` bytes for people: "1.5 GiB (1610612736 bytes)"."""
    value, unit = float(n), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{n} bytes" if unit == "bytes" else f"{value:.1f} {unit} ({n} bytes)"


def shm_free() -> int:
    """Bytes free in /dev/shm (0 where there is none)."""
    try:
        s = filesystem.statvfs(_SHM_DIR)
    except OSError:
        return 0
    return s.f_bavail * s.f_frsize


def memory_available() -> int:
    """Bytes that this process could still allocate: the machine's available memory, or less where a control group's limit is nearer.

    Asked before memory is reserved: reserving more than there is does not fail, it makes the kernel kill a process.
    """
    return memory_left()[0]


def spacious(nbytes: int) -> bool:
    """Whether so many bytes can be had and as many are left besides: for what is of use, but not needed."""
    return 2 * nbytes <= memory_available()


def memory_left() -> tuple[int, str]:
    """`memory_available`, and which limit that is up to."""
    available, limit_is = _first_int(_read("/proc/meminfo"), "MemAvailable:") * 1024 or sys.maxsize, "the machine's memory"
    for line in _read("/proc/self/cgroup").splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0":
            root, limit, used, cache = "/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            root, limit, used, cache = "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
        else:
            continue
        parts = [p for p in path.split("/") if p]
        for depth in range(len(parts) + 1):  # a limit of any group above counts; in a container the path may not be visible, the root is
            group = "/".join([root, *parts[:depth]])
            most = _read(f"{group}/{limit}").strip()
            if most.isdigit():
                reclaimable = _first_int(_read(f"{group}/memory.stat"), cache)
                now = _read(f"{group}/{used}").strip()
                left = int(most) - (int(now) if now.isdigit() else 0) + reclaimable - min(PRIVATE_BYTES, int(most) // 16)
                if left < available:
                    available, limit_is = left, f"the memory limit of control group {group}, {format_bytes(int(most))}"
    return max(available, 0), limit_is


def _read(path: str) -> str:
    try:
        with filesystem.open(path) as f:
            return f.read()
    except OSError:
        return ""


def _first_int(text: str, key: str) -> int:
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 2 and words[0] == key:
            return int(words[1])
    return 0


class Segment:
    """One shared-memory segment: a descriptor and its mapping.

    `fd`: descriptor, -1 after `close_fd`. `nbytes`: size. `role`: "control", "doorbell", "client", "data", "plan", "weights" or "arena".
    `buf`: memoryview of the mapping, writable where the segment was opened so. The first `_control.DATA_FIRST` bytes hold the magic.
    """

    def __init__(self, fd: int, role: str, nbytes: int, *, writable: bool, memfd: bool) -> None:
        self.fd = fd
        self.role = role
        self.nbytes = nbytes
        self.writable = writable
        self.is_memfd = memfd
        self._map: Mapping | None = Mapping(fd, nbytes, writable)

    @classmethod
    def create(cls, role: str, nbytes: int, *, memfd: bool | None = None, holes: Sequence[tuple[int, int]] = ()) -> Segment:
        """Reserves `nbytes` (rounded up to a page) of zeroed shared memory and stamps it. ResourceLimitError when there is not enough.

        `memfd`: True or False forces the kind; None prefers /dev/shm and falls back to a memfd. `holes`: (begin, end) in a memfd,
        ascending, where other memory will be mapped: no space is reserved for them.
        """
        nbytes = _checked(role, nbytes, holes)
        shm_error: OSError | None = None
        fd, is_memfd = -1, False
        if not memfd:
            try:
                fd = _create_shm(role, nbytes)
            except OSError as e:
                shm_error = e
                if memfd is False:
                    raise _no_space(role, nbytes, e) from e
        if fd < 0:
            try:
                fd, is_memfd = _create_memfd(role, nbytes, holes), True
            except OSError as e:
                raise _no_space(role, nbytes, shm_error or e) from e
        return cls._stamped(fd, role, nbytes, memfd=is_memfd)

    @classmethod
    def _stamped(cls, fd: int, role: str, nbytes: int, *, memfd: bool) -> Segment:
        try:
            segment = cls(fd, role, nbytes, writable=True, memfd=memfd)
        except OSError as e:
            descriptors.close(fd)
            raise _no_space(role, nbytes, e) from e
        _control.write_magic(segment.buf, role)
        return segment

    @classmethod
    def create_elsewhere(cls, role: str, nbytes: int, holes: Sequence[tuple[int, int]] = ()) -> tuple[int, int]:
        """The first half of making a memfd segment whose memory another process reserves, by `reserve_for`: (descriptor, bytes).
        `reserved` is the second half. ResourceLimitError when there is not enough memory."""
        nbytes = _checked(role, nbytes, holes)
        try:
            return descriptors.memfd_create(f"aspen-{role}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), nbytes
        except OSError as e:
            raise _no_space(role, nbytes, e) from e

    @classmethod
    def reserved(cls, fd: int, role: str, nbytes: int, error: int) -> Segment:
        """The segment of a descriptor of `create_elsewhere`, which it owns. `error`: what `reserve_for` has returned."""
        if error:
            descriptors.close(fd)
            raise _no_space(role, nbytes, OSError(error, os.strerror(error)))
        return cls._stamped(fd, role, nbytes, memfd=True)

    @classmethod
    def from_fd(cls, fd: int, role: str, *, writable: bool, check: bool = True) -> Segment:
        """Maps a segment received as a descriptor, which it owns from now on. ProtocolError unless magic, role, layout and size fit.

        `check` False: the first line is not looked at, because others who may not be believed can write there (`CLIENTS_WRITE`)."""
        try:
            st = descriptors.fstat(fd)
            if not stat.S_ISREG(st.st_mode) or st.st_size < mmap.PAGESIZE:
                raise ProtocolError(f"descriptor {fd} is not a shared-memory segment ({role}): mode {st.st_mode:#o}, {st.st_size} bytes")
            segment = cls(fd, role, st.st_size, writable=writable, memfd=False)
        except OSError as e:
            descriptors.close(fd)
            raise ProtocolError(f"cannot map the {role} segment received as descriptor {fd}: {e}") from e
        except ProtocolError:
            descriptors.close(fd)
            raise
        try:
            if check:
                _control.check_magic(segment.buf, role)
        except ProtocolError:
            segment.close()
            raise
        return segment

    @property
    def buf(self) -> memoryview:
        if self._map is None:
            raise ValueError(f"{self.role} segment is closed")
        return memoryview(self._map)

    @property
    def mapping(self) -> Mapping:
        if self._map is None:
            raise ValueError(f"{self.role} segment is closed")
        return self._map

    def close_fd(self) -> None:
        """Closes the descriptor, keeps the mapping."""
        if self.fd >= 0:
            descriptors.close(self.fd)
            self.fd = -1

    def close(self) -> None:
        """Closes the descriptor and unmaps. Where arrays still view the memory the mapping goes with the last of them."""
        self.close_fd()
        if self._map is not None:
            with contextlib.suppress(BufferError):  # exported views keep it alive; without our reference the last of them frees it
                self._map.close()
            self._map = None

    def __enter__(self) -> Segment:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Segment({self.role!r}, {format_bytes(self.nbytes)}, fd={self.fd}{', memfd' if self.is_memfd else ''})"


def _create_shm(role: str, nbytes: int) -> int:
    if nbytes > shm_free():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    fd = _nameless()
    if fd < 0:
        fd = _named(role)
    try:
        reserve(fd, nbytes)
    except OSError:
        descriptors.close(fd)
        raise
    return fd


def _nameless() -> int:
    """A file of /dev/shm that has no name and can get none; -1 where its file system has no such files."""
    try:
        return descriptors.open(_SHM_DIR, os.O_TMPFILE | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as e:
        if e.errno in {errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL}:
            return -1
        raise


def _named(role: str) -> int:
    """One that had a name for a moment."""
    for _ in range(_NAME_ATTEMPTS):
        name = f"/aspen-{processes.getuid()}-{randomness.urandom(8).hex()}-{role}"
        try:
            shm = posix_ipc.SharedMemory(name, flags=posix_ipc.O_CREX, mode=0o600)
        except posix_ipc.ExistentialError:
            continue
        except (posix_ipc.Error, OSError) as e:
            raise OSError(getattr(e, "errno", None) or errno.ENOSYS, f"shm_open: {e}") from e
        try:
            shm.unlink()
            descriptors.set_inheritable(shm.fd, False)
        except OSError:
            shm.close_fd()
            raise
        return int(shm.fd)
    raise OSError(errno.EEXIST, "no free shared-memory name")


def _create_memfd(role: str, nbytes: int, holes: Sequence[tuple[int, int]] = ()) -> int:
    fd = descriptors.memfd_create(f"aspen-{role}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    error = reserve_for(fd, nbytes, holes)
    if error:
        descriptors.close(fd)
        raise OSError(error, os.strerror(error))
    return fd


def reserve_for(fd: int, nbytes: int, holes: Sequence[tuple[int, int]] = ()) -> int:
    """Reserves the memory of a memfd, but for `holes`, and seals its size and its seals. Otherwise a client could make the page that all
    write to read-only for the next worker. 0, or the number of the error."""
    try:
        reserve(fd, nbytes, holes)
        descriptors.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    except OSError as e:
        return e.errno or errno.ENOMEM
    return 0


def _checked(role: str, nbytes: int, holes: Sequence[tuple[int, int]] = ()) -> int:
    """`nbytes` in whole pages, if there is enough memory, `holes` left out."""
    if nbytes <= 0:
        raise ValueError(f"a segment needs a positive size, not {nbytes}")
    nbytes = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    left, limit = memory_left()
    if nbytes - sum(end - begin for begin, end in holes) > left:
        advice = "raise that limit" if "control group" in limit else "free some, or use a machine with more"
        raise ResourceLimitError(
            f"not enough shared memory for the {role} segment: {format_bytes(nbytes)} needed, {format_bytes(left)} are left of {limit}, "
            f"the limit that is met first ({_SHM_DIR} has {format_bytes(shm_free())} free). "
            f"To go on, {advice}, unload models, or keep fewer plans (plans_mib in section [models] of the profile)"
        )
    return nbytes


def _no_space(role: str, nbytes: int, e: OSError) -> ResourceLimitError:
    if e.errno in {errno.EMFILE, errno.ENFILE}:
        return ResourceLimitError(
            f"no descriptor for the {role} segment of {format_bytes(nbytes)} ({e.strerror}): close some, or raise the limit (ulimit -n)"
        )
    try:
        s = filesystem.statvfs(_SHM_DIR)
        have = f"{_SHM_DIR} has {format_bytes(s.f_bavail * s.f_frsize)} free of {format_bytes(s.f_blocks * s.f_frsize)}"
        advice = s.f_blocks * s.f_frsize + 2 * nbytes
    except OSError:
        have, advice = f"there is no {_SHM_DIR}", 2 * nbytes
    mib = -(-advice // (1 << 20))
    return ResourceLimitError(
        f"not enough shared memory for the {role} segment: {format_bytes(nbytes)} needed, {have}, and anonymous memory could not be had "
        f"either ({e.strerror or e}). Raise the limit with `mount -o remount,size={mib}m {_SHM_DIR}`, in Docker with `--shm-size={mib}m`, "
        f"in Kubernetes with an emptyDir of medium Memory mounted there; or raise the container's memory limit."
    )
