"""A request's body, read within limits: its JSON first, then bytes of tensors straight into the arrays that they are for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Final, Protocol

import numpy as np

from aspen_mp.serving.limits import Limits
from aspen_mp.serving.protocol.statuses import Refused

SMALL: Final = 1 << 20
"""Bytes of a request that may use the last eighth of a budget, so that a few large ones do not shut out all others."""
DOCUMENT: Final = 64 << 10
"""Bytes of a JSON document that has no tensors."""
Receive = Callable[[], Awaitable[Any]]
Text = bytearray | memoryview


class Direct(Protocol):
    """The part of `access.connections.Exchange` that fills memory."""

    def at_hand(self, n: int) -> memoryview | None: ...

    async def read_into(self, target: memoryview, until: float | None = None, note: Callable[[int], None] | None = None) -> int: ...


class Watcher(Protocol):
    """A watcher of a body's tensors: `aspen_mp.serving.arriving.Feed`."""

    def note(self, come: int) -> None: ...

    def close(self) -> None: ...


class Disconnected(Exception):
    """The client has gone. Nobody waits for an answer."""


class Budget:
    """Bytes that all requests of a front end hold together."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken = 0

    def take(self, nbytes: int, held: int = 0) -> None:
        """Refused with 429 where that is more than there is. `held`: bytes that the request has taken before. One that is alone gets all it
        asks for."""
        most = self._most if held + nbytes <= SMALL else self._most - self._most // 8
        if self._taken > held and self._taken + nbytes > most:
            raise Refused(429, f"requests that wait hold {self._taken} bytes, and {nbytes} more exceed {most}. Try again later", 1)
        self._taken += nbytes

    def give(self, nbytes: int) -> None:
        self._taken -= nbytes


def length_of(headers: Mapping[bytes, bytes], name: bytes, most: int) -> int | None:
    """A length that a header says; None without it. Refused where it is none, or more than `most`."""
    text = headers.get(name)
    if text is None:
        return None
    if not text.isdigit() or len(text) > 15:
        raise Refused(400, f"the header {name.decode()} must be a number of bytes, not {text[:40].decode('latin-1')!r}")
    length = int(text)
    if length > most:
        raise Refused(413, f"the header {name.decode()} says {length} bytes, and this server takes {most} at most")
    return length


class Body:
    """The body of one request. The bytes that have come count in `budget` until the end of the ``with`` block.

    `read_text` and `read_into` take the next bytes. Both raise Refused (413, 408, 400, 429) and Disconnected. `direct`: fills memory with
    the rest of a body with a length; None: everything is received in pieces.
    """

    def __init__(
        self, receive: Receive, headers: Mapping[bytes, bytes], limits: Limits, budget: Budget, direct: Direct | None = None
    ) -> None:
        if headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise Refused(415, "this server does not unpack bodies. Send the request without Content-Encoding")
        self.limits = limits
        self.length = length_of(headers, b"content-length", limits.body)
        self._receive = receive
        self._direct = None if self.length is None else direct
        self._budget = budget
        self._charged = 0
        self._beside = 0
        self._rest: memoryview = memoryview(b"")
        self._more = True
        self._seen = 0
        self._until = 0.0  # when the whole body must be there; 0: nobody has waited yet
        self._window = 0.0  # when the present window ends, over which the rate is measured
        self._in_window = 0  # bytes that had come when it began
        self._watcher: Watcher | None = None
        self._head = 0  # bytes in front of what it watches

    def __enter__(self) -> Body:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None) -> None:
        self._budget.give(self._charged)
        self._charged = 0
        if self._watcher is not None:
            self._watcher.close()

    @property
    def seen(self) -> int:
        """Bytes that have come."""
        return self._seen

    def watch(self, watcher: Watcher, head: int) -> None:
        """`watcher` is told how many bytes behind the first `head` have come, from now on, and of the end of the ``with`` block."""
        self._watcher, self._head = watcher, head

    def charge(self, nbytes: int) -> None:
        """Counts bytes that the request holds from now on. Refused (429)."""
        self._budget.take(nbytes, self._charged)
        self._charged += nbytes

    def hold(self, nbytes: int) -> None:
        """Counts bytes that come with the request, and not in its body. Refused (413, 429)."""
        if self._beside + nbytes > self.limits.body:
            raise Refused(413, f"the tensors in shared memory have more than the {self.limits.body} bytes that this server takes")
        self.charge(nbytes)
        self._beside += nbytes

    def _note(self, nbytes: int) -> None:
        """Counts more bytes that have come."""
        self._seen += nbytes
        if self._direct is not None:
            self._more = self._seen < (self.length or 0)
        if self._seen > self.limits.body:
            raise Refused(413, f"the body has more than the {self.limits.body} bytes that this server takes")
        self.charge(nbytes)
        if self._watcher is not None:
            self._watcher.note(self._seen - self._head)

    # ---- time

    def _wait_until(self) -> float:
        """The time of the loop until which more must have come."""
        if not self._until:
            now = asyncio.get_running_loop().time()
            self._until, self._window = now + self.limits.body_s, now + self.limits.slow_s
        return min(self._until, self._window)

    def _check_rate(self) -> None:
        """The time has come. Refused (408) unless enough has come, too; then the next window begins."""
        limits, now = self.limits, asyncio.get_running_loop().time()
        if now >= self._until:
            raise Refused(408, f"the body was not there within {limits.body_s:g} s")
        if self._seen - self._in_window < limits.rate * limits.slow_s:
            raise Refused(408, f"the body comes too slowly: less than {limits.rate} bytes a second, within {limits.slow_s:g} s")
        self._window, self._in_window = now + limits.slow_s, self._seen

    async def _next(self) -> bool:
        """Whether there was another piece; it is in `_rest` then."""
        while self._more:
            try:
                async with asyncio.timeout_at(self._wait_until()):
                    message = await self._receive()
            except TimeoutError:
                self._check_rate()
                continue
            if message["type"] == "http.disconnect":
                raise Disconnected
            piece = message.get("body", b"")
            self._note(len(piece))
            self._more = message.get("more_body", False)
            if piece:
                self._rest = memoryview(piece)
                return True
        return False

    # ---- what is read

    async def read_text(self, n: int | None, most: int | None = None) -> Text:
        """The JSON part: the next `n` bytes, or all that follow. `most`: how many these may be."""
        most, size = self.limits.json if most is None else most, self.length if n is None else n
        if size and size > most:
            raise _too_long(most)
        if size and self._direct is not None and not self._seen and (taken := self._direct.at_hand(size)) is not None:
            self._note(size)
            return taken
        return await self._read_text(most if n is None else n, exact=n is not None)

    async def _read_text(self, n: int, *, exact: bool) -> Text:
        """The next `n` bytes; as many as there are, if not `exact`."""
        there = await self._next()
        if there and (len(self._rest) >= n if exact else not self._more and len(self._rest) <= n):
            taken, self._rest = self._rest[:n], self._rest[n:]  # all in one piece: no copy
            return taken
        if self._direct is not None and self.length is not None and not exact:
            whole = np.empty(self.length, np.uint8).data  # pages that nothing was written to take no memory
            await self.read_into([whole])
            return whole
        found = bytearray()
        while self._rest or await self._next():
            taken = self._rest[: n - len(found)]
            found += taken
            self._rest = self._rest[len(taken) :]
            if exact and len(found) == n:
                return found
            if self._rest:
                raise _too_long(n)
        if exact and len(found) < n:
            raise Refused(400, f"the body ends after {self._seen} bytes, before the {n} bytes of its JSON part")
        return found

    async def read_into(self, targets: Iterable[memoryview]) -> None:
        """Fills arrays, one after the other, with all that follows."""
        for target in targets:
            at = 0
            while at < len(target):
                if not self._rest and self._more and self._direct is not None:
                    at += await self._fill(self._direct, target[at:])
                    continue
                if not self._rest and not await self._next():
                    raise Refused(400, f"the body ends after {self._seen} bytes, in the middle of a tensor. Check binary_data_size")
                n = min(len(target) - at, len(self._rest))
                target[at : at + n] = self._rest[:n]
                self._rest = self._rest[n:]
                at += n
        if self._rest or await self._next():
            raise Refused(400, "bytes follow the last tensor. Check binary_data_size and Inference-Header-Content-Length")

    async def _fill(self, direct: Direct, target: memoryview) -> int:
        """Reads the next bytes where they belong, without a copy. Returns how much that was: all of `target` unless the body ends before,
        or more time is needed."""
        before = self._seen
        try:
            if await direct.read_into(target, self._wait_until(), self._note) < 0:
                raise Disconnected
        except TimeoutError:
            self._check_rate()
        return self._seen - before


def _too_long(most: int) -> Refused:
    return Refused(413, f"the JSON part has more than the {most} bytes that this server takes. Send tensors as binary data")
