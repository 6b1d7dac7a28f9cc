"""A planner process and workers in miniature: real processes over real segments, without models, sockets or the public API.

The test process owns the segments; workers are forked, receive descriptors over a socket pair, map them and run the engine.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
from synthetic import Synthetic

from aspen_mp.shm.bindings import _control
from aspen_mp.shm.bindings._channel import ClientChannel, Result
from aspen_mp.shm.bindings._control import ControlTable
from aspen_mp.shm.segments import Segment
from aspen_mp.workers._dse import Engine

WATCHDOG = 30.0
WRITABLE = ("arena", "data", "client")
Opaque = Callable[[Engine, int, int], None]


def _worker(control: Segment, bell: Segment, row: int, sock: socket.socket, opaque: Opaque | None) -> None:
    engine = Engine(control.buf, bell.buf, row)
    segments: dict[int, Segment] = {}

    def attach(seq: int) -> None:
        while True:
            sock.setblocking(bool(engine.missing(seq)))  # everything that waits, and whatever is still on the way
            try:
                data, fds, _, _ = socket.recv_fds(sock, 65536, 1)
            except BlockingIOError:
                break
            if not data:
                os._exit(3)
            number, role = json.loads(data)
            segments[number] = Segment.from_fd(fds[0], role, writable=role in WRITABLE)
            segments[number].close_fd()
            engine.map(number, role, segments[number].buf)
        gone = engine.stale()
        engine.attached(seq)
        for number in gone:
            segments.pop(number).close()

    while True:
        reason, a, b = engine.run()
        if reason == "attach":
            attach(a)
        elif reason == "opaque":
            assert opaque is not None
            opaque(engine, a, b)
        elif reason == "drained":
            sock.send(b"drained")
        else:
            break
    engine.close()


class Client:
    """A client with one data segment."""

    def __init__(self, machine: Machine, data_bytes: int) -> None:
        self.segment, self.data = Segment.create("client", _control.CLIENT_BYTES), Segment.create("data", data_bytes)
        self.machine = machine
        self.number = machine.table.add_client(machine.announce(self.segment), self.segment.buf)
        self.index = machine.table.add_data(self.number, machine.announce(self.data))
        machine.table.publish()
        self.channel = ClientChannel(self.segment.buf, machine.bell.buf)
        self.bytes: npt.NDArray[np.uint8] = np.frombuffer(self.data.buf, np.uint8)

    def region(self, plan: Synthetic, k: int) -> int:
        return _control.DATA_FIRST + k * plan.request_bytes

    def put(self, plan: Synthetic, k: int, x: npt.NDArray[np.uint64]) -> int:
        at = self.region(plan, k)
        self.bytes[at + plan.x_offset : at + plan.x_offset + x.nbytes] = x.view(np.uint8)
        return at

    def get(self, plan: Synthetic, k: int) -> npt.NDArray[np.uint64]:
        at = self.region(plan, k) + plan.y_offset
        return self.bytes[at : at + 8 * plan.length].view(np.uint64).copy()

    def wait(self, ticket: int) -> Result:
        result = self.channel.wait(ticket, WATCHDOG)
        assert result is not None, f"no result after {WATCHDOG} s: {self.machine.table.status()} {self.machine.table.workers()}"
        self.channel.release(ticket)
        return result


class Machine:
    def __init__(self, max_workers: int = 8, *, spin_us: int = 50, opaque: Opaque | None = None) -> None:
        self.control, self.bell = Segment.create("control", _control.CONTROL_BYTES), Segment.create("doorbell", _control.DOORBELL_BYTES)
        self.table = ControlTable(self.control.buf, self.bell.buf, create=True, max_workers=max_workers, spin_us=spin_us)
        self.segments: dict[int, Segment] = {}
        self.workers: dict[int, tuple[int, socket.socket]] = {}
        self.opaque = opaque
        self.closers: list[Segment] = []

    def announce(self, segment: Segment) -> int:
        number = self.table.add_segment(segment.role, segment.nbytes)
        self.segments[number] = segment
        for _, sock in self.workers.values():
            socket.send_fds(sock, [json.dumps([number, segment.role]).encode()], [segment.fd])
        return number

    def start(self, row: int, **place: Any) -> int:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.table.worker_reset(row, **place)
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                ours.close()
                _worker(self.control, self.bell, row, theirs, self.opaque)
                status = 0
            except BaseException:
                import traceback

                traceback.print_exc()
            os._exit(status)
        theirs.close()
        self.workers[row] = (pid, ours)
        self.table.worker_started(row, pid, 0)
        for number, segment in self.segments.items():
            socket.send_fds(ours, [json.dumps([number, segment.role]).encode()], [segment.fd])
        self.table.publish()
        return pid

    def stop_worker(self, row: int, command: str = "leave") -> None:
        self.table.worker_command(row, command)
        self.reap(row)

    def reap(self, row: int) -> None:
        pid, sock = self.workers.pop(row)
        deadline = time.monotonic() + WATCHDOG
        while True:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                break
            if time.monotonic() > deadline:
                state = (self.table.workers(), self.table.status())
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                raise AssertionError(f"worker {row} does not exit: {state}")
            time.sleep(0.002)
        sock.close()
        self.table.worker_gone(row)
        assert status == 0, f"worker {row} ended with status {status:#x}"

    def load(self, plan: Synthetic, instances: int = 2, **terms: Any) -> tuple[int, int]:
        """`terms`: of `ControlTable.add_plan`."""
        # The plan's own first bytes are its magic; the segment is stamped over them with the size of the segment, which is the larger.
        segment = Segment.create("plan", len(plan.plan))
        segment.buf[: len(plan.plan)] = plan.plan
        arenas = [self.announce(Segment.create("arena", plan.arena_bytes)) for _ in range(instances)]
        result = self.table.add_plan(self.announce(segment), [], arenas, **terms)
        self.table.publish()
        return result

    def wait_drained(self, row: int) -> None:
        """Blocks until that worker says that something dropped is no longer used."""
        _, sock = self.workers[row]
        sock.settimeout(WATCHDOG)
        assert sock.recv(16) == b"drained"

    def collect(self) -> list[int]:
        gone = self.table.collect()
        for number in gone:
            self.closers.append(self.segments.pop(number))
        if gone:
            self.table.publish()
        return gone

    def close(self) -> None:
        self.table.stop()
        with contextlib.ExitStack() as stack:
            for row in list(self.workers):
                stack.callback(self.reap, row)

    def __enter__(self) -> Machine:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        try:
            self.close()
        finally:
            for segment in [*self.segments.values(), *self.closers, self.control, self.bell]:
                segment.close()
