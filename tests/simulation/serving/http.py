"""A client of HTTP/1.1 that simulated visitors use. It knows nothing of the server's code."""

from __future__ import annotations

import contextlib
import errno
import itertools
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from simulation.world.world import World

ADDRESS: Final = ("127.0.0.1", 8000)
SCARCE: Final = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS}
"""Errors that are the visitor's own trouble."""
PATIENCE_S: Final = 400.0
"""Longer than any answer may take."""


@dataclass(slots=True)
class Outcome:
    """What became of one request. Times are in virtual nanoseconds.

    Attributes:
        how: "answered", "refused", "cut" (the connection ended before the answer), "torn" (within it), "late", or "left" by the visitor.
        connected: When the connection was made; 0 where it was not.
        first: When its first byte had been sent; 0: none was.
        sent: When its last byte had been sent; 0: it was not.
    """

    began: int
    how: str = ""
    connected: int = 0
    first: int = 0
    sent: int = 0
    ended: int = 0
    idle_s: float = 0.0
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


def request(method: str, path: str, headers: dict[str, str], body: bytes) -> bytes:
    """The bytes of a request."""
    lines = [f"{method} {path} HTTP/1.1", "host: localhost", *(f"{name}: {value}" for name, value in headers.items())]
    if body or method == "POST":
        lines.append(f"content-length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class Connection:
    """A connection that may be used for several requests, one after the other."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._sock: Any = None
        self._data = b""
        self._connected = 0
        self._last = 0

    @property
    def _now(self) -> int:
        return self._world.scheduler.now

    def ask(self, data: bytes, *, cuts: tuple[int, ...] = (), pause_s: float = 0.0, leave: str = "") -> Outcome:
        """Send a request and wait for its answer.

        Args:
            cuts: Where the request is cut into pieces, between which the visitor waits.
            leave: "middle": the visitor goes before all is sent; "before": before it reads the answer.
        """
        outcome = Outcome(self._now)
        try:
            self._connect(outcome)
        except OSError as error:
            outcome.how = "left" if error.errno in SCARCE else "late" if isinstance(error, TimeoutError) else "refused"
            return self._over(outcome)
        with contextlib.suppress(OSError):  # there may be an answer, all the same
            self._send(data, cuts, pause_s, leave, outcome)
        if outcome.how == "left":
            return self._over(outcome)
        self._answer(outcome)
        return self._over(outcome)

    def pipelined(self, several: list[bytes], cut: int = 0, pause_s: float = 0.0) -> list[Outcome]:
        """Send requests at once and wait for the answers. `cut`: so many bytes of the last request come first, and the others `pause_s`
        later."""
        from aspen_mp.system import clock

        outcomes = [Outcome(self._now) for _ in several]
        try:
            self._connect(outcomes[0])
            whole = b"".join(several)
            at = len(whole) - len(several[-1]) + cut if cut else len(whole)
            self._sock.sendall(whole[:at])
            if at < len(whole):
                clock.sleep(pause_s)
                self._sock.sendall(whole[at:])
        except OSError as error:
            if error.errno in SCARCE:
                for outcome in outcomes:
                    outcome.how, outcome.ended = "left", self._now
                return outcomes
        found = []
        for outcome in outcomes:
            outcome.connected = outcomes[0].connected
            outcome.first = outcome.sent = self._now
        for outcome in outcomes:
            if self._sock is None:
                outcome.how, outcome.ended = "refused" if not outcome.connected else "cut", self._now
            else:
                self._answer(outcome)
                self._over(outcome)
            found.append(outcome)
        return found

    def _connect(self, outcome: Outcome) -> None:
        from aspen_mp.system import sockets

        if self._sock is not None:
            outcome.idle_s = (self._now - self._last) / 1e9
            if outcome.idle_s > 60:
                self.close()
        if self._sock is None:
            outcome.idle_s = 0.0
            self._data = b""
            self._sock = sockets.socket(socket.AF_INET, socket.SOCK_STREAM)
            self._sock.settimeout(PATIENCE_S)
            try:
                self._sock.connect(ADDRESS)
            except OSError:
                self.close()
                raise
            self._connected = self._now
        outcome.connected = self._connected

    def _send(self, data: bytes, cuts: tuple[int, ...], pause_s: float, leave: str, outcome: Outcome) -> None:
        from aspen_mp.system import clock

        places = [0, *sorted({1 + cut % (len(data) - 1) for cut in cuts}), len(data)]
        pieces = [data[low:high] for low, high in itertools.pairwise(places)]
        for k, piece in enumerate(pieces):
            if k and pause_s:
                clock.sleep(pause_s)
            if leave == "middle" and k == len(pieces) - 1:
                outcome.how = "left"
                return
            self._sock.sendall(piece)
            outcome.first = outcome.first or self._now
        outcome.sent = self._now
        if leave == "before":
            if pause_s:
                clock.sleep(pause_s)
            outcome.how = "left"

    def _answer(self, outcome: Outcome) -> None:
        try:
            while b"\r\n\r\n" not in self._data:
                if not self._more():
                    outcome.how = "torn" if self._data else "cut"
                    return
            head, _, self._data = self._data.partition(b"\r\n\r\n")
            lines = head.decode("latin-1").split("\r\n")
            outcome.status = int(lines[0].split()[1])
            outcome.headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
            length = int(outcome.headers["content-length"])
            while len(self._data) < length:
                if not self._more():
                    outcome.how = "torn"
                    return
            outcome.body, self._data = self._data[:length], self._data[length:]
            outcome.how = "answered"
        except TimeoutError:
            outcome.how = "late"
        except OSError:
            outcome.how = "torn" if outcome.status else "cut"

    def _more(self) -> bool:
        got = self._sock.recv(1 << 16)
        self._data += got
        return bool(got)

    def _over(self, outcome: Outcome) -> Outcome:
        outcome.ended = self._last = self._now
        if outcome.how != "answered" or outcome.headers.get("connection") == "close":
            self.close()
        return outcome

    def close(self) -> None:
        sock, self._sock = self._sock, None
        if sock is not None:
            sock.close()
