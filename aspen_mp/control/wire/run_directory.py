"""Where named runtimes are found: a private directory with a socket and a lock file for each name.

The lock is held for the life of the planner process, so a held lock means a living runtime whatever process ids say. Only taking it tells
whether it is held. So that nobody who looks is taken for a runtime, everybody locks the directory meanwhile. Whoever looks locks it shared,
whoever claims or cleans alone. Sockets are bound and connected through /proc/self/fd, which also keeps long directory names within the 107
bytes of a socket address.

Sessions of a user have XDG_RUNTIME_DIR, services and cron jobs have not. A runtime lies where its own environment says; whoever looks for
one searches both places. An XDG_RUNTIME_DIR of another value is a place of its own, and no other is searched.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from aspen_mp.control.wire.identity import Address, check_peer
from aspen_mp.shm.errors import AspenError, ProtocolError, RuntimeNotFound
from aspen_mp.shm.scarcity import is_scarce
from aspen_mp.system import descriptors, filesystem, processes, randomness, sockets

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


def check_name(name: str) -> str:
    """A runtime's name: 1 to 64 letters, digits, `_`, `.` or `-`, the first a letter or digit. ValueError, or TypeError."""
    if not isinstance(name, str):
        raise TypeError(f"the name of a runtime must be a string, not {name!r} ({type(name).__name__})")
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not a runtime name: 1 to 64 letters, digits, '_', '.' or '-', the first a letter or digit")
    return name


def path() -> str:
    """The run directory of this user for new runtimes; it need not exist."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    return os.path.join(base, "aspen-mp") if base and os.path.isabs(base) else _usual()[1]


def paths() -> list[str]:
    """The directories that are searched for a runtime, that for new ones first."""
    own, usual = path(), _usual()
    return [own, *(other for other in usual if other != own)] if own in usual else [own]


def _usual() -> tuple[str, str]:
    """Where the runtimes of login sessions lie, and those of processes without XDG_RUNTIME_DIR."""
    user = processes.getuid()
    return f"/run/user/{user}/aspen-mp", f"/tmp/aspen-mp-{user}"


def open_directories(*, create: bool) -> dict[str, int]:
    """Descriptors of `paths` that are there, to be closed by the caller, as `open_directory` opens them. A fault of the first one is
    raised; others that are not to be trusted, or cannot be opened or made, do not count."""
    own, *others = paths()
    found: dict[str, int] = {}
    with suppress(FileNotFoundError):
        found[own] = open_directory(create=create)
    for other in others:
        with suppress(OSError, AspenError):
            found[other] = open_directory(other, create=create)
    return found


def open_directory(where: str | None = None, *, create: bool) -> int:
    """Descriptor of a run directory (None: of that for new runtimes), checked: a directory, no link, ours, mode 0700. Raises
    FileNotFoundError or ProtocolError; with `create` AspenError where it cannot be made."""
    where = path() if where is None else where
    fd = _open_or_make(where) if create else _open(where)
    info = descriptors.fstat(fd)
    if info.st_uid != processes.getuid() or stat.S_IMODE(info.st_mode) != 0o700:
        descriptors.close(fd)
        mode = f"{stat.S_IMODE(info.st_mode):04o}"
        raise ProtocolError(f"{where} belongs to user {info.st_uid} with mode {mode}; it must be yours with mode 0700")
    return fd


def _open(where: str) -> int:
    try:
        return descriptors.open(where, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except NotADirectoryError:
        raise ProtocolError(f"{where} is not a directory of its own (a file or a link); remove it") from None
    except OSError as error:
        if filesystem.islink(where):
            raise ProtocolError(f"{where} is a link; remove it") from error
        raise


def _open_or_make(where: str) -> int:
    while True:
        try:
            filesystem.mkdir(where, 0o700)
        except FileExistsError:
            pass
        except OSError as error:
            raise AspenError(_unusable(where, error)) from None
        with suppress(FileNotFoundError):  # somebody, a cleaner of temporary files say, removed it in between: it is made again
            return _open(where)


def _unusable(where: str, error: OSError) -> str:
    return (
        f"a runtime with a name needs files in the directory {where}, which cannot be made or written to ({error.strerror}). "
        "Set XDG_RUNTIME_DIR to a folder that can be written to, or leave out the name"
    )


@contextmanager
def _locked(directory: int, kind: int) -> Iterator[None]:
    """The directory, locked for moments: LOCK_SH or LOCK_EX."""
    descriptors.flock(directory, kind)
    try:
        yield
    finally:
        descriptors.flock(directory, fcntl.LOCK_UN)


class Claim:
    """A runtime name held by this process: the lock, and after `listen` the socket. `release` removes both files."""

    def __init__(self, name: str) -> None:
        self.name = check_name(name)
        self._dir = self._lock = -1
        _refuse_twin(name)
        self._take()

    def _take(self) -> None:
        """Take the name: the directory, and the lock in it."""
        while self._lock < 0:
            self._dir = open_directory(create=True)
            try:
                with _locked(self._dir, fcntl.LOCK_EX), suppress(FileNotFoundError):  # removed since: the next round makes it anew
                    self._lock = self._acquire()
            finally:
                if self._lock < 0:
                    descriptors.close(self._dir)

    def _acquire(self) -> int:
        while True:
            try:
                fd = descriptors.open(f"{self.name}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=self._dir)
            except FileNotFoundError:
                raise
            except OSError as error:
                if is_scarce(error) and error.errno != errno.ENOSPC:
                    raise
                raise AspenError(_unusable(path(), error)) from None
            try:
                descriptors.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = descriptors.read(fd, 32).decode("ascii", "replace").strip()
                descriptors.close(fd)
                raise AspenError(f"a runtime named {self.name!r} is running already (process {holder or 'unknown'})") from None
            # A runtime that ends may have removed the file between our open and our flock: then lock the new one.
            with suppress(FileNotFoundError):
                now = filesystem.stat(f"{self.name}.lock", dir_fd=self._dir, follow_symlinks=False)
                if os.path.samestat(now, descriptors.fstat(fd)):
                    try:
                        descriptors.ftruncate(fd, 0)
                        descriptors.pwrite(fd, f"{processes.getpid()}\n".encode(), 0)
                    except OSError as error:
                        descriptors.close(fd)
                        raise AspenError(_unusable(path(), error)) from None
                    return fd
            descriptors.close(fd)

    def listen(self) -> sockets.socket:
        """The listening socket, mode 0600. Only the holder of the lock gets here, so socket files that exist are a dead one's.

        The file gets its name once somebody listens: whoever sees it come can connect. Where a cleaner of temporary files has removed the
        directory meanwhile, the name is taken anew."""
        while True:
            try:
                return self._listening()
            except FileNotFoundError as error:
                if descriptors.fstat(self._dir).st_nlink:  # it is there: something else is missing, such as /proc
                    raise AspenError(_unusable(path(), error)) from None
                self.release()
                self._take()

    def _listening(self) -> sockets.socket:
        new = f"{self.name}.new"
        with suppress(FileNotFoundError):
            filesystem.unlink(new, dir_fd=self._dir)
        sock = sockets.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        mask = filesystem.umask(0o177)
        try:
            sock.bind(f"/proc/self/fd/{self._dir}/{new}")
            sock.listen(64)
            filesystem.rename(new, f"{self.name}.sock", src_dir_fd=self._dir, dst_dir_fd=self._dir)
        except FileNotFoundError:
            sock.close()
            raise
        except OSError as error:
            sock.close()
            raise AspenError(_unusable(path(), error)) from None
        finally:
            filesystem.umask(mask)
        return sock

    def release(self) -> None:
        if self._lock < 0:
            return
        _remove(self._dir, self.name)
        descriptors.close(self._lock)
        descriptors.close(self._dir)
        self._lock = -1


def connect(name: str) -> sockets.socket:
    """A connected socket to the runtime `name` of this user. Raises RuntimeNotFound if none is running, ProtocolError if the socket is
    another user's."""
    check_name(name)
    with _opened() as directories:
        for directory in directories.values():
            sock = sockets.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
            try:
                sock.connect(f"/proc/self/fd/{directory}/{name}.sock")
                check_peer(sock)
                return sock
            except (FileNotFoundError, ConnectionRefusedError):
                sock.close()
            except BaseException:
                sock.close()
                raise
    raise _not_found(name)


@contextmanager
def _opened() -> Iterator[dict[str, int]]:
    """The run directories that are there, closed at the end."""
    directories = open_directories(create=False)
    try:
        yield directories
    finally:
        for directory in directories.values():
            descriptors.close(directory)


def _not_found(name: str) -> RuntimeNotFound:
    searched = " or ".join(paths())
    alive = sorted(other for other, lives in names().items() if lives)
    if name in alive:
        return RuntimeNotFound(f"the runtime named {name!r} in {searched} does not listen: it is about to start, or to end")
    there = f"running: {', '.join(alive)}" if alive else "nothing runs there"
    hint = next((f"; one runs in {where}: unset XDG_RUNTIME_DIR to reach it" for where in _usual() if _runs(where, name)), "")
    return RuntimeNotFound(f"no runtime named {name!r} is running in {searched} ({there}){hint}; start one: aspen-mp launch --name {name}")


def _runs(where: str, name: str) -> bool:
    """Whether a runtime of this name lives in a directory."""
    try:
        directory = open_directory(where, create=False)
    except (OSError, AspenError):
        return False
    try:
        with _locked(directory, fcntl.LOCK_SH):
            return _held(directory, name)
    finally:
        descriptors.close(directory)


def _refuse_twin(name: str) -> None:
    """AspenError where a runtime of this name lives in another directory that is searched: whoever connects could not tell them apart."""
    for where in paths()[1:]:
        if _runs(where, name):
            raise AspenError(f"a runtime named {name!r} is running already (in {where})")


def listen_unnamed() -> tuple[sockets.socket, Address]:
    """A listening socket for the handles of a runtime that get into other processes, and its address. In the kernel's own name space, so
    that nothing is left of it, whatever is killed; who may connect is for the caller to check."""
    name = f"aspen-mp-{processes.getuid()}-{randomness.urandom(8).hex()}"
    sock = sockets.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        sock.bind("\0" + name)
        sock.listen(64)
    except BaseException:
        sock.close()
        raise
    return sock, Address.make(name)


def connect_to(address: Address) -> sockets.socket:
    """A connected socket to the runtime that listens at an address of `listen_unnamed`. Raises OSError if nobody listens there, and what
    `check_peer` raises if somebody else does; nothing has been sent then. The caller checks the secret."""
    sock = sockets.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        sock.connect("\0" + address.socket)
        check_peer(sock, address.started)
    except BaseException:
        sock.close()
        raise
    return sock


def holder(name: str) -> int | None:
    """Process id of the runtime `name` that would keep a new one from starting; None where the name is free."""
    if not _runs(path(), check_name(name)):
        return None
    with suppress(FileNotFoundError):
        directory = open_directory(create=False)
        try:
            fd = descriptors.open(f"{name}.lock", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        finally:
            descriptors.close(directory)
        try:
            text = descriptors.read(fd, 32).strip()
        finally:
            descriptors.close(fd)
        return int(text) if text.isdigit() else None
    return None


def names() -> dict[str, bool]:
    """Every name with files in the run directories, and whether its runtime is alive. Never raises for a missing directory."""
    found: dict[str, bool] = {}
    with _opened() as directories:
        for directory in directories.values():
            with _locked(directory, fcntl.LOCK_SH):
                found |= {name: found.get(name, False) or _held(directory, name) for name in _names(directory)}
    return found


def clean() -> list[str]:
    """Removes the files of runtimes that no longer live (killed ones leave them); returns their names."""
    removed: set[str] = set()
    with _opened() as directories:
        for directory in directories.values():
            with _locked(directory, fcntl.LOCK_EX):
                dead = [name for name in _names(directory) if not _held(directory, name)]
                for name in dead:
                    _remove(directory, name)
                removed.update(dead)
    return sorted(removed)


def _names(directory: int) -> list[str]:
    entries = (entry.rpartition(".") for entry in filesystem.listdir(directory))
    return sorted({stem for stem, _, suffix in entries if suffix in {"new", "sock", "lock"} and _NAME.fullmatch(stem)})


def _remove(directory: int, name: str) -> None:
    for suffix in ("new", "sock", "lock"):
        with suppress(FileNotFoundError):
            filesystem.unlink(f"{name}.{suffix}", dir_fd=directory)


def _held(directory: int, name: str) -> bool:
    try:
        fd = descriptors.open(f"{name}.lock", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    except OSError:
        return False
    try:
        descriptors.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two who look at once do not see each other
    except BlockingIOError:
        return True
    finally:
        descriptors.close(fd)
    return False
