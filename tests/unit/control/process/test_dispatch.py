"""Every message of a client has its handler, and what goes wrong in one is told to this client alone."""

from __future__ import annotations

import errno
import os
from types import SimpleNamespace
from typing import get_args

import pytest

from aspen_mp.control.process.dispatch import Dispatcher
from aspen_mp.control.wire import protocol
from aspen_mp.control.wire.connection import MAX_UNANSWERED
from aspen_mp.shm.errors import AspenError, ProtocolError, RequestError, ResourceLimitError, RuntimeStopping

FULL = OSError(errno.EMFILE, os.strerror(errno.EMFILE))


class Connection:
    """Notes how requests are answered, and why it is refused."""

    def __init__(self) -> None:
        self.unanswered = 0
        self.failed: list[tuple[int, type]] = []
        self.refused: list[type] = []

    def fail(self, request: int, error: BaseException) -> None:
        self.failed.append((request, type(error)))

    def refuse(self, error: BaseException) -> None:
        self.refused.append(type(error))


class World:
    """A dispatcher with one client, whose messages all raise `error`."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.connection, self.stranger = Connection(), Connection()
        clients = {self.connection: SimpleNamespace(connection=self.connection, number=1)}
        self.dispatcher = Dispatcher(SimpleNamespace(base=SimpleNamespace(clients=clients)), None, None)  # type: ignore[arg-type]

        def handler(client: object, message: object, fds: list[int]) -> None:
            if error is not None:
                raise error

        self.dispatcher._handlers = dict.fromkeys(self.dispatcher._handlers, handler)

    def hear(self, connection: Connection, fds: list[int]) -> None:
        self.dispatcher.heard(connection, protocol.Status(7), fds)  # type: ignore[arg-type]


def test_every_message_has_a_handler() -> None:
    assert set(World().dispatcher._handlers) == set(get_args(protocol.ToServer)) - {protocol.Hello}


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (RequestError("x"), RequestError),
        (RuntimeStopping("x"), RuntimeStopping),
        (FULL, ResourceLimitError),
        (MemoryError(), ResourceLimitError),
        (ValueError("x"), AspenError),
        (OSError(errno.EINVAL, "x"), AspenError),
    ],
)
def test_an_error_answers_the_request(error: BaseException, answer: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.excepthook", lambda *_: None)
    world, fd = World(error), os.dup(0)
    world.hear(world.connection, [fd])
    assert world.connection.failed == [(7, answer)]
    assert not world.connection.refused
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(fd)


def test_who_breaks_the_protocol_is_refused() -> None:
    world = World(ProtocolError("x"))
    world.hear(world.connection, [])
    world.hear(world.stranger, [])  # it has not said Hello
    assert world.connection.refused == world.stranger.refused == [ProtocolError]
    world.dispatcher._handlers.clear()
    world.hear(world.connection, [])
    assert world.connection.refused == [ProtocolError] * 2


def test_a_client_may_wait_for_so_many_answers() -> None:
    world = World()
    for _ in range(MAX_UNANSWERED):
        world.hear(world.connection, [])
    assert not world.connection.failed
    world.hear(world.connection, [])
    assert world.connection.failed == [(7, ResourceLimitError)]
