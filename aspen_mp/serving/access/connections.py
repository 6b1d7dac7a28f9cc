"""uvicorn's connection over httptools: with limits on headers, and with bodies that are read straight into memory of the application's.

uvicorn gives an application its body in pieces of 64 KiB, each of which it copies three times and wakes the application for. For tensors
that takes longer than small networks run. So the socket is read by a `_Reader`, into whatever buffer the connection names. Headers and
the first part of a body go through the parser. An application that wants the rest elsewhere asks the `Exchange` among the extensions of
its scope. From its first call to the end of that body, bytes pass by the parser.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, ClassVar, Final

import httptools
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from aspen_mp.serving.access import descriptors as room
from aspen_mp.serving.access import share
from aspen_mp.serving.access.unread import Unread
from aspen_mp.serving.limits import Limits
from aspen_mp.system import descriptors

EXCHANGE: Final = "aspen_mp.exchange"
"""The extension of a scope that holds its `Exchange`."""
_HEAD: Final = 16 << 10
"""Bytes that are read while headers are expected. The part of the body that comes with them is copied."""
_READS: Final = 8
"""How often a body is read in one turn of the loop. Its client writes more meanwhile, and others wait."""
_SHORT: Final = 64 << 10
"""Bytes of an answer that are joined with its head, although they have to be copied for that."""

Headers = list[tuple[bytes, bytes]]
Note = Callable[[int], None]


class _TooLarge(Exception):
    """Raised within the parser, which stops then."""


class _Reader(asyncio.BufferedProtocol):
    """Stands between a transport and its connection, so that the transport reads into the connection's buffers."""

    def __init__(self, connection: LimitedConnection) -> None:
        self.get_buffer = connection.get_buffer  # type: ignore[method-assign]
        self.buffer_updated = connection.buffer_updated  # type: ignore[method-assign]
        self.eof_received = connection.eof_received  # type: ignore[method-assign]
        self.connection_lost = connection.connection_lost  # type: ignore[method-assign]
        self.pause_writing = connection.pause_writing  # type: ignore[method-assign]
        self.resume_writing = connection.resume_writing  # type: ignore[method-assign]


class _Flow(FlowControl):
    """uvicorn's, which pauses a transport while a request has bytes enough; and it is held while there is no share for it."""

    read_paused: bool

    def __init__(self, transport: Any, shared: share.Share) -> None:
        super().__init__(transport)
        self._share = shared
        self._held = False

    def resume_reading(self) -> None:
        if self.read_paused:
            self.read_paused = False
            if not self._held:
                self._transport.resume_reading()

    def note(self, nbytes: int) -> None:
        """Counts bytes that have been read at once."""
        self._share.take(nbytes)
        if self._share.is_used_up and nbytes > share.SMALL:
            self.hold()

    def hold(self) -> None:
        """Nothing is read before there is a share for it."""
        if not self._held:
            self._held = True
            self._transport.pause_reading()
            self._share.wait(self._release)

    def _release(self) -> None:
        self._held = False
        if not self.read_paused and not self._transport.is_closing():
            self._transport.resume_reading()


class _Lingering:
    """The transport of one answer, as far as uvicorn uses it. Its connection closes once the rest of the request has come.

    Linux resets a socket that is closed while bytes of its client have not been read. The client may lose the answer then.
    """

    def __init__(self, connection: LimitedConnection) -> None:
        transport = connection.transport
        self.write = transport.write
        self.writelines = transport.writelines
        self.is_closing = transport.is_closing
        self.close = connection.close_after_body


class Exchange:
    """The connection of a request for the application that answers it, beyond ASGI.

    Attributes:
        headers: {name: value} of the request.
        answered: Status and bytes of the body of the answer by `answer`, (0, 0) before.
    """

    def __init__(self, connection: LimitedConnection, cycle: RequestResponseCycle, headers: dict[bytes, bytes]) -> None:
        self._connection = connection
        self._cycle = cycle
        self.headers = headers
        self.answered = 0, 0

    def at_hand(self, n: int) -> memoryview | None:
        """The next `n` bytes of a body, if they have come already."""
        body = self._cycle.body
        if len(body) < n or self._cycle.disconnected:
            return None
        self._cycle.body = body[n:]
        return memoryview(body)[:n]

    async def read_into(self, target: memoryview, until: float | None = None, note: Note | None = None) -> int:
        """Fills `target` with the next bytes of a body that says its length. Returns how many those were: fewer than asked for where the
        body ends, -1 where the client has gone. TimeoutError where they are not there at `until`, a time of the loop. `note` is told how
        many bytes have come, each time, and an error that it raises ends the call."""
        return await self._connection.read_into(self._cycle, target, until, note)

    async def answer(self, headers: Headers, pieces: list[Any], *, close: bool) -> None:
        """Answers with status 200 and a body of these pieces, all in one write: two would wake the client twice. `close`: this is the last
        answer on the connection."""
        cycle, nbytes = self._cycle, sum(map(len, pieces))
        if cycle.flow.write_paused:
            self._connection.unread.owe(nbytes)
            await cycle.flow.drain()
        if self.has_ended():
            return
        cycle.keep_alive = cycle.keep_alive and not close
        cycle.response_started = cycle.response_complete = True
        lines = [*cycle.default_headers, *headers, (b"content-length", b"%d" % nbytes)]
        if not cycle.keep_alive:
            lines.append((b"connection", b"close"))
        head = b"HTTP/1.1 200 OK\r\n%b\r\n" % b"".join([b"%b: %b\r\n" % line for line in lines])
        self.answered = 200, nbytes
        if nbytes < _SHORT:
            cycle.transport.write(b"".join((head, *pieces)))
        else:
            cycle.transport.writelines([head, *pieces])
        cycle.message_event.set()
        if not cycle.keep_alive:
            cycle.transport.close()
        cycle.on_response()

    def has_ended(self) -> bool:
        """Whether nothing can be answered any more. uvicorn is told so only of the connection's last request, and only later."""
        cycle = self._cycle
        cycle.disconnected = cycle.disconnected or cycle.transport.is_closing()
        return bool(cycle.disconnected)

    def watch(self, gone: Callable[[], None] | None) -> None:
        """`gone` is called if the client goes, from now on. None: it is not called any more. The body has been read."""
        if gone is not None and self._cycle.disconnected:
            gone()
            return
        self._connection.gone = gone
        self._connection.flow.resume_reading()  # otherwise nobody would notice


def _is_late(filled: asyncio.Future[bool]) -> None:
    if not filled.done():
        filled.set_exception(TimeoutError())


class LimitedConnection(HttpToolsProtocol):
    """A connection. Headers beyond `Limits.header` are answered with 431, and those that are not there after `Limits.header_s` with 408;
    then the connection ends."""

    limits: ClassVar[Limits] = Limits()
    _scratch: ClassVar[memoryview] = memoryview(bytearray(share.PIECE))
    """Its content is used before anything else is read, so that all connections share it."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._in_headers = False
        self._in_message = False  # whether its headers have begun, and its body has not ended
        self._seen = 0  # bytes of the headers that are being read
        self._begun = 0  # requests that have begun in the bytes that were read last
        self._refused = False
        self._too_large = False
        self._timer: asyncio.TimerHandle | None = None
        self._left = 0  # bytes of a body of known length that have not come yet
        self._bypassed = False  # whether these pass by the parser
        self._lingers = False  # whether the connection closes when the body has ended
        self._sink: memoryview | None = None  # the memory that they are read into
        self._fd = -1  # to read from without a turn of the loop; -1: what comes is encrypted
        self._note: Note | None = None  # told what comes into it
        self.gone: Callable[[], None] | None = None  # as `Exchange.watch`
        self._filled: asyncio.Future[bool] | None = None  # done when it is full (True), or when the client has gone

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        transport.set_protocol(_Reader(self))
        self._share = share.of(self.loop)
        self.flow: _Flow = _Flow(transport, self._share)
        if (sock := transport.get_extra_info("socket")) is not None:
            if transport.get_extra_info("sslcontext") is None:
                self._fd = sock.fileno()
            if not room.OWN.have_room(sock.fileno()):
                transport.close()
        self.unread = Unread(self.loop, transport, self._fd, self.limits)
        self._arm()  # also a connection on which nothing ever comes

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        self.unread.forget()
        self._fill_ends(there=False)
        super().connection_lost(exc)
        if self.gone is not None:
            self.gone()

    # ---- what is read

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go."""
        if self._sink is not None:
            return self._sink[: share.PIECE]
        if self._bypassed:
            return self._scratch[: self._left]
        return self._scratch if self._in_message or self._refused else self._scratch[:_HEAD]

    def buffer_updated(self, nbytes: int) -> None:
        """Takes the bytes that have come."""
        self.flow.note(nbytes)
        if not self._bypassed:
            self.data_received(self._scratch[:nbytes])
            return
        direct, note = self._sink is not None, self._note
        if self._sink is not None:
            self._sink = self._sink[nbytes:]
        else:
            super().on_body(bytes(self._scratch[:nbytes]))
        self._passed_by(nbytes, direct=direct)
        if self._left and not self._sink and not self.cycle.response_complete:
            self.flow.pause_reading()
        if direct and note is not None:
            try:
                note(nbytes)
            except Exception as error:
                self._fill_ends(there=False, error=error)
                return
        if self._sink is not None and not self._sink:
            self._fill_ends(there=True)

    def _passed_by(self, nbytes: int, *, direct: bool) -> None:
        """Counts bytes of a body that have come by the parser, straight to the application or not."""
        self._left -= nbytes
        if self._left:
            return
        self._bypassed = self._in_message = False
        if self._timer is not None:
            self._disarm()
        if direct:
            self.cycle.more_body = False
        else:
            super().on_message_complete()
        if self._lingers:
            self._close()
        self.parser = httptools.HttpRequestParser(self)  # the one before has not seen the end
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)

    def _fill_ends(self, *, there: bool, error: Exception | None = None) -> None:
        self._sink = None
        if self._filled is None or self._filled.done():
            return
        if error is not None:
            self._filled.set_exception(error)
        else:
            self._filled.set_result(there)

    async def read_into(self, cycle: RequestResponseCycle, target: memoryview, until: float | None, note: Note | None) -> int:
        """Reads as `Exchange.read_into`; `cycle` is the request's."""
        known = min(len(cycle.body), len(target))
        if known:
            target[:known] = cycle.body[:known]
            cycle.body = cycle.body[known:]
            if not cycle.body:
                cycle.message_event.clear()
            if note is not None:
                note(known)
        following = min(len(target) - known, self._left)
        if cycle.disconnected:
            return -1
        if not following:
            return known
        self._bypassed = True
        at = known
        for _ in range(_READS):
            if self._share.is_used_up or not (n := self._read_now(target[at : min(known + following, at + share.PIECE)])):
                break
            at += n
            self._share.take(n)
            if note is not None:
                note(n)
        if at == known + following:
            return at
        self._sink, self._note = target[at : known + following], note
        self._filled = filled = self.loop.create_future()
        timer = None if until is None else self.loop.call_at(until, _is_late, filled)
        if self._share.is_used_up:
            self.flow.hold()
        self.flow.resume_reading()
        try:
            return known + following if await filled else -1
        finally:
            self._sink = self._filled = self._note = None
            if timer is not None:
                timer.cancel()

    def _read_now(self, target: memoryview) -> int:
        """Reads the bytes that have come already of the rest of a body. The transport holds nothing back: it gives all bytes that it reads
        at once."""
        if self._fd < 0 or self.transport.is_closing():  # then another connection may have its number
            return 0
        try:
            n = descriptors.readv(self._fd, [target])
        except OSError:  # mostly: there is nothing yet
            return 0
        if n:
            self._passed_by(n, direct=True)
        return n

    def on_body(self, body: bytes) -> None:
        self._left = max(0, self._left - len(body))
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_message = False
        if self._timer is not None:
            self._disarm()
        super().on_message_complete()
        if self._lingers:
            self._close()

    # ---- what is written

    def close_after_body(self) -> None:
        """Close the connection after an answer. The rest of the request is read before, and thrown away."""
        if not self._in_message or self.transport.is_closing():
            self.transport.close()
            return
        self._lingers = True
        if self.transport.can_write_eof():  # a client that waits for the end of the answer sees it now
            self.transport.write_eof()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.unread.owe(0)

    def resume_writing(self) -> None:
        super().resume_writing()
        self.unread.settle()

    def on_response_complete(self) -> None:
        """An answer has been given to the transport."""
        if self._lingers:
            self.pipeline.clear()  # requests that came after the last one that is answered
        super().on_response_complete()
        if self.transport.is_closing():
            self.unread.owe(0)  # it closes once its client has read everything
        elif self._in_message and self._timer is None:
            self._timer = self.loop.call_later(self.limits.body_s, self._late)  # for the rest of the body, which nobody reads

    def timeout_keep_alive_handler(self) -> None:
        self._close()

    def _close(self) -> None:
        """The end of the connection, once its client has read everything."""
        self.transport.close()
        self.unread.owe(0)

    # ---- headers

    def data_received(self, data: bytes | memoryview) -> None:
        if self._refused:
            return
        before, self._begun = self._in_message, 0
        super().data_received(data)
        if self._in_headers and not self._refused and (not self._begun or (self._begun == 1 and not before)):
            self._seen += len(data)  # all of it belongs to this head, nothing to a request before it
            if self._seen > self.limits.header:
                self._refuse(431, f"the headers have more than {self.limits.header} bytes")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_headers = self._in_message = True
        self._begun += 1
        self._left = 0
        self._seen = 0
        if self._timer is None:
            self._arm()

    def on_headers_complete(self) -> None:
        self._in_headers = False
        self._disarm()
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > self.limits.header:
            self._too_large = True
            raise _TooLarge
        super().on_headers_complete()
        said = dict(self.headers)
        self.scope["extensions"] = {EXCHANGE: Exchange(self, self.cycle, said)}
        length = said.get(b"content-length", b"")
        if length.isdigit() and b"transfer-encoding" not in said and not self.parser.should_upgrade():
            self._left = int(length)
            if self._left > _HEAD:
                self.flow.pause_reading()  # until the application says where the rest goes
        if self._left or b"transfer-encoding" in said:
            self.cycle.transport = _Lingering(self)

    def send_400_response(self, msg: str) -> None:
        """Called by uvicorn where the parser has stopped. The end of the connection is all that a second answer would be."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._close()
        elif self._too_large:
            self._refuse(431, f"the headers have more than {self.limits.header} bytes")
        else:
            self._refuse(400, "this is not a request of HTTP/1.1")

    def _arm(self) -> None:
        self._timer = self.loop.call_later(self.limits.header_s, self._late)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        self._timer = None
        if self._in_headers:
            self._refuse(408, f"the headers were not there within {self.limits.header_s:g} s")
        else:
            self._close()

    def _refuse(self, status: int, text: str) -> None:
        self._refused = True
        self._disarm()
        if self.transport.is_closing():
            return
        body = json.dumps({"error": text}).encode()
        head = f"HTTP/1.1 {status} Refused\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        self.transport.write(head.encode() + body)
        self.loop.call_soon(self._close)  # first what has come is read: a socket with unread bytes would reset the connection
