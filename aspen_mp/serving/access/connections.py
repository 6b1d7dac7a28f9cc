"""uvicorn's connection over httptools, with limits on the size of headers and on how long they may take."""

from __future__ import annotations

import asyncio
import json
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from aspen_mp.serving.limits import Limits


class _TooLarge(Exception):
    """Raised within the parser, which stops then."""


class LimitedConnection(HttpToolsProtocol):
    """A connection. Headers beyond `Limits.header` are answered with 431, and those that are not there after `Limits.header_s` with 408;
    then the connection ends."""

    limits: ClassVar[Limits] = Limits()

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._in_headers = False
        self._seen = 0
        self._refused = False
        self._too_large = False
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._arm()  # also a connection on which nothing ever comes

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        super().data_received(data)
        if self._in_headers and not self._refused:
            self._seen += len(data)
            if self._seen > self.limits.header:
                self._refuse(431, f"the headers have more than {self.limits.header} bytes")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_headers = True
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

    def send_400_response(self, msg: str) -> None:
        """Called by uvicorn where the parser has stopped. The end of the connection is all that a second answer would be."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.transport.close()
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
            self.transport.close()

    def _refuse(self, status: int, text: str) -> None:
        self._refused = True
        self._disarm()
        if self.transport.is_closing():
            return
        body = json.dumps({"error": text}).encode()
        head = f"HTTP/1.1 {status} Refused\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        self.transport.write(head.encode() + body)
        self.transport.close()
