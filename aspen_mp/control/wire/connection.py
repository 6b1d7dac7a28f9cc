"""The planner process's end of a client's socket: handshake, deadlines, frames in and out. Never blocks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from aspen_mp.control.wire import protocol
from aspen_mp.control.wire.event_loop import PRIORITY_CLIENT, SCARCE_S, Loop, Timer
from aspen_mp.control.wire.identity import peer
from aspen_mp.shm.errors import AspenError, ProtocolError
from aspen_mp.shm.scarcity import is_scarce
from aspen_mp.system import descriptors, processes, sockets

MAX_BACKLOG = 16 << 20  # bytes that a client may leave unread before it is dropped
MAX_UNANSWERED = 256  # requests of a client that may wait for their answers: each may hold a frame's worth of memory


class Connection:
    """One client's socket. `on_message(connection, message, fds)` owns the descriptors it is given; `on_close(connection)` comes once."""

    def __init__(
        self,
        loop: Loop,
        sock: sockets.socket,
        on_message: Callable[[Connection, protocol.Message, list[int]], None],
        on_close: Callable[[Connection], None],
    ) -> None:
        self.pid, self.uid, _ = peer(sock)
        self.greeted = False
        self.challenge = ""  # of its `Hello`
        self.unanswered = 0  # requests; whoever dispatches them counts up
        self._loop = loop
        self._sock = sock
        self._on_message = on_message
        self._on_close = on_close
        self._receiver = protocol.server_receiver()
        self._out: deque[tuple[memoryview, list[int]]] = deque()
        self._backlog = 0
        self._closing = False
        self.closed = False
        sock.setblocking(False)
        loop.watch(sock.fileno(), PRIORITY_CLIENT, self._readable)
        self._deadline: Timer | None = loop.later(protocol.HANDSHAKE_S, self._late)
        self._pidfd = -1
        self._watch_process()

    def _watch_process(self) -> None:
        """A forked child of the client may keep the socket open after the client itself is gone, so its process is watched too."""
        if self.closed:
            return
        try:
            if self._pidfd < 0:
                self._pidfd = processes.pidfd_open(self.pid)
            self._loop.watch(self._pidfd, PRIORITY_CLIENT, self.close)
        except ProcessLookupError:
            self._loop.later(0, self.close)
        except OSError as error:
            if is_scarce(error):
                self._loop.later(SCARCE_S, self._watch_process)

    def send(self, message: protocol.Message, fds: tuple[int, ...] = ()) -> None:
        """Queues a message; descriptors are duplicated, so the caller may close its own at once; OSError where that
        fails, and nothing is sent."""
        if self.closed or self._closing:
            return
        try:
            frame = protocol.encode(message, len(fds))
        except ProtocolError as error:
            frame, fds = protocol.encode(protocol.Failed(getattr(message, "id", 0), "ProtocolError", str(error))), ()
        copies: list[int] = []
        try:
            for fd in fds:
                copies.append(descriptors.dup(fd))  # noqa: PERF401
        except OSError:
            protocol.close_all(copies)
            raise
        if getattr(message, "id", 0) and not isinstance(message, protocol.Progress):
            self.unanswered -= 1
        self._out.append((memoryview(frame), copies))
        self._backlog += len(frame)
        self._flush()
        if self._backlog > MAX_BACKLOG:
            self.close()

    def fail(self, request: int, error: BaseException) -> None:
        """Answers a request with an error; one that is not ours is named as it is."""
        known = next((kind for kind in type(error).__mro__ if kind.__module__ == AspenError.__module__), AspenError)
        name = known.__name__
        text = str(error) if isinstance(error, AspenError) else f"{type(error).__name__}: {error}"
        self.send(protocol.Failed(request, name, text[:65536]))

    def refuse(self, error: BaseException) -> None:
        """Says why and hangs up as soon as that has been sent."""
        self.fail(0, error)
        if self.closed:
            return
        self._closing = True
        if self._out:
            self._loop.later(protocol.HANDSHAKE_S, self.close)
        else:
            self.close()

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        if self._deadline is not None:
            self._deadline.cancel()
        self._loop.unwatch(self._sock.fileno())
        self._sock.close()
        if self._pidfd >= 0:
            self._loop.unwatch(self._pidfd)
            descriptors.close(self._pidfd)
        self._receiver.close()
        for _, fds in self._out:
            protocol.close_all(fds)
        self._out.clear()
        self._on_close(self)

    def _readable(self) -> None:
        try:
            if not self._receiver.read(self._sock):
                self.close()
                return
            if self._closing:
                self._receiver.close()
                return
            completed = False
            while True:
                try:
                    for message, fds in self._receiver.messages():
                        completed = True
                        self._on_message(self, message, fds)
                        if self.closed or self._closing:
                            return
                    break
                except protocol.Undelivered as error:
                    self.fail(getattr(error.message, "id", 0), error)
                except protocol.Invalid as error:
                    if not self.greeted:
                        raise
                    completed = True
                    self.unanswered += 1
                    self.fail(error.id, error)
                    if self.closed or self._closing:
                        return
        except BlockingIOError:
            return
        except ProtocolError as error:
            self.refuse(error)
            return
        except OSError:
            self.close()
            return
        self._watch_deadline(completed)

    def _watch_deadline(self, completed: bool) -> None:
        """A deadline runs from connecting to the first message and from the first byte of a frame to its last. `completed`: a frame has
        just ended, so that what has begun is another one."""
        if self.greeted and self._deadline is not None and (completed or not self._receiver.partial):
            self._deadline.cancel()
            self._deadline = None
        if self._deadline is None and self._receiver.partial:
            self._deadline = self._loop.later(protocol.HANDSHAKE_S, self._late)

    def _late(self) -> None:
        self._deadline = None
        what = "a frame was begun and not completed" if self.greeted else "no handshake"
        self.refuse(ProtocolError(f"{what} within {protocol.HANDSHAKE_S:g} s"))

    def _flush(self) -> None:
        try:
            while self._out:
                data, fds = self._out[0]
                sent = protocol.send_part(self._sock, data, fds)
                protocol.close_all(fds)
                fds.clear()
                self._backlog -= sent
                if sent < len(data):
                    self._out[0] = (data[sent:], fds)
                else:
                    self._out.popleft()
        except BlockingIOError:
            self._loop.watch_writable(self._sock.fileno(), self._flush)
            return
        except OSError:
            self.close()
            return
        self._loop.watch_writable(self._sock.fileno(), None)
        if self._closing:
            self.close()
