"""Things that descriptors stand for in the simulated world: sockets, pipes, events, processes, and files of the real system."""

from __future__ import annotations

import os
import select
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from simulation.world.scheduler import Waiters

if TYPE_CHECKING:
    from simulation.world.processes import Process
    from simulation.world.world import World

POLLIN, POLLOUT, POLLHUP, POLLERR = select.POLLIN, select.POLLOUT, select.POLLHUP, select.POLLERR


class Description:
    """An open file description. Entries of processes' tables and messages under way refer to it."""

    kind = "file"

    def __init__(self, world: World) -> None:
        self.world = world
        self.references = 0
        self.waiters = Waiters(world.scheduler)
        self.blocking = True
        self.tcp = False
        self.address: Any = ""

    def ready(self) -> int:
        """The events of poll that are due."""
        return POLLIN | POLLOUT

    def changed(self) -> None:
        self.waiters.changed()

    def release(self) -> None:
        """The last reference is gone."""

    def drop(self) -> None:
        self.references -= 1
        if self.references == 0:
            self.release()


class RealFile(Description):
    """A file or memory of the real system, whose numbers are the real ones."""

    kind = "real"

    def release(self) -> None:
        self.world.unlocked()


class EventFd(Description):
    kind = "eventfd"

    def __init__(self, world: World, value: int) -> None:
        super().__init__(world)
        self.value = value

    def ready(self) -> int:
        return (POLLIN if self.value else 0) | POLLOUT

    def add(self, value: int) -> None:
        self.value += value
        self.changed()

    def take(self) -> int:
        value, self.value = self.value, 0
        return value


class PidFd(Description):
    kind = "pidfd"

    def __init__(self, world: World, process: Process) -> None:
        super().__init__(world)
        self.process = process
        process.watchers.append(self)

    def ready(self) -> int:
        return 0 if self.process.alive else POLLIN


@dataclass(slots=True)
class Message:
    """Bytes under way, with the descriptions that come along."""

    data: bytes
    rights: list[tuple[int, Description]] = field(default_factory=list)


class Stream(Description):
    """One end of a pair of connected sockets, or of a pipe."""

    kind = "socket"

    def __init__(self, world: World, *, packets: bool, owner: Process) -> None:
        super().__init__(world)
        self.packets = packets
        self.other: Stream | None = None
        self.inbox: deque[Message] = deque()
        self.waiting = 0
        """Bytes in `inbox`."""
        self.room = world.buffer_bytes()
        self.reads, self.writes = True, True
        self.shut_read = self.shut_write = False
        self.owner = (owner.pid, owner.uid)
        self.peer_owner = self.owner
        self.was_connected = False
        self.reset = False
        """Whether the other end was closed with bytes that it had not read (TCP)."""

    def connect(self, other: Stream) -> None:
        self.other, other.other = other, self
        self.peer_owner, other.peer_owner = other.owner, self.owner
        self.was_connected = other.was_connected = True

    @property
    def hung_up(self) -> bool:
        """Whether nothing more can come."""
        return self.other is None or self.other.shut_write

    def ready(self) -> int:
        events = 0
        if self.inbox or (self.hung_up and self.was_connected) or self.shut_read:
            events |= POLLIN
        if self.was_connected and self.other is None:
            events |= POLLHUP | POLLOUT
        elif self.other is not None and self.writes and self.other.waiting < self.other.room:
            events |= POLLOUT
        return events

    def send(self, data: bytes, rights: list[tuple[int, Description]], partial: Callable[[int], int]) -> int:
        """Return how many bytes have gone; -1 where there is no room.

        Raises:
            BrokenPipeError: Nobody will read them.
        """
        other = self.other
        if self.shut_write or other is None or other.shut_read:
            raise BrokenPipeError(32, "Broken pipe")
        free = other.room - other.waiting
        if self.packets:
            if free <= 0:
                return -1
            sent = len(data)
        else:
            if free <= 0:
                return -1
            sent = partial(min(free, len(data))) if len(data) else 0
        for _, description in rights:
            description.references += 1
        other.inbox.append(Message(bytes(data[:sent]), list(rights)))
        other.waiting += max(sent, 1)
        other.changed()
        return sent

    def receive(self, n: int, partial: Callable[[int], int], *, rights: bool) -> tuple[bytes, list[tuple[int, Description]]] | None:
        """Bytes and what came along; no bytes at the end of the stream. None: nothing is there yet."""
        if self.reset and not self.inbox:
            raise ConnectionResetError(104, "Connection reset by peer")
        if not self.inbox:
            return (b"", []) if self.hung_up or self.shut_read else None
        message = self.inbox[0]
        came = message.rights
        message.rights = []
        if self.packets:
            self.inbox.popleft()
            self.waiting -= max(len(message.data), 1)
            data = message.data[:n]
        else:
            take = partial(min(n, len(message.data)))
            data, message.data = message.data[:take], message.data[take:]
            self.waiting -= max(take, 1) if not message.data else take
            if not message.data:
                self.inbox.popleft()
                # Bytes of messages without rights flow together, as in the kernel.
                while len(data) < n and self.inbox and not self.inbox[0].rights and not came:
                    following = self.inbox[0]
                    take = min(n - len(data), len(following.data))
                    data, following.data = data + following.data[:take], following.data[take:]
                    self.waiting -= max(take, 1) if not following.data else take
                    if following.data:
                        break
                    self.inbox.popleft()
        if self.other is not None:
            self.other.changed()
        if came and not rights:
            self.world.discard(came)
            came = []
        return data, came

    def shutdown(self, read: bool, write: bool) -> None:
        self.shut_read |= read
        self.shut_write |= write
        self.changed()
        if self.other is not None:
            self.other.changed()

    def release(self) -> None:
        if self.tcp and self.inbox:
            self._reset()
        for message in self.inbox:
            self.world.discard(message.rights)
        self.inbox.clear()
        self.waiting = 0
        other, self.other = self.other, None
        if other is not None:
            other.other = None
            other.changed()
        self.world.closed(self)

    def _reset(self) -> None:
        """Tell the other end. What is on its way to it may be lost."""
        other = self.other
        if other is not None:
            other.reset = True
            if other.inbox and self.world.choices.chance(0.5):
                other.inbox.clear()
                other.waiting = 0


class Listener(Description):
    kind = "listener"

    def __init__(self, world: World, backlog: int, owner: Process) -> None:
        super().__init__(world)
        self.backlog = backlog
        self.owner = (owner.pid, owner.uid)
        self.pending: deque[Stream] = deque()
        self.closed = False
        self.since = world.scheduler.now
        self.filtered = False
        """Whether nobody can connect any more; those who wait to be accepted stay."""

    def ready(self) -> int:
        return POLLIN if self.pending else 0

    def release(self) -> None:
        self.closed = True
        for stream in self.pending:
            if stream.tcp and stream.other is not None:
                stream.other.reset = True
            stream.drop()
        self.changed()
        self.pending.clear()
        self.world.unlisten(self)


class Unbound(Description):
    """A socket that is neither connected nor listening."""

    kind = "unbound"

    def __init__(self, world: World, *, packets: bool, tcp: bool = False) -> None:
        super().__init__(world)
        self.packets = packets
        self.tcp = tcp
        self.bound: object = None

    def ready(self) -> int:
        return POLLHUP


class Watch(Description):
    """An inotify instance."""

    kind = "inotify"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.number = world.count("watch")
        self.events: deque[bytes] = deque()
        self.folders: dict[tuple[int, int], int] = {}
        """By device and number of a folder: which events are wanted."""

    def ready(self) -> int:
        return POLLIN if self.events else 0

    def tell(self, folder: tuple[int, int], mask: int, name: str) -> None:
        """A name has come to a folder or gone from it."""
        if folder in self.folders:
            text = os.fsencode(name) + b"\0" * (16 - len(name) % 16)
            self.events.append(struct.pack("iIII", self.folders[folder], mask, 0, len(text)) + text)
            self.changed()

    def release(self) -> None:
        self.world.watches.discard(self)


def real_number(number: int) -> bool:
    """Whether a descriptor's number is one of the real system's."""
    return number < FIRST


FIRST = 100_000
"""The first number of descriptors that only the simulated world knows."""

close_real: Callable[[int], object] = os.close
