"""A client's end of the control socket: calls and their answers, progress, and the news that the planner process is gone."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from aspen_mp.control.wire import identity, protocol
from aspen_mp.control.wire.protocol import make_error
from aspen_mp.shm.bindings import _tables
from aspen_mp.shm.errors import AspenError, ProtocolError, ResourceLimitError, RuntimeLost
from aspen_mp.shm.greenlets import greenlets, readable
from aspen_mp.shm.scarcity import start_thread
from aspen_mp.system import descriptors, sockets, threads

M = TypeVar("M", bound=protocol.Message)
T = TypeVar("T")
ProgressCallback = Callable[[str, int, int], None]
"""Called with a step's name and how much of how much of it is done, from the control connection's thread."""


def fresh(error: AspenError) -> AspenError:
    """The same error anew: one object raised in many places would collect all their frames in its traceback."""
    return type(error)(*error.args)


@dataclass(slots=True, eq=False)
class _Call:
    """`failure`: of `progress` or `receive`."""

    kind: type[protocol.Message]
    receive: Callable[[list[int]], Any]
    progress: ProgressCallback | None
    answer: protocol.ToClient | AspenError | None = None
    failure: BaseException | None = None
    received: Any = None
    done: threads.Event = field(default_factory=lambda: threads.Event())


class ControlClient:
    """Any thread may call. One daemon thread reads the socket; when it ends, `on_lost(error)` is called once, unless `close` came first."""

    def __init__(
        self,
        sock: sockets.socket,
        on_lost: Callable[[RuntimeLost], None],
        on_stopping: Callable[[protocol.Stopping], None] = lambda _: None,
    ) -> None:
        """`on_stopping` is called on the reading thread when the runtime announces its end. Raises as `greenlets`."""
        self._sock = sock
        self._on_lost = on_lost
        self._on_stopping = on_stopping
        self._receiver = protocol.client_receiver()
        self._lock = threads.Lock()
        self._ids = itertools.count(1)
        self._calls: dict[int, _Call] = {}
        self._closed = False
        self.server_pid = 0
        self.lost: AspenError | None = None
        self._thread: threads.Thread | None = None
        self._in_greenlets = greenlets() is not None

    def handshake(self, package: str, timeout: float | None, secret: str = "") -> tuple[protocol.Welcome, list[int]]:
        """Greets. `listen` is to follow. ProtocolError if refused; RuntimeLost if the other end goes away, stays silent, or does not
        know the `secret` of the handle (empty: of none)."""
        self._sock.settimeout(timeout)
        said = identity.challenge() if secret else ""
        try:
            hello = protocol.Hello(protocol.VERSION, f"{_tables.LAYOUT_HASH:016x}", package, said)
            with suppress(BrokenPipeError, ConnectionResetError):  # it may have refused this client, and said why, already
                self._sock.sendall(protocol.encode(hello))
            while True:
                if not self._read_some(timeout):
                    raise RuntimeLost("the runtime's planner process ended before it answered")
                for message, fds in self._receiver.messages():
                    if isinstance(message, protocol.Failed):
                        raise make_error(message.error, message.text)
                    if not isinstance(message, protocol.Welcome):
                        protocol.close_all(fds)
                        raise ProtocolError(f"{type(message).__name__} instead of Welcome")
                    if secret:
                        try:
                            identity.check_proof(secret, said, message.proof)
                        except BaseException:
                            protocol.close_all(fds)
                            raise
                    self._sock.settimeout(None)
                    self.server_pid = message.pid
                    return message, fds
        except TimeoutError:
            raise RuntimeLost(f"the runtime did not answer within {timeout or 0:g} s. `aspen-mp status` shows whether it is busy") from None
        except OSError as error:
            raise RuntimeLost(f"the runtime's planner process closed the connection: {error.strerror}") from None

    def listen(self) -> None:
        """Starts the reading thread. From now on `on_lost` and `on_stopping` may be called. ResourceLimitError where no thread can be
        had."""
        thread = threads.Thread(target=self._read, name="aspen-mp control", daemon=True)
        start_thread(thread)
        self._thread = thread

    def call(
        self,
        make: Callable[[int], protocol.Message],
        kind: type[M],
        *,
        fds: tuple[int, ...] = (),
        progress: ProgressCallback | None = None,
        receive: Callable[[list[int]], T] = protocol.close_all,  # type: ignore[assignment]  # T is None then
    ) -> tuple[M, T]:
        """Send ``make(id)`` and wait for its answer, which must be a `kind`. Return it, and what `receive` makes of its descriptors.

        `receive` owns the descriptors. The reading thread calls it: no signal can come between them and the object that closes them.

        Ctrl-C ends the wait, and so does an error of `progress`, which is raised here; the answer is then dropped when it comes. Raises the
        answer's typed error, RuntimeLost when the runtime ends.
        """
        call = _Call(kind, receive, progress)
        with self._lock:
            self._check()
            number = next(self._ids)
            self._calls[number] = call
            try:
                self._send(make(number), fds)
            except (BrokenPipeError, ConnectionResetError):
                pass  # the reader is about to notice, too, and answers all calls: once one has failed, whoever asks again knows of the loss
            except BaseException as error:
                del self._calls[number]
                if isinstance(error, OSError):
                    raise self._gone() from None
                raise
        try:
            call.done.wait()
            if call.failure is not None:
                raise call.failure
        except BaseException:
            with self._lock:
                self._calls.pop(number, None)
            if call.answer is not None and not isinstance(call.answer, AspenError):
                with suppress(OSError):
                    self._give_back(call.answer)
            raise
        answer, received = call.answer, call.received
        if isinstance(answer, AspenError):
            try:
                raise answer
            finally:
                del call, answer  # an error whose frames name it would keep what is in them, a request's inputs, until the collector comes
        if not isinstance(answer, kind):
            raise ProtocolError(f"{type(answer).__name__} instead of {kind.__name__}")
        return answer, received

    def tell(self, make: Callable[[int], protocol.Message]) -> None:
        """Sends ``make(id)``; nobody waits for its answer. Nothing happens where the runtime is gone."""
        with self._lock, suppress(OSError):
            if self.lost is None:
                self._send(make(next(self._ids)))

    def _check(self) -> None:
        if self.lost is not None:
            raise fresh(self.lost)

    def _gone(self) -> RuntimeLost:
        return RuntimeLost(f"the runtime's planner process (process {self.server_pid}) is gone")

    def _read(self) -> None:
        error: AspenError = self._gone()
        try:
            self._deliver()  # what came together with the answer to the greeting
            while self._read_some():
                self._deliver()
        except (ProtocolError, OSError) as caught:
            if isinstance(caught, ProtocolError):
                error = caught
        lost = RuntimeLost(str(error))
        with self._lock:
            self.lost = self.lost or lost
            calls, self._calls = list(self._calls.values()), {}
            closed = self._closed
        for call in calls:
            call.answer = fresh(lost)
            call.done.set()
        self._receiver.close()
        if not closed:
            self._on_lost(lost)

    def _read_some(self, timeout: float | None = None) -> bool:
        """Read what has come. Return False at the end of the stream. TimeoutError: nothing came in `timeout` seconds."""
        # eventlet's sockets do not wait in `recvmsg`, and gevent's are not there where it has patched threads alone.
        if self._in_greenlets and not readable([self._sock.fileno()], timeout):
            raise TimeoutError
        return self._receiver.read(self._sock)

    def _deliver(self) -> None:
        while True:
            try:
                for message, fds in self._receiver.messages():
                    self._handle(message, fds)
                return
            except protocol.Undelivered as error:
                message = cast("protocol.ToClient", error.message)
                if isinstance(message, protocol.Progress | protocol.Welcome | protocol.Stopping):
                    continue
                self._give_back(message)
                with self._lock:
                    call = self._calls.pop(message.id, None)
                if call is not None:
                    call.answer = ResourceLimitError(str(error))
                    call.done.set()

    def _handle(self, message: protocol.ToClient, fds: list[int]) -> None:
        if isinstance(message, protocol.Welcome):
            raise ProtocolError("Welcome twice")
        if isinstance(message, protocol.Stopping):
            protocol.close_all(fds)
            self._on_stopping(message)
            return
        with self._lock:
            call = self._calls.get(message.id) if isinstance(message, protocol.Progress) else self._calls.pop(message.id, None)
        if call is None:
            protocol.close_all(fds)
            if isinstance(message, protocol.Failed) and message.id == 0:
                raise ProtocolError(message.text)
            self._give_back(message)
            return
        if isinstance(message, protocol.Progress):
            if call.progress is not None:
                try:
                    call.progress(message.step, message.done, message.total)
                except BaseException as error:  # it is its caller's, not of this thread, which every other call needs
                    call.failure, call.progress = error, None
                    call.done.set()
            return
        call.answer = make_error(message.error, message.text) if isinstance(message, protocol.Failed) else message
        if isinstance(message, call.kind):
            try:
                call.received = call.receive(fds)
            except BaseException as error:  # as of `progress`
                call.failure = error
        else:
            protocol.close_all(fds)
        call.done.set()

    def _give_back(self, message: protocol.ToClient) -> None:
        """Gives back an answer that nobody waits for any more (Ctrl-C ended the call). The answer to that finds nobody waiting either."""
        with self._lock:
            number = next(self._ids)
            if isinstance(message, protocol.Loaded):
                self._send(protocol.Unload(number, message.model))
            elif isinstance(message, protocol.DataReady):
                self._send(protocol.DropData(number, message.index))
            elif isinstance(message, protocol.TraceReady):
                self._send(protocol.TraceDrop(number))

    def _send(self, message: protocol.Message, fds: tuple[int, ...] = ()) -> None:
        """With the lock held: frames of several threads must not mix."""
        data = memoryview(protocol.encode(message, len(fds)))
        while data:
            try:
                data = data[protocol.send_part(self._sock, data, fds) :]
            except BlockingIOError:  # eventlet's sockets do not wait in `sendmsg`
                sockets.select((), (self._sock,), ())
            else:
                fds = ()

    def close(self) -> None:
        """Hangs up. Calls that wait fail with RuntimeLost."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self.lost = self.lost or RuntimeLost("the runtime is closed")
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        if self._thread is not None and self._thread is not threads.current_thread():
            self._thread.join()
        self._sock.close()
        self._receiver.close()

    def abandon(self, error: AspenError) -> None:
        """In a forked child: lets go of the descriptor without a word to the other end, which goes on talking to the parent."""
        self._closed = True
        self.lost = error
        fd = self._sock.detach()
        if fd >= 0:  # not closed before the fork
            descriptors.close(fd)
