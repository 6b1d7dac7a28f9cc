"""Frames of the control socket: what goes in comes out, and everything else is refused."""

from __future__ import annotations

import os
import socket
import struct

import msgspec
import pytest

from aspen_mp.control.wire import protocol
from aspen_mp.control.wire.client import ControlClient
from aspen_mp.errors import AspenError, ProtocolError, RequestError, ResourceLimitError, RuntimeLost
from aspen_mp.planner.job.request import PlanRequest

HEADER = struct.Struct("<IHH")


@pytest.fixture
def pair():
    a, b = socket.socketpair()
    b.settimeout(10)
    yield a, b
    a.close()
    b.close()


def frame(payload: bytes, fds: int = 0) -> bytes:
    return HEADER.pack(len(payload), fds, 0x4D41) + payload


def read_all(sock: socket.socket, receiver: protocol.Receiver) -> list:
    found = []
    while receiver.read(sock):
        found += list(receiver.messages())
    return found


MESSAGES = [
    protocol.Hello(1, "00ff", "0.1.0"),
    protocol.Load(7, "/a/b.onnx", "b", PlanRequest(accuracy="fast", instances=2), 0.5),
    protocol.MakePlan(
        8, 1, [[protocol.Bind("x", "float32", [1, 3], None), protocol.Bind("s", "int64", [2], b"\1" * 16)]], [protocol.Capacity("y", 64)]
    ),
    protocol.Unload(9, 1),
    protocol.Data(10, 1 << 40),
    protocol.DropData(11, 3),
    protocol.Explain(12, 4, 1, 5),
    protocol.Resize(13, 1, 0, -1, [3]),
    protocol.Status(14),
    protocol.Stop(15),
]


def test_messages_survive_byte_wise_delivery(pair):
    a, b = pair
    receiver = protocol.server_receiver()
    found = []
    for byte in b"".join(protocol.encode(m) for m in MESSAGES):
        a.sendall(bytes([byte]))
        assert receiver.read(b)
        found += [m for m, _ in receiver.messages()]
    assert found == MESSAGES
    assert not receiver.partial


def test_many_messages_in_one_read(pair):
    a, b = pair
    a.sendall(b"".join(protocol.encode(m) for m in MESSAGES))
    a.close()
    assert [m for m, _ in read_all(b, protocol.server_receiver())] == MESSAGES


def test_descriptors_stay_with_their_message(pair):
    a, b = pair
    files = [os.memfd_create(f"n{i}") for i in range(3)]
    for i, fd in enumerate(files):
        os.write(fd, bytes([i]))
        message = protocol.Load(i, "", "m")
        assert protocol.send_part(a, memoryview(protocol.encode(message, 1)), [fd]) > 0
        a.sendall(protocol.encode(protocol.Status(100 + i)))
    a.close()
    seen = read_all(b, protocol.server_receiver())
    try:
        loads = [(m, fds) for m, fds in seen if isinstance(m, protocol.Load)]
        assert [os.pread(fds[0], 1, 0)[0] for _, fds in loads] == [0, 1, 2]
        assert all(not fds for m, fds in seen if isinstance(m, protocol.Status))
    finally:
        protocol.close_all([fd for _, fds in seen for fd in fds] + files)


BAD = {
    "no mark": b"GET / HTTP/1.1\r\n\r\n",
    "oversize": HEADER.pack(protocol.MAX_FRAME + 1, 0, 0x4D41),
    "no msgpack": frame(b"\xc1"),
    "empty": frame(b""),
    "trailing bytes": frame(msgspec.msgpack.encode(["Status", 1]) + b"\0"),
    "surplus field": frame(msgspec.msgpack.encode(["Status", 1, 2])),
    "missing field": frame(msgspec.msgpack.encode(["Status"])),
    "unknown message": frame(msgspec.msgpack.encode(["Sudo", 1])),
    "a map (keys could be duplicate)": frame(msgspec.msgpack.encode({"type": "Status", "id": 1})),
    "wrong type": frame(msgspec.msgpack.encode(["Status", "1"])),
    "negative": frame(msgspec.msgpack.encode(["Data", 1, -5])),
    "too large": frame(msgspec.msgpack.encode(["Data", 1, 1 << 63])),
    "path too long": frame(msgspec.msgpack.encode(["Load", 1, "/" * 5000, "", {"instances": 1}])),
    "no instances": frame(msgspec.msgpack.encode(["Load", 1, "/a", "", {"instances": 0}])),
    "deep nesting": frame(b"\x91" * 100_000 + b"\xc0"),
    "invalid utf-8": frame(b"\x92\xa6Status\xa2\xff\xfe"),
    "announces descriptors that do not come": frame(msgspec.msgpack.encode(["Status", 1]), 2),
    "too many descriptors": frame(msgspec.msgpack.encode(["Status", 1]), 99),
}


@pytest.mark.parametrize("data", BAD.values(), ids=BAD.keys())
def test_malformed_frames_are_refused(pair, data):
    a, b = pair
    a.sendall(data)
    a.close()
    with pytest.raises(ProtocolError):
        read_all(b, protocol.server_receiver())


def test_disconnect_in_mid_frame(pair):
    a, b = pair
    a.sendall(protocol.encode(protocol.Status(1))[:-1])
    a.close()
    with pytest.raises(ProtocolError, match="mid-frame"):
        read_all(b, protocol.server_receiver())


def test_a_flood_of_descriptors_is_refused_and_closed(pair):
    a, b = pair
    before = set(os.listdir("/proc/self/fd"))
    null = os.open("/dev/null", os.O_RDONLY)
    socket.send_fds(a, [b"x"], [null] * 200)
    receiver = protocol.server_receiver()
    with pytest.raises(ProtocolError, match="too many descriptors"):
        receiver.read(b)
    receiver.close()
    os.close(null)
    assert set(os.listdir("/proc/self/fd")) == before


def test_oversize_messages_are_not_sent():
    with pytest.raises(ProtocolError, match="over the limit"):
        protocol.encode(protocol.StatusReply(1, b"x" * protocol.MAX_FRAME))


def test_errors_by_name():
    assert type(protocol.make_error("RequestError", "x")) is RequestError
    assert type(protocol.make_error("SystemExit", "x")) is AspenError
    assert type(protocol.make_error("annotations", "x")) is AspenError


def test_who_is_refused_before_he_greets_learns_why(pair):
    """The planner process may have hung up by the time that the greeting is sent."""
    a, b = pair
    a.sendall(protocol.encode(protocol.Failed(0, "ResourceLimitError", "too many clients")))
    a.close()
    with pytest.raises(ResourceLimitError, match="too many clients"):
        ControlClient(b, lambda _: None).handshake("0.1.0", 10)


def test_who_is_hung_up_on_without_a_word_learns_that(pair):
    a, b = pair
    a.close()
    with pytest.raises(RuntimeLost, match="planner process"):
        ControlClient(b, lambda _: None).handshake("0.1.0", 10)
