"""Files and frames that are almost right: plan files (with a checksum that fits), serialised values, frames of the control socket.

Whatever is in them, reading them ends with a value or the typed error, never with anything else.
"""

from __future__ import annotations

import socket
import struct
from contextlib import suppress
from functools import lru_cache
from typing import Any

import msgpack
import msgspec
import numpy as np
from fuzz_plans import base
from fuzzing import Finding, numbers

from aspen_mp.control.wire import protocol
from aspen_mp.planner.plan import plan_file, plan_head
from aspen_mp.shm import values
from aspen_mp.shm.errors import PlanError, ProtocolError, RequestError

_PREFIX = plan_head.PREFIX.size


def damaged(rng: np.random.Generator, data: bytes, most: int = 4) -> bytes:
    out = bytearray(data)
    for _ in range(int(rng.integers(1, most + 1))):
        kind = rng.random()
        at = int(rng.integers(len(out))) if out else 0
        if kind < 0.5 and out:
            out[at] = int(rng.integers(256))
        elif kind < 0.65:
            out[at : at + 1] = struct.pack("<Q", numbers(rng) % (1 << 64))[: int(rng.choice([1, 4, 8]))]
        elif kind < 0.8:
            del out[at : at + int(rng.integers(1, 9))]
        elif kind < 0.9:
            out[at:at] = out[max(0, at - 20) : at]
        else:
            out[at:at] = rng.bytes(int(rng.integers(1, 9)))
    return bytes(out)


def altered(rng: np.random.Generator, value: Any) -> Any:
    """A msgpack value with one part replaced."""
    if isinstance(value, (list, dict)) and value and rng.random() < 0.85:
        if isinstance(value, dict):
            keys = list(value)
            key = keys[int(rng.integers(len(keys)))]
            changed = dict(value)
            changed[key] = altered(rng, value[key])
            if rng.random() < 0.05:
                del changed[key]
            return changed
        k = int(rng.integers(len(value)))
        kind = rng.random()
        if kind < 0.1:
            return [*value[:k], *value[k + 1 :]]
        if kind < 0.2:
            return [*value[:k], value[k], *value[k:]]
        return [*value[:k], altered(rng, value[k]), *value[k + 1 :]]
    deep: Any = []
    for _ in range(int(rng.integers(1, 600))):
        deep = [deep]
    number = numbers(rng)
    options: list[Any] = [
        None,
        True,
        number,
        -number if number >= 0 else number,
        1.5,
        float("nan"),
        "",
        "x" * 70,
        b"\xff",
        [],
        {},
        [[]],
        deep,
    ]
    options += ["object", "float32", "int4", "w", 1 << 63]
    return options[int(rng.integers(len(options)))]


def packed(value: Any) -> bytes:
    try:
        return bytes(msgpack.packb(value))
    except (OverflowError, ValueError):
        return b"\xc0"


@lru_cache(maxsize=32)
def file(k: int) -> bytes | None:
    plan = base(k)
    return None if plan is None else plan_file.dump(plan)


def plan_bytes(seed: int) -> str:
    rng = np.random.default_rng(seed)
    data = None
    while data is None:
        data = file(int(rng.integers(300)))
    size = struct.unpack_from("<I", data, 12)[0]
    header, body = data[_PREFIX : _PREFIX + size], data[-(-(_PREFIX + size) // 64) * 64 :]
    kind = rng.random()
    if kind < 0.5:
        header = packed(altered(rng, msgpack.unpackb(header)))
    elif kind < 0.65:
        header = damaged(rng, header)
    elif kind < 0.9:
        body = damaged(rng, body)
    else:
        whole = damaged(rng, data)
        return _load(whole)
    return _load(plan_head.join(header, body))


def _load(data: bytes) -> str:
    with suppress(PlanError):
        plan_head.segment_of(memoryview(data))
    try:
        plan = plan_file.load(data)
    except PlanError:
        return "refused"
    if plan_file.load(plan_file.dump(plan)).header() != plan.header():
        raise Finding("a plan that was read is not what is written")
    return "read"


VALUES: list[Any] = [
    None,
    np.arange(6, dtype=np.float32).reshape(2, 3),
    np.array(["a", "ö" * 30, ""], object).reshape(3, 1),
    [np.zeros((0, 4), np.int64), None, [np.ones(3, bool)]],
    {"k": 1.5, 3: np.array(["x"], object)},
    True,
]


def value(seed: int) -> str:
    rng = np.random.default_rng(seed)
    encoded = values.Encoded(VALUES[int(rng.integers(len(VALUES)))])
    memory = bytearray(encoded.nbytes + int(rng.integers(100)))
    encoded.write(memory)
    if rng.random() < 0.6:
        used, described = struct.unpack_from("<QQ", memory, 8)
        node = packed(altered(rng, msgpack.unpackb(bytes(memory[24 : 24 + described]))))
        rest = bytes(memory[-(-(24 + described) // 64) * 64 :])
        head = 24 + len(node)
        used = -(-head // 64) * 64 + len(rest)
        memory = bytearray(struct.pack("<8sQQ", values.MAGIC, used, len(node)) + node + bytes(-head % 64) + rest)
    else:
        memory = bytearray(damaged(rng, bytes(memory)))
    try:
        values.decode(bytes(memory), copy=bool(rng.random() < 0.5))
    except RequestError:
        return "refused"
    return "read"


MESSAGES: list[list[Any]] = [
    ["Hello", 2, "00ff", "0.1"],
    ["Load", 7, "/a/b.onnx", "b", {"instances": 2}],
    ["MakePlan", 8, 1, [[["x", "float32", [1, 3], None], ["s", "int64", [2], b"\1" * 16]]], [["y", 64]]],
    ["Data", 10, 1 << 40],
    ["Resize", 13, 1, 0, -1, [3]],
    ["Status", 14],
]


def frames(seed: int) -> str:
    rng = np.random.default_rng(seed)
    stream = b""
    for _ in range(int(rng.integers(1, 6))):
        message = MESSAGES[int(rng.integers(len(MESSAGES)))]
        payload = packed(altered(rng, message) if rng.random() < 0.5 else message)
        if rng.random() < 0.2:
            payload = damaged(rng, payload)
        stream += struct.pack("<IHH", len(payload), int(rng.choice([0, 0, 0, 0, 1, 5])), 0x4D41) + payload
    if rng.random() < 0.3:
        stream = damaged(rng, stream, 2)
    a, b = socket.socketpair()
    receiver = protocol.server_receiver() if rng.random() < 0.7 else protocol.client_receiver()
    n = 0
    with a, b:
        try:
            while stream:
                piece = stream[: int(rng.integers(1, 200))]
                stream = stream[len(piece) :]
                a.sendall(piece)
                receiver.read(b)
                for message, fds in receiver.messages():
                    assert not fds
                    assert msgspec.msgpack.encode(message)
                    n += 1
            a.close()
            receiver.read(b)
        except ProtocolError:
            return "refused"
        finally:
            receiver.close()
    return f"{n} messages" if n < 2 else "messages"
