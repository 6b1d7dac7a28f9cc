"""The client process of `bench serve`: all connections in one thread, and as little work for each answer as possible.

It shares the machine with the server that it measures. So it sends bytes that were made before, and looks at no answer but for its status
and length. It imports nothing that it does not need.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import selectors
import socket
import sys
import time
from collections import deque
from dataclasses import dataclass
from typing import Any, Final

METHOD: Final = "/inference.GRPCInferenceService/ModelInfer"
REGION: Final = "memory"
PREFIX: Final = "aspen-mp-bench-"
"""Clients' name for the memory that they share. Its names in /dev/shm begin with this."""
_RECEIVED: Final = 1 << 18
_CONNECTED_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class Job:
    """`connections` with one request each. `per_s`: requests a second that begin, at random moments; None: each connection begins the next
    one when it has the answer. `start`: of CLOCK_MONOTONIC."""

    connections: int
    per_s: float | None
    start: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Request:
    """A client's request. `shared`: what lies in memory that it shares with the server, of `shared_bytes`; empty: it shares none."""

    sent: bytes
    shared: bytes = b""
    shared_bytes: int = 0


@dataclass(slots=True)
class Done:
    """The outcome of a `Job`: latencies in seconds, from the moment at which a request was to begin; errors; the moment of the last end."""

    latencies_s: list[float]
    failed: list[str]
    end: float


def main() -> None:
    """The whole life of the process. It is told its transport, an address and the request, then one `Job` after the other."""
    transport, address, request = pickle.load(sys.stdin.buffer)
    if transport == "memory":
        _share(address, request)
    while True:
        try:
            job: Job = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        done = _grpc(address, request.sent, job) if transport == "grpc" else Load(address, request.sent, job).run()
        pickle.dump(done, sys.stdout.buffer)
        sys.stdout.buffer.flush()


def arrivals(job: Job) -> deque[float]:
    """The moments at which requests of an open loop begin."""
    chance, at, found = random.Random(0), job.start, deque[float]()
    while job.per_s is not None:
        at += chance.expovariate(job.per_s)
        if at > job.start + job.seconds:
            break
        found.append(at)
    return found


def _share(address: str, request: Request) -> None:
    """Registers memory with the request's inputs. The server keeps it when its name is gone."""
    import http.client
    from pathlib import Path

    file = Path("/dev/shm", f"{PREFIX}{os.getpid()}")
    connection = http.client.HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(address)
    try:
        file.write_bytes(request.shared.ljust(request.shared_bytes, b"\0"))
        said = json.dumps({"key": file.name, "byte_size": request.shared_bytes})
        connection.request("POST", f"/v2/systemsharedmemory/region/{REGION}/register", said)
        answer = connection.getresponse()
        if answer.status != 200:
            raise ConnectionError(answer.read().decode())
    finally:
        file.unlink(missing_ok=True)
        connection.close()


# ---- HTTP


class _Connection:
    """A connection: the bytes that are still to be sent, those that have come of the answer, and how many of it are missing."""

    def __init__(self, address: str) -> None:
        if address.startswith("/"):
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.connect(address)
        else:
            host, _, port = address.rpartition(":")
            self.socket = socket.create_connection((host, int(port)))
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.unsent = memoryview(b"")
        self.head = b""
        self.missing = -1
        self.due = 0.0

    def send(self) -> bool:
        """Whether all has been sent."""
        try:
            while self.unsent:
                self.unsent = self.unsent[self.socket.send(self.unsent) :]
        except BlockingIOError:
            pass
        return not self.unsent

    def receive(self, room: bytearray) -> bool:
        """Whether the answer is complete."""
        try:
            n = self.socket.recv_into(room)
        except BlockingIOError:
            return False
        if not n:
            raise ConnectionError("the server has closed a connection")
        if self.missing >= 0:
            self.missing -= n
            return not self.missing
        self.head += room[:n]
        head, end, body = self.head.partition(b"\r\n\r\n")
        if not end:
            return False
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        self.missing = int(length.partition(b":")[2]) - len(body)
        return not self.missing


class Load:
    """A job over HTTP."""

    def __init__(self, address: str, payload: bytes, job: Job) -> None:
        self._payload = memoryview(payload)
        self._job = job
        self._selector = selectors.DefaultSelector()
        self._idle = [_Connection(address) for _ in range(job.connections)]
        for each in self._idle:
            self._selector.register(each.socket, selectors.EVENT_READ, each)
        self._room = bytearray(_RECEIVED)
        self._coming = arrivals(job)
        self._done = Done([], [], job.start)

    def run(self) -> Done:
        """Runs until the last answer is there."""
        job, connections = self._job, len(self._idle)
        while (now := time.monotonic()) < job.start:
            self._selector.select(job.start - now)
        if job.per_s is None:
            for each in list(self._idle):
                self._begin(each, job.start)
        while self._coming or len(self._idle) < connections:
            now = time.monotonic()
            while self._coming and self._idle and self._coming[0] <= now:
                self._begin(self._idle[-1], self._coming.popleft())
            wait = max(0.0, self._coming[0] - now) if self._coming and self._idle else None
            for key, _ in self._selector.select(wait):
                self._go_on(key.data)
        self._selector.close()
        for each in self._idle:
            each.socket.close()
        return self._done

    def _begin(self, connection: _Connection, due: float) -> None:
        self._idle.remove(connection)
        connection.due, connection.unsent, connection.head, connection.missing = due, self._payload, b"", -1
        if not connection.send():
            self._selector.modify(connection.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, connection)

    def _go_on(self, connection: _Connection) -> None:
        if connection.unsent and connection.send():
            self._selector.modify(connection.socket, selectors.EVENT_READ, connection)
        if not connection.receive(self._room):
            return
        now = time.monotonic()
        if b" 200 " in connection.head[:16]:
            self._done.latencies_s.append(now - connection.due)
        else:
            self._done.failed.append(connection.head[:300].decode("latin-1"))
        self._done.end = now
        self._idle.append(connection)
        if self._job.per_s is None and now < self._job.start + self._job.seconds:
            self._begin(connection, now)


# ---- gRPC


def _grpc(address: str, payload: bytes, job: Job) -> Done:
    import asyncio

    return asyncio.run(_calls(address, payload, job))


async def _calls(address: str, payload: bytes, job: Job) -> Done:
    """A job over gRPC. Answers stay bytes."""
    import asyncio

    import grpc.aio

    done, coming = Done([], [], job.start), arrivals(job)
    async with grpc.aio.insecure_channel(address, options=[("grpc.max_receive_message_length", -1)]) as channel:
        call: Any = channel.unary_unary(METHOD)

        async def once(due: float) -> None:
            try:
                await call(payload)
            except grpc.aio.AioRpcError as error:
                done.failed.append(f"{error.code().name}: {error.details()}")
            else:
                done.latencies_s.append(time.monotonic() - due)
            done.end = time.monotonic()

        async def caller() -> None:
            while job.per_s is None and (now := time.monotonic()) < job.start + job.seconds:
                await once(now)
            while coming:
                due = coming.popleft()
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                await once(due)

        await asyncio.wait_for(channel.channel_ready(), _CONNECTED_S)
        await asyncio.sleep(max(0.0, job.start - time.monotonic()))
        await asyncio.gather(*(caller() for _ in range(job.connections)))
    return done
