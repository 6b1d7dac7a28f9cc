"""Serialised values: what goes in comes out, and damaged bytes are refused."""

from __future__ import annotations

import contextlib
import struct
from decimal import Decimal
from typing import Any

import ml_dtypes
import msgpack
import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from aspen_mp.shm import values
from aspen_mp.shm.errors import RequestError


def same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray):
        if not isinstance(b, np.ndarray) or a.shape != b.shape or a.dtype != b.dtype:
            return False
        return a.tolist() == b.tolist() if a.dtype == object else np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes()
    if isinstance(a, (list, tuple)):
        return isinstance(b, list) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(v, b[k]) for k, v in a.items())
    return type(a) is type(b) and a == b


@pytest.mark.parametrize("name", [*values._NUMPY, *values._COMPLEX, *values._ML_DTYPES])
def test_every_number_type(name: str) -> None:
    dtype = values.dtype_by_name(name)
    bits = np.arange(5 * 3 * dtype.itemsize, dtype=np.uint8)
    if name == "bool" or name.startswith(("int4", "uint4", "int2", "uint2", "float4", "float6")):
        bits &= 1
    array = bits.view(dtype).reshape(3, 5)
    assert same(array, values.decode(values.encode(array)))
    assert same(np.ascontiguousarray(array.T), values.decode(values.encode(array.T)))


def test_structures() -> None:
    value = [
        None,
        np.array(["a", "ü", ""], dtype=object).reshape(3, 1),
        [np.array(1, np.float32), np.zeros((0, 4), np.int64)],
        {"x": 0.5, "y": np.ones(2, np.float16)},
        {3: True, -4: 2**63},
        [],
    ]
    assert same(value, values.decode(values.encode(value)))
    assert values.decode(values.encode(None)) is None
    assert same(np.array(["a", "bc"], dtype=object), values.decode(values.encode(np.array(["a", "bc"]))))
    assert same(np.array([b"\xff"], dtype=object), values.decode(values.encode(np.array([b"\xff"], dtype=object))))


@pytest.mark.parametrize("keys", [["a", "ü"], [3, -4], []])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_maps_with_the_same_keys_come_out_as_dicts(keys: list[Any], dtype: Any) -> None:
    table = (np.arange(3 * len(keys)).reshape(3, len(keys)) / 4).astype(dtype)
    maps = values.Maps(keys, table)
    want = [dict(zip(keys, row, strict=True)) for row in table.tolist()]
    assert (len(maps), list(maps), maps[1:].listed(), maps[-1]) == (3, want, want[1:], want[-1])
    assert same(want, values.decode(values.encode(maps)))
    assert same([want, want[:1]], values.decode(values.encode([maps, maps[:1]])))


def test_maps_and_keys_that_do_not_fit() -> None:
    for table in (np.zeros(2), np.zeros((2, 3)), np.array([["a", "b"]], object)):
        with pytest.raises(RequestError, match="do not fit"):
            values.Maps(["a", "b"], table)
    with pytest.raises(RequestError, match="key"):
        values.encode(values.Maps([0.5], np.zeros((2, 1))))


def test_damaged_maps_are_refused() -> None:
    """Keys and tables of other kinds, and more maps of nothing than anybody needs."""
    good = values.encode(values.Maps(["a", "b"], np.zeros((2, 2), np.float32)))
    head = struct.Struct("<8sQQ")
    _, used, described = head.unpack_from(good)
    kind, keys, table = msgpack.unpackb(good[head.size : head.size + described])
    nothing = ["t", "float32", [1 << 40, 0], 0]
    for bad in ([kind, [0.5, 1], table], [kind, keys[:1], table], [kind, keys, None], [kind, keys, ["s", [0], []]], [kind, [], nothing]):
        text = msgpack.packb(bad)
        with pytest.raises(RequestError):
            values.decode(head.pack(values.MAGIC, used + 64, len(text)) + text + bytes(-(head.size + len(text)) % 64) + bytes(128))


def test_room_and_views() -> None:
    value = [np.arange(1000, dtype=np.float32), np.arange(3)]
    size = values.encoded_size(value)
    assert size == len(values.encode(value))
    buffer = bytearray(size + 100)
    assert values.Encoded(value).write(buffer) == size
    assert values.used_bytes(buffer) == size
    got = values.decode(buffer, copy=False)
    assert same(value, got)
    assert not got[0].flags.writeable
    assert got[0].ctypes.data % 16 == np.frombuffer(buffer, np.uint8).ctypes.data % 16
    with pytest.raises(RequestError, match="does not fit"):
        values.Encoded(value).write(bytearray(size - 1))


def test_what_tables_hold_among_strings() -> None:
    """Missing values and numbers in a column of strings become what onnxruntime makes of them."""
    column = np.array(
        ["a", np.nan, None, 3, 1.5, True, np.float32(0.1), np.int64(-7), Decimal("1.10"), np.datetime64("2020-01-01")], object
    )
    kind = onnx.helper.make_tensor_type_proto(onnx.TensorProto.STRING, [None])
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Identity", ["x"], ["y"])],
        "g",
        [onnx.helper.make_value_info("x", kind)],
        [onnx.helper.make_value_info("y", kind)],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    want = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": column})[0]
    assert values.decode(values.encode(column)).tolist() == list(want)
    assert values.decode(values.encode(np.array([np.str_("q"), np.bytes_(b"r")], object))).tolist() == ["q", b"r"]


@pytest.mark.parametrize(
    "bad",
    [
        object(),
        np.array([["a"], {}, None], dtype=object),
        np.array([10**5000], dtype=object),
        np.array(["a", 1j, [2]], dtype=object),
        np.array([object()]),
        np.array(["2020"], dtype="M8"),
        2**64,
        {1.5: 1},
        {True: 1},
        1j,
        b"x",
        ["\ud800"],
    ],
)
def test_refuses_what_onnx_does_not_know(bad: object) -> None:
    with pytest.raises(RequestError):
        values.encode(bad)


def test_refuses_deep_nesting() -> None:
    value: list[Any] = []
    for _ in range(values.MAX_DEPTH + 2):
        value = [value]
    with pytest.raises(RequestError, match="nested"):
        values.encode(value)


def made(description: object, data: bytes = b"") -> bytes:
    body = msgpack.packb(description)
    start = 24 + len(body)
    pad = bytes(-start % 64)
    return struct.pack("<8sQQ", b"ASPENVAL", start + len(pad) + len(data), len(body)) + body + pad + data


@pytest.mark.parametrize(
    "bad",
    [
        ["t", "float32", [4], 0],
        ["t", "float32", [-1], 0],
        ["t", "float32", [1 << 40, 1 << 40], 0],
        ["t", "float32", [1 << 62, 0], 0],
        ["t", "float32", [1], 1 << 62],
        ["t", "float32", [1], 4],
        ["t", "float32", [1], -64],
        ["t", "float32", [True], 0],
        ["t", "object", [1], 0],
        ["t", "float32", 1, 0],
        ["t", "float32", [1]],
        ["s", [2], ["a"]],
        ["s", [1], [5]],
        ["q", None],
        ["m", [[1, None], [1, None]]],
        ["m", [[None, None]]],
        ["m", 7],
        ["v", None],
        ["v", [1]],
        ["?", 1],
        [],
        5,
        "t",
        {"a": 1},
    ],
)
def test_refuses_damaged_descriptions(bad: object) -> None:
    with pytest.raises(RequestError):
        values.decode(made(bad, bytes(8)))


def test_refuses_deep_descriptions() -> None:
    body = b"\x92\xa1q\x91" * 5000 + b"\xc0"
    with pytest.raises(RequestError):
        values.decode(struct.pack("<8sQQ", b"ASPENVAL", 24 + len(body), len(body)) + body)


@pytest.mark.parametrize(
    "bad", [b"", b"ASPENVAL", bytes(64), struct.pack("<8sQQ", b"ASPENVAL", 1 << 40, 1), struct.pack("<8sQQ", b"ASPENVAL", 24, 9)]
)
def test_refuses_damaged_headers(bad: bytes) -> None:
    with pytest.raises(RequestError):
        values.decode(bad)


numbers = hnp.arrays(
    st.sampled_from([np.float32, np.int8, np.bool_, np.float64, ml_dtypes.bfloat16]),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0),
    elements=st.just(1),
)
strings = st.lists(st.text(max_size=5), max_size=4).map(lambda s: np.array([*s, None], dtype=object)[:-1])
trees = st.recursive(
    st.none() | numbers | strings | st.floats(allow_nan=False) | st.integers(-(2**63), 2**64 - 1),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(trees)
def test_round_trip(value: Any) -> None:
    assert same(value, values.decode(values.encode(value)))


@settings(max_examples=300, deadline=None)
@given(trees, st.data())
def test_damaged_bytes_never_do_more_than_raise(value: Any, data: st.DataObject) -> None:
    buffer = bytearray(values.encode(value))
    for _ in range(data.draw(st.integers(1, 4))):
        buffer[data.draw(st.integers(0, len(buffer) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(RequestError):
        values.decode(buffer)
