"""gRPC at an address that all front ends share."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import Any, Final

import grpc.aio
import msgspec

from aspen_mp.serving.grpc.health import Health
from aspen_mp.serving.grpc.service import Service
from aspen_mp.serving.limits import Limits
from aspen_mp.shm.errors import AspenError
from aspen_mp.system import filesystem, sockets

_IDENTITY_ONLY: Final = 1
"""The bits for compressions in gRPC: none but the identity. A small message must not unpack to a large one."""


@contextlib.contextmanager
def reserved(host: str, port: int) -> Iterator[str]:
    """Holds an address for front ends, which then listen at it each for itself. Yields it as HOST:PORT. OSError names it.

    The socket is bound as one that shares with nobody, so that two servers never share a port by accident. Only then it is opened to
    sockets with SO_REUSEPORT of the same user. It does not listen, and is therefore handed no connection.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with sockets.socket(family) as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            held.bind((host, port))
        except OSError as error:
            raise OSError(error.errno, f"cannot listen at {host}:{port}: {error.strerror or error}. Choose another --grpc-port") from None
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        yield f"[{host}]:{held.getsockname()[1]}" if family == socket.AF_INET6 else f"{host}:{held.getsockname()[1]}"


class Secrets(msgspec.Struct, frozen=True, kw_only=True):
    """Files of TLS, PEM each. `certificate`: with those between it and its root."""

    certificate: str
    key: str


class Listener:
    """A front end's server, from `start` to `stop`. Both run on the event loop that answers."""

    def __init__(self, service: Service, health: Health, address: str, limits: Limits, secrets: Secrets | None) -> None:
        self._address = address
        self._secrets = secrets
        self._server: Any = grpc.aio.server(
            options=[
                ("grpc.so_reuseport", 1),
                ("grpc.max_receive_message_length", limits.body),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_metadata_size", limits.header),
                ("grpc.absolute_max_metadata_size", limits.header),
                ("grpc.max_concurrent_streams", limits.streams),
                ("grpc.keepalive_time_ms", round(limits.unread_s * 1000)),
                ("grpc.keepalive_timeout_ms", round(limits.unread_s * 1000)),
                ("grpc.http2.ping_timeout_ms", round(limits.unread_s * 1000)),
                ("grpc.max_connection_idle_ms", round(limits.keep_alive_s * 1000)),
                ("grpc.compression_enabled_algorithms_bitset", _IDENTITY_ONLY),
            ]
        )
        self._health = health
        self._server.add_generic_rpc_handlers([service.handlers(), health.handlers(service)])

    async def start(self) -> None:
        """Accepts connections from now on. AspenError where it cannot listen."""
        try:
            if self._secrets is None:
                self._server.add_insecure_port(self._address)
            else:
                files = _contents(self._secrets.key), _contents(self._secrets.certificate)
                self._server.add_secure_port(self._address, grpc.ssl_server_credentials([files]))
        except RuntimeError as error:
            raise AspenError(f"gRPC cannot listen at {self._address}: {error}") from None
        await self._server.start()

    async def stop(self, grace_s: float) -> None:
        """Accepts no more requests, and waits for those in flight, `grace_s` seconds at most."""
        self._health.end()
        await self._server.stop(grace_s)


def _contents(path: str) -> bytes:
    with filesystem.open(path, "rb") as file:
        return file.read()
