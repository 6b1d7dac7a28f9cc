"""A session that cannot begin, for whatever reason and wherever, leaves nothing open: neither its socket nor what came over it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from aspen_mp.client import session as sessions
from aspen_mp.client.session import Session
from aspen_mp.control.wire.client import ControlClient
from aspen_mp.errors import ProtocolError, ResourceLimitError, RuntimeLost
from aspen_mp.shm.segments import Segment

ROLES = ("client", "doorbell", "tally")
STEPS: dict[str, tuple[Any, str, BaseException]] = {
    "a thread": (ControlClient, "listen", ResourceLimitError("no thread")),
    "a channel": (Session, "_make_channel", OSError(24, "no descriptors")),
    "a tally": (sessions, "Tally", MemoryError()),
    "a table": (sessions, "DataMemory", MemoryError()),
    "Ctrl-C": (sessions, "Loans", KeyboardInterrupt()),
    "an answer": (ControlClient, "handshake", ProtocolError("no")),
}


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def mappings() -> int:
    with open("/proc/self/maps", encoding="utf-8") as maps:
        return sum("aspen" in line for line in maps)


def sent(damaged: int = -1, count: int = 3) -> list[int]:
    """What comes with the answer to the greeting. File `damaged` is none of a segment."""
    found = []
    for number, role in enumerate(ROLES[:count]):
        if number == damaged:
            found.append(os.memfd_create("short"))
            continue
        with Segment.create(role if role != "tally" else "data", 1 << 18, memfd=True) as segment:  # whose first line is its own
            found.append(os.dup(segment.fd))
    return found


@pytest.fixture
def sock() -> Iterator[socket.socket]:
    """A socket whose other end has to see the end of the stream. Nothing else may be left either."""
    ours, theirs = socket.socketpair()
    files, maps = open_files() - 2, mappings()
    yield ours
    theirs.settimeout(60)
    assert theirs.recv(1) == b""
    theirs.close()
    assert ours.fileno() < 0
    assert open_files() == files
    assert mappings() == maps


@pytest.mark.parametrize("lacks", STEPS)
def test_a_step_fails(monkeypatch: pytest.MonkeyPatch, sock: socket.socket, lacks: str) -> None:
    owner, name, error = STEPS[lacks]

    def fail(*_: object) -> Any:
        raise error

    monkeypatch.setattr(ControlClient, "handshake", lambda *_: (None, sent()))
    monkeypatch.setattr(owner, name, fail)
    with pytest.raises(type(error)):
        Session(sock, "test", 1.0)


@pytest.mark.parametrize("count", [0, 1, 2, 4])
def test_files_are_missing(monkeypatch: pytest.MonkeyPatch, sock: socket.socket, count: int) -> None:
    monkeypatch.setattr(ControlClient, "handshake", lambda *_: (None, sent(count=count) + [os.dup(0) for _ in range(3, count)]))
    with pytest.raises(RuntimeLost, match="descriptors"):
        Session(sock, "test", 1.0)


@pytest.mark.parametrize("damaged", range(3))
def test_a_file_is_not_what_it_should_be(monkeypatch: pytest.MonkeyPatch, sock: socket.socket, damaged: int) -> None:
    monkeypatch.setattr(ControlClient, "handshake", lambda *_: (None, sent(damaged)))
    with pytest.raises(ProtocolError, match="segment"):
        Session(sock, "test", 1.0)
