"""The room `aspen_mp.system.sockets` of the simulated world."""

from __future__ import annotations

import array
import errno
import os
import selectors
import socket
import struct
from collections.abc import Sequence
from typing import Any

from simulation.world.descriptions import (
    POLLERR,
    POLLHUP,
    POLLIN,
    POLLOUT,
    Description,
    Listener,
    Stream,
    Unbound,
    real_number,
)
from simulation.world.scheduler import Task
from simulation.world.world import World

ATTACH_FILTER = 26
"""SO_ATTACH_FILTER: a listener that nobody can connect to any more."""


def make(world: World) -> dict[str, Any]:
    """The names of the room."""
    scheduler = world.scheduler

    def deadline(seconds: float | None) -> int | None:
        return None if seconds is None else scheduler.now + (int(seconds * 1e9) + 1 if seconds > 0 else 0)

    def wait(of: Sequence[Description], ready: Any, waits: str, until: int | None) -> Any:
        """Sleep until `ready()` is true; what it is then, or at the end of the time."""
        task = scheduler.current
        assert task is not None
        while True:
            found = ready()
            if found or (until is not None and scheduler.now >= until):
                return found
            for each in of:
                each.waiters.add(task)
            try:
                scheduler.block(waits, until)
            finally:
                for each in of:
                    each.waiters.remove(task)

    def owned(rights: list[tuple[int, Description]], most: int) -> tuple[list[int], bool]:
        """Enter what came along into this process's table. Return the numbers, and whether some were lost."""
        process = world.here
        got: list[int] = []
        for k, (number, description) in enumerate(rights):
            full = len(process.table) >= process.most_descriptors or world.choices.happens("scarce")
            if k >= most or full:
                if full and k < most:
                    world.history.sometimes("descriptors were lost on their way")
                world.discard(rights[k:])
                return got, True
            got.append(process.add(description, number if real_number(number) else -1))
            description.references -= 1
        return got, False

    def outgoing(fds: Sequence[int]) -> list[tuple[int, Description]]:
        process = world.here
        rights = []
        for fd in fds:
            description = process.get(fd)
            rights.append((os.dup(fd) if real_number(fd) else fd, description))
        return rights

    def unsent(rights: list[tuple[int, Description]]) -> None:
        for number, _ in rights:
            if real_number(number):
                os.close(number)

    class Socket:
        """A socket, as Python's. Its object may be shared by processes after a fork: what is closed in one is open in the other."""

        def __init__(self, family: int = -1, type: int = -1, proto: int = -1, fileno: int | None = None) -> None:
            process = world.enter("socket")
            if fileno is None:
                world.scarce("a socket", errno.EMFILE, errno.ENFILE, errno.ENOBUFS)
                packets = type & 0xF == socket.SOCK_SEQPACKET
                self._number = process.add(Unbound(world, packets=packets, tcp=family == socket.AF_INET))
                self.family, self.type = family, type & 0xF
            else:
                description = process.get(fileno)
                self._number = fileno
                self.family = socket.AF_INET if description.tcp else socket.AF_UNIX
                self.type = socket.SOCK_SEQPACKET if getattr(description, "packets", False) else socket.SOCK_STREAM
            self.proto = 0
            self._closed: set[int] = set()
            self._timeout: dict[int, float | None] = {}
            self._initial: float | None = None
            self._maker = process

        @classmethod
        def _of(cls, description: Description, number: int) -> Socket:
            made = cls.__new__(cls)
            made._number = number
            made.family, made.proto = socket.AF_INET if description.tcp else socket.AF_UNIX, 0
            made.type = socket.SOCK_SEQPACKET if getattr(description, "packets", False) else socket.SOCK_STREAM
            made._closed, made._timeout, made._initial = set(), {}, None
            made._maker = world.here
            return made

        # -- state

        def _description(self) -> Description:
            process = world.here
            if process.pid in self._closed:
                raise OSError(errno.EBADF, "Bad file descriptor (closed socket)")
            return process.get(self._number)

        def fileno(self) -> int:
            return -1 if scheduler.current is None or world.here.pid in self._closed else self._number

        def close(self) -> None:
            if scheduler.current is None:
                return
            process = world.here
            if process.pid not in self._closed:
                self._closed.add(process.pid)
                process.close(self._number)

        def __del__(self) -> None:
            maker = getattr(self, "_maker", None)
            if maker is not None and maker.alive and maker.pid not in self._closed and self._number in maker.table:
                maker.close(self._number)

        def detach(self) -> int:
            process = world.here
            if process.pid in self._closed:
                return -1
            self._closed.add(process.pid)
            return self._number

        def __enter__(self) -> Socket:
            return self

        def __exit__(self, *_: object) -> None:
            self.close()

        def setblocking(self, flag: bool) -> None:
            self.settimeout(None if flag else 0.0)

        def settimeout(self, seconds: float | None) -> None:
            self._timeout[world.here.pid] = seconds
            self._initial = seconds

        def gettimeout(self) -> float | None:
            return self._timeout.get(world.here.pid, self._initial)

        def getblocking(self) -> bool:
            return self.gettimeout() != 0.0

        def set_inheritable(self, flag: bool) -> None:
            self._description()

        def get_inheritable(self) -> bool:
            return False

        def setsockopt(self, level: int, option: int, *_: Any) -> None:
            description = self._description()
            if level == socket.SOL_SOCKET and option == ATTACH_FILTER and isinstance(description, Listener):
                description.filtered = True

        def getsockopt(self, level: int, option: int, size: int = 0) -> Any:
            description = self._description()
            if option == socket.SO_PEERCRED:
                pid, uid = getattr(description, "peer_owner", (0, 0))
                return struct.pack("3i", pid, uid, uid)
            if option == socket.SO_ERROR:
                return 0
            if option == socket.SO_TYPE:
                return self.type
            return b"\0" * size if size else 0

        def getsockname(self) -> Any:
            return self._description().address

        def getpeername(self) -> Any:
            description = self._description()
            if not isinstance(description, Stream) or description.other is None:
                raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")
            return description.other.address

        def dup(self) -> Socket:
            world.enter("dup")
            description = self._description()
            world.scarce("a descriptor", errno.EMFILE, errno.ENFILE)
            return Socket._of(description, world.here.add(description))

        # -- connecting

        def bind(self, address: Any) -> None:
            world.enter("bind")
            description = self._description()
            assert isinstance(description, Unbound)
            if description.tcp:
                if address in world.names:
                    raise OSError(errno.EADDRINUSE, "Address already in use")
                description.bound = description.address = address
                return
            if address.startswith("\0"):
                if address in world.names:
                    raise OSError(errno.EADDRINUSE, "Address already in use")
                description.bound = address
                return
            try:
                file = os.open(address, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
            except FileExistsError:
                raise OSError(errno.EADDRINUSE, "Address already in use") from None
            about = os.fstat(file)
            os.close(file)
            description.bound = (about.st_dev, about.st_ino)

        def listen(self, backlog: int = 128) -> None:
            process = world.enter("listen")
            unbound = self._description()
            if isinstance(unbound, Listener):
                unbound.backlog = backlog
                return
            assert isinstance(unbound, Unbound)
            listener = Listener(world, backlog, process)
            listener.tcp, listener.address = unbound.tcp, unbound.address
            world.names[unbound.bound] = listener
            process.table[self._number] = listener
            listener.references, unbound.references = unbound.references, 0

        def connect(self, address: Any) -> None:
            process = world.enter("connect")
            unbound = self._description()
            assert isinstance(unbound, Unbound)
            if unbound.tcp:
                found = world.names.get(address)
                if found is not None and found.filtered:  # asks in vain, until there is somebody else to ask
                    wait([found], lambda: found.closed, "a listener to answer", deadline(self.gettimeout()))
                    if not found.closed:
                        raise TimeoutError("timed out")
            elif address.startswith("\0"):
                found = world.names.get(address)
            else:
                about = os.stat(address)
                found = world.names.get((about.st_dev, about.st_ino))
            if found is None or found.closed:
                raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
            if len(found.pending) > found.backlog:
                if self.gettimeout() == 0.0:
                    raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
                wait([found], lambda: found.closed or len(found.pending) <= found.backlog, "room to connect", deadline(self.gettimeout()))
                if found.closed:
                    raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
            ours = Stream(world, packets=unbound.packets, owner=process)
            theirs = Stream(world, packets=unbound.packets, owner=process)
            ours.connect(theirs)
            if unbound.tcp:
                ours.tcp = theirs.tcp = True
                ours.address, theirs.address = ("127.0.0.1", 40_000 + world.count("connection")), address
            ours.peer_owner = found.owner
            theirs.peer_owner = ours.owner
            theirs.references = 1
            found.pending.append(theirs)
            found.changed()
            process.table[self._number] = ours
            ours.references, unbound.references = unbound.references, 0

        def accept(self) -> tuple[Socket, Any]:
            process = world.enter("accept")
            listener = self._description()
            assert isinstance(listener, Listener)
            if not listener.pending:
                timeout = self.gettimeout()
                if timeout == 0.0:
                    raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
                if not wait([listener], lambda: bool(listener.pending), "a connection", deadline(timeout)):
                    raise TimeoutError("timed out")
            world.scarce("a descriptor to accept with", errno.EMFILE, errno.ENFILE)
            if len(process.table) >= process.most_descriptors:
                raise OSError(errno.EMFILE, "Too many open files")
            stream = listener.pending.popleft()
            number = process.add(stream)
            stream.references -= 1
            listener.changed()
            return Socket._of(stream, number), stream.other.address if stream.other is not None else stream.address

        def shutdown(self, how: int) -> None:
            world.enter("shutdown")
            stream = self._description()
            if not isinstance(stream, Stream):
                raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")
            stream.shutdown(how in {socket.SHUT_RD, socket.SHUT_RDWR}, how in {socket.SHUT_WR, socket.SHUT_RDWR})

        # -- data

        def _stream(self) -> Stream:
            description = self._description()
            if not isinstance(description, Stream):
                raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")
            return description

        def _waits(self, flags: int) -> bool:
            return self.gettimeout() != 0.0 and not flags & socket.MSG_DONTWAIT

        def sendmsg(self, buffers: Any, ancillary: Any = (), flags: int = 0, address: Any = None) -> int:
            world.enter("send")
            stream = self._stream()
            data = b"".join(bytes(each) for each in buffers)
            fds = array.array("i")
            for level, kind, payload in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    fds.frombytes(bytes(payload))
            if fds:
                world.scarce("memory for a message", errno.ETOOMANYREFS, errno.ENOBUFS)
            return self._send(stream, data, list(fds), flags)

        def _send(self, stream: Stream, data: bytes, fds: list[int], flags: int) -> int:
            until = deadline(self.gettimeout()) if self._waits(flags) else None
            while True:
                rights = outgoing(fds)
                try:
                    sent = stream.send(data, rights, world.partial)
                except BaseException:
                    unsent(rights)
                    raise
                if sent >= 0:
                    return sent
                unsent(rights)
                if not self._waits(flags):
                    raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
                if not wait([stream], lambda: stream.ready() & (POLLOUT | POLLHUP), "room to send", until):
                    raise TimeoutError("timed out")

        def send(self, data: Any, flags: int = 0) -> int:
            world.enter("send")
            return self._send(self._stream(), bytes(data), [], flags)

        def sendall(self, data: Any, flags: int = 0) -> None:
            world.enter("send")
            left = bytes(data)
            while left:
                left = left[self._send(self._stream(), left, [], flags) :]

        def _receive(self, n: int, flags: int, *, rights: bool) -> tuple[bytes, list[tuple[int, Description]]]:
            stream = self._stream()
            found = stream.receive(n, world.partial, rights=rights)
            if found is None:
                if not self._waits(flags):
                    raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
                if not wait([stream], lambda: stream.ready() & (POLLIN | POLLHUP), "data", deadline(self.gettimeout())):
                    raise TimeoutError("timed out")
                found = stream.receive(n, world.partial, rights=rights)
                if found is None:  # another thread has taken it
                    return self._receive(n, flags, rights=rights)
            return found

        def recv(self, n: int, flags: int = 0) -> bytes:
            world.enter("recv")
            return self._receive(n, flags, rights=False)[0]

        def recv_into(self, buffer: Any, n: int = 0, flags: int = 0) -> int:
            world.enter("recv")
            view = memoryview(buffer).cast("B")
            data = self._receive(n or len(view), flags, rights=False)[0]
            view[: len(data)] = data
            return len(data)

        def recvmsg(self, n: int, space: int = 0, flags: int = 0) -> tuple[bytes, list[tuple[int, int, bytes]], int, None]:
            world.enter("recvmsg")
            data, rights = self._receive(n, flags, rights=space > 0)
            numbers, lost = owned(rights, max(0, (space - 16) // 4))
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", numbers).tobytes())] if numbers else []
            return data, ancillary, socket.MSG_CTRUNC if lost else 0, None

    def socketpair(family: int = socket.AF_UNIX, type: int = socket.SOCK_STREAM, proto: int = 0) -> tuple[Socket, Socket]:
        process = world.enter("socketpair")
        world.scarce("a pair of sockets", errno.EMFILE, errno.ENFILE)
        if len(process.table) + 2 > process.most_descriptors:
            raise OSError(errno.EMFILE, "Too many open files")
        packets = type & 0xF == socket.SOCK_SEQPACKET
        one, two = Stream(world, packets=packets, owner=process), Stream(world, packets=packets, owner=process)
        one.connect(two)
        return Socket._of(one, process.add(one)), Socket._of(two, process.add(two))

    def recv_fds(sock: Socket, n: int, most: int, flags: int = 0) -> tuple[bytes, list[int], int, None]:
        world.enter("recvmsg")
        data, rights = sock._receive(n, flags, rights=True)
        numbers, lost = owned(rights, most)
        return data, numbers, socket.MSG_CTRUNC if lost else 0, None

    def number_of(file: Any) -> int:
        return file if isinstance(file, int) else int(file.fileno())

    class Poll:
        def __init__(self) -> None:
            self._watched: dict[int, int] = {}

        def register(self, file: Any, events: int = POLLIN | POLLOUT) -> None:
            self._watched[number_of(file)] = events

        modify = register

        def unregister(self, file: Any) -> None:
            del self._watched[number_of(file)]

        def poll(self, milliseconds: float | None = None) -> list[tuple[int, int]]:
            process = world.enter("poll")
            watched = [(number, process.get(number), events) for number, events in self._watched.items()]

            def ready() -> list[tuple[int, int]]:
                found = [(number, description.ready() & (events | POLLHUP | POLLERR)) for number, description, events in watched]
                return [(number, events) for number, events in found if events]

            seconds = None if milliseconds is None or milliseconds < 0 else milliseconds / 1e3
            return wait([each for _, each, _ in watched], ready, "poll", deadline(seconds))  # type: ignore[no-any-return]

    def select(reads: Any, writes: Any, errors: Any, timeout: float | None = None) -> tuple[list[Any], list[Any], list[Any]]:
        process = world.enter("select")
        readers = [(file, process.get(number_of(file))) for file in reads]
        writers = [(file, process.get(number_of(file))) for file in writes]

        def ready() -> tuple[list[Any], list[Any]] | None:
            r = [file for file, each in readers if each.ready() & (POLLIN | POLLHUP)]
            w = [file for file, each in writers if each.ready() & POLLOUT]
            return (r, w) if r or w else None

        found = wait([each for _, each in readers + writers], ready, "select", deadline(timeout)) or ([], [])
        return found[0], found[1], []

    class Selector:
        """As `selectors.EpollSelector`."""

        def __init__(self) -> None:
            world.enter("epoll")
            self._keys: dict[int, selectors.SelectorKey] = {}
            self._descriptions: dict[int, Description] = {}
            self._task: Task | None = None

        def register(self, file: Any, events: int, data: Any = None) -> selectors.SelectorKey:
            number = number_of(file)
            if number in self._keys:
                raise KeyError(f"{file!r} (FD {number}) is already registered")
            self._descriptions[number] = world.here.get(number)
            key = self._keys[number] = selectors.SelectorKey(file, number, events, data)
            return key

        def unregister(self, file: Any) -> selectors.SelectorKey:
            number = self._find(file)
            key = self._keys.pop(number)
            del self._descriptions[number]
            return key

        def _find(self, file: Any) -> int:
            number = file if isinstance(file, int) else file.fileno()
            if number < 0:
                for each in self._keys.values():
                    if each.fileobj is file:
                        return each.fd
            return int(number)

        def modify(self, file: Any, events: int, data: Any = None) -> selectors.SelectorKey:
            key = self.get_key(file)._replace(events=events, data=data)
            self._keys[key.fd] = key
            return key

        def get_key(self, file: Any) -> selectors.SelectorKey:
            try:
                return self._keys[self._find(file)]
            except KeyError:
                raise KeyError(f"{file!r} is not registered") from None

        def get_map(self) -> dict[int, selectors.SelectorKey]:
            return self._keys

        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            world.enter("epoll_wait")

            def ready() -> list[tuple[selectors.SelectorKey, int]]:
                found = []
                for number, key in self._keys.items():
                    if not key.events:
                        continue
                    events = self._descriptions[number].ready()
                    mask = 0
                    if events & (POLLIN | POLLHUP | POLLERR):
                        mask |= selectors.EVENT_READ
                    if events & (POLLOUT | POLLHUP | POLLERR):
                        mask |= selectors.EVENT_WRITE
                    if mask & key.events:
                        found.append((key, mask & key.events))
                return found

            seconds = None if timeout is None else max(timeout, 0.0)
            found = wait(list(self._descriptions.values()), ready, "epoll_wait", deadline(seconds))
            return self._shuffled(found)

        @staticmethod
        def _shuffled(found: list[Any]) -> list[Any]:
            for k in range(len(found) - 1, 0, -1):
                j = world.choices.below(k + 1)
                found[k], found[j] = found[j], found[k]
            return found

        def close(self) -> None:
            self._keys.clear()
            self._descriptions.clear()

    return {
        "EpollSelector": Selector,
        "poll": Poll,
        "recv_fds": recv_fds,
        "select": select,
        "socket": Socket,
        "socketpair": socketpair,
    }
