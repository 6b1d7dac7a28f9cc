"""Files of plans: what is written is read again, and nothing else is."""

from __future__ import annotations

import struct
from typing import Any

import msgpack
import numpy as np
import pytest
from plan_damage import make
from small_graphs import odd_outputs, residual_block

from aspen_mp.planner.plan import plan_file, plan_head
from aspen_mp.shm.errors import PlanError


def test_file_round_trip(tmp_path: Any) -> None:
    plan = make(odd_outputs, metadata={"model": "abc", "shapes": {"in0": [2, 6]}})
    plan_file.save(plan, tmp_path / "p.aspen")
    again = plan_file.load((tmp_path / "p.aspen").read_bytes(), {w.key: w.write for w in plan.weights})
    assert bytes(again.segment()) == bytes(plan.segment())
    assert again.metadata == plan.metadata
    assert (again.inputs, again.outputs, again.info) == (plan.inputs, plan.outputs, plan.info)
    again.place_weights({w.key: (2, 64 + 64 * k) for k, w in enumerate(again.weights)})
    assert again.header()["n_weights"] == 3
    lonely = plan_file.load(plan_file.dump(plan))
    with pytest.raises(PlanError, match="not given"):
        lonely.weights[0].write(memoryview(bytearray(lonely.weights[0].nbytes)))


def test_every_flipped_byte_of_a_file_is_refused() -> None:
    data = plan_file.dump(make(odd_outputs))
    rng = np.random.default_rng(3)
    for at in [*range(64), *rng.integers(0, len(data), 200).tolist()]:
        bad = bytearray(data)
        bad[at] ^= 1 << int(rng.integers(8))
        with pytest.raises(PlanError):
            plan_file.load(bad)
    for n in (0, 7, 48, 100, len(data) - 1):
        with pytest.raises(PlanError):
            plan_file.load(data[:n])
    with pytest.raises(PlanError):
        plan_file.load(data + b"\0")


def resealed(data: bytes, header: Any, body: bytes | None = None) -> bytes:
    """A file with another header and a checksum that fits."""
    size = struct.unpack_from("<I", data, 12)[0]
    packed = header if isinstance(header, bytes) else msgpack.packb(header)
    return plan_head.join(packed, data[-(-(plan_head.PREFIX.size + size) // 64) * 64 :] if body is None else body)


def header_of(data: bytes) -> dict[str, Any]:
    size = struct.unpack_from("<I", data, 12)[0]
    return msgpack.unpackb(data[plan_head.PREFIX.size : plan_head.PREFIX.size + size])


def test_forged_headers_are_refused() -> None:
    data = plan_file.dump(make(odd_outputs))
    good = header_of(data)
    plan_file.load(resealed(data, good))
    nested: Any = []
    for _ in range(2000):
        nested = [nested]
    forged: list[Any] = [
        [],
        {},
        good | {"extra": 1},
        good | {"layout": 1},
        good | {"name": 5},
        good | {"segment_bytes": -1},
        good | {"segment_bytes": 1 << 60},
        good | {"weight_uses": -1},
        good | {"weight_uses": good["weight_uses"] + 1},
        good | {"inputs": [["x", "float32", [2, -6], 0, 48]]},
        good | {"inputs": [["x", "float32", [2, 6], 1 << 40, 48]]},
        good | {"inputs": [["x", "float32", [2, 6], 0, 47]]},
        good | {"inputs": [["x", "no", [2, 6], 0, 48]]},
        good | {"inputs": [[1]]},
        good | {"weights": [["a", 1]]},
        good | {"weights": [*good["weights"][:-1], good["weights"][0]]},
        good | {"weights": [[k, 1] for k, _ in good["weights"]]},
        good | {"info": [1]},
        *(good | {"activation_bytes": nbytes} for nbytes in (1 << 50, 1 << 63, -1, -(1 << 62))),
        b"\xdd\xff\xff\xff\xff",
        b"\xc1",
        b"\x82\xa1a\x01\xa1a\x02",
        b"\x81" * 5000,
        msgpack.packb(good) + b"\0",
    ]
    for header in forged:
        with pytest.raises(PlanError):
            plan_file.load(resealed(data, header))


def test_weights_stay_in_their_items() -> None:
    plan = make(residual_block)
    plan.weight_uses[0, 2] = 1 << 30
    with pytest.raises(PlanError, match="weight_uses"):
        plan_file.load(plan_file.dump(plan))
    plan = make(residual_block)
    plan.weight_uses = plan.weight_uses[1:]
    with pytest.raises(PlanError, match="weight_uses"):
        plan_file.load(plan_file.dump(plan))


def test_placing_weights() -> None:
    plan = make(residual_block)
    with pytest.raises(PlanError, match="no place"):
        plan.place_weights({})
    directory = dict.fromkeys((w.key for w in plan.weights), (9, 64))
    with pytest.raises(PlanError, match="segment"):
        plan.place_weights(directory)
